"""The bench a potential is checked on: a copy of it in one dtype, structures, answers and their comparison."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, predict
from mlpot.structure import Structure
from mlpot.testing.structures import Samples

# What rounding may cost, relative to the size of the energies and forces, and at least to 1 eV and 1 eV/Å.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 5e-5}
DEFAULT_ELEMENTS = (1, 6, 7, 8)


class NotApplicableError(Exception):
    """The check has no meaning for this potential."""


class Figure(NamedTuple):
    """One measured number; it passes where value <= tolerance (NaN does not)."""

    what: str
    value: float
    tolerance: float

    @property
    def passes(self) -> bool:
        """Whether the figure is within its tolerance."""
        return bool(self.value <= self.tolerance)


Check = Callable[["Bench"], Iterator[Figure]]


class Answer(NamedTuple):
    """energy (S,), atom_energies (N,), forces (N, 3) and virial (S, 3, 3): dE/dε, zero where there is no stress."""

    energy: Tensor
    atom_energies: Tensor
    forces: Tensor
    virial: Tensor


class Bench:
    """A copy of `potential` in `dtype`, on its own device, and what the checks share."""

    def __init__(self, potential: Potential, dtype: torch.dtype, elements: Sequence[int] | None, seed: int) -> None:
        self.model = copy.deepcopy(potential).to(dtype).eval()
        self.dtype = dtype
        self.tolerance = TOLERANCES[dtype]
        tensors = [*self.model.parameters(), *self.model.buffers()]
        self.device = tensors[0].device if tensors else torch.device("cpu")
        # Sums on a GPU come in any order; on a CPU the same input gives the same bits.
        self.exactly = 0.0 if self.device.type == "cpu" else self.tolerance
        known = elements or self.model.elements or DEFAULT_ELEMENTS
        chosen = tuple(int(z) for z in known)
        radii = {part.cutoff for part in self.model.modules() if isinstance(part, Potential)}
        self.cutoff = max(radii) or 3.0  # reference energies alone reach nowhere
        cutoffs = tuple(sorted(radii - {0.0})) or (self.cutoff,)
        self.rng = np.random.default_rng(seed)
        self.samples = Samples(self._some(chosen), cutoffs, self.model.structure_inputs, self.rng)

    def _some(self, elements: tuple[int, ...]) -> tuple[int, ...]:
        """At most four of the elements, so that each occurs."""
        return elements if len(elements) <= 4 else tuple(sorted(self.rng.choice(elements, 4, replace=False).tolist()))

    def graph(self, structures: Structure | Sequence[Structure], cutoff: float | None = None) -> AtomsGraph:
        """The structures as one batch on the potential's device."""
        return AtomsGraph.from_structure(structures, cutoff or self.cutoff).to(self.device)

    def answer(self, structures: Structure | Sequence[Structure], model: Potential | None = None) -> Answer:
        """Everything that the potential says of the structures, on the CPU."""
        return self.answer_of(self.graph(structures), model)

    def answer_of(self, graph: AtomsGraph, model: Potential | None = None) -> Answer:
        """Everything that the potential says of a graph, on the CPU."""
        out = predict(model or self.model, graph, forces=True, stress=True)
        assert out.forces is not None
        assert out.stress is not None
        periodic = graph.pbc.all(dim=1)[:, None, None]
        volume = torch.linalg.det(graph.cell).abs()[:, None, None]
        virial = torch.where(periodic, out.stress * volume, 0.0)
        return Answer(*(x.detach().cpu() for x in (out.energy, out.atom_energies, out.forces, virial)))

    def compare(self, what: str, got: Answer, expected: Answer, tolerance: float | None = None) -> Iterator[Figure]:
        """The largest differences in energy, forces and virial, relative to their size or to 1 eV, 1 eV/Å."""
        allowed = self.tolerance if tolerance is None else tolerance
        energies = max(1.0, float(expected.atom_energies.abs().sum()))
        yield Figure(f"{what}, energy", difference(got.energy, expected.energy) / energies, allowed)
        yield Figure(
            f"{what}, atom energies", difference(got.atom_energies, expected.atom_energies) / energies, allowed
        )
        for name in ("forces", "virial"):
            reference: Tensor = getattr(expected, name)
            size = max(1.0, largest(reference))
            yield Figure(f"{what}, {name}", difference(getattr(got, name), reference) / size, allowed)


def largest(tensor: Tensor) -> float:
    """max |x|, 0 for an empty tensor, NaN where there is one."""
    return float(tensor.detach().abs().max()) if tensor.numel() else 0.0


def difference(got: Tensor, expected: Tensor) -> float:
    """max |got - expected|; infinite where the shapes differ."""
    return largest(got - expected) if got.shape == expected.shape else float("inf")
