"""Potentials made of potentials: sums, scaled networks, reference energies, committees."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor, nn

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, Prediction, predict
from mlpot.structure import MAX_NUMBER


class NoSettings(BaseModel):
    """A composition without settings of its own."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Composition(Potential):
    """A potential made of `parts`. It needs the longest of their cutoffs and knows the elements that all know."""

    Config: type[BaseModel] = NoSettings

    def __init__(self, parts: Sequence[Potential], config: BaseModel | None = None) -> None:
        super().__init__()
        self.config = config if config is not None else NoSettings()
        self.parts = nn.ModuleList(parts)
        self.cutoff = max((part.cutoff for part in parts), default=0.0)
        self.structure_inputs = tuple(sorted({name for part in parts for name in part.structure_inputs}))
        limits = [set(part.elements) for part in parts if part.elements is not None]
        self.restrict_to(sorted(set.intersection(*limits)) if limits else None)

    @classmethod
    def assemble(cls, parts: Sequence[Potential], config: BaseModel) -> Potential:
        """From parts and settings, as a checkpoint holds them."""
        return cls(parts, config)


class Sum(Composition):
    """E_i = Σ_k E_i^(k), added in float64."""

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV, float64."""
        energies: list[Tensor] = [part.atom_energies(graph).to(torch.float64) for part in self.parts]  # type: ignore[operator]
        return torch.stack(energies).sum(0)


class ScaledConfig(BaseModel):
    """The factor of a scaled potential."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    scale: float


class Scaled(Composition):
    """E_i = scale · E_i of one part; training sets the scale to the spread of the labels."""

    Config = ScaledConfig

    def __init__(self, parts: Sequence[Potential], config: BaseModel | None = None, *, scale: float = 1.0) -> None:
        super().__init__(parts, config or ScaledConfig(scale=scale))

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV, float64."""
        return self.config.scale * self.parts[0].atom_energies(graph).to(torch.float64)  # type: ignore[operator]


class ReferenceConfig(BaseModel):
    """Energy of the free atom of each element, atomic number -> eV."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    energies: dict[Annotated[int, Field(ge=1, le=MAX_NUMBER)], float]


class ReferenceEnergies(Composition):
    """E_i = E0(Z_i) in float64, whatever dtype the model around it is cast to."""

    Config = ReferenceConfig
    table: Tensor

    def __init__(
        self,
        parts: Sequence[Potential] = (),
        config: BaseModel | None = None,
        *,
        energies: Mapping[int, float] | None = None,
    ) -> None:
        super().__init__(parts, config or ReferenceConfig(energies=dict(energies or {})))
        self.register_buffer("table", self._table(torch.device("cpu")), persistent=False)
        self.restrict_to(sorted(self.config.energies))

    def _table(self, device: torch.device) -> Tensor:
        table = torch.zeros(MAX_NUMBER + 1, dtype=torch.float64)
        for number, energy in self.config.energies.items():
            table[number] = energy
        return table.to(device)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> ReferenceEnergies:
        super()._apply(fn, recurse)
        self.table = self._table(self.table.device)  # a cast to float32 would cost meV at the size of DFT totals
        return self

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV, float64."""
        return self.table[graph.numbers]


class Ensemble(Composition):
    """The mean of several potentials; `predict_members` gives each one's answer."""

    def __init__(self, parts: Sequence[Potential], config: BaseModel | None = None) -> None:
        if not parts:
            raise UserError("an ensemble needs at least one potential.")
        cutoffs = {part.cutoff for part in parts}
        if len(cutoffs) > 1:
            raise UserError(
                f"the members of an ensemble must share one cutoff; theirs are {sorted(cutoffs)} Å. "
                f"Train them with the same one."
            )
        super().__init__(parts, config)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """(N,) eV, float64: the mean over the members."""
        return torch.stack([part.atom_energies(graph).to(torch.float64) for part in self.parts]).mean(0)  # type: ignore[operator]


class Members(NamedTuple):
    """Each member's answer, stacked along the first axis.

    energy (M, S), atom_energies (M, N), forces (M, N, 3), stress (M, S, 3, 3); units as of `Prediction`.
    """

    energy: Tensor
    atom_energies: Tensor
    forces: Tensor | None
    stress: Tensor | None


def predict_members(model: Ensemble, graph: AtomsGraph, *, forces: bool = True, stress: bool = False) -> Members:
    """`predict` for every member. Units as of `Prediction`; the mean over M is what `predict(model, ...)` gives."""
    answers: list[Prediction] = [predict(part, graph, forces=forces, stress=stress) for part in model.parts]  # type: ignore[arg-type]

    def stacked(values: list[Tensor | None]) -> Tensor | None:
        return torch.stack([value for value in values if value is not None]) if values[0] is not None else None

    return Members(
        torch.stack([answer.energy for answer in answers]),
        torch.stack([answer.atom_energies for answer in answers]),
        stacked([answer.forces for answer in answers]),
        stacked([answer.stress for answer in answers]),
    )


KINDS: dict[str, type[Composition]] = {
    "sum": Sum,
    "scaled": Scaled,
    "reference_energies": ReferenceEnergies,
    "ensemble": Ensemble,
}
