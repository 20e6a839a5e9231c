"""The contract of every potential, and `predict`: the only place that differentiates an energy."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.structure import MAX_NUMBER, SYMBOLS, symbols_of


class Potential(nn.Module):
    """What a model author writes: `cutoff`, `atom_energies` and a frozen pydantic `config`.

    | name             | type               | meaning                                                            |
    |------------------|--------------------|--------------------------------------------------------------------|
    | cutoff           | float, Å           | the graph must hold every pair nearer than this                    |
    | elements         | tuple[int] or None | atomic numbers it may be used for; None where any will do          |
    | structure_inputs | tuple[str]         | of "charge" and "spin", those that enter the energy                |
    | config           | pydantic model     | what rebuilds it, without its parameters                           |
    | metadata         | dict               | where it comes from: data, hashes, errors, versions                |

    `atom_energies` must let energies and forces go to zero smoothly at the cutoff, and must not change the graph.
    """

    cutoff: float
    structure_inputs: tuple[str, ...] = ()
    config: Any
    _known: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.elements: tuple[int, ...] | None = None
        self.metadata: dict[str, Any] = {}
        self.register_buffer("_known", None, persistent=False)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """Energy of each atom in eV, (N,), in the model's own dtype or float64."""
        raise NotImplementedError(f"{type(self).__name__} must define atom_energies(graph)")

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in: that of its first floating-point parameter or buffer."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float64)

    def restrict_to(self, elements: Sequence[int] | None) -> None:
        """Let the model be used for these atomic numbers only (those it was trained on); None lifts the limit."""
        self.elements = None if elements is None else tuple(sorted(int(z) for z in set(elements)))
        if self.elements is None:
            self._known = None
            return
        known = torch.zeros(MAX_NUMBER + 1, dtype=torch.bool)
        known[list(self.elements)] = True
        tensors = itertools.chain(self.parameters(), self.buffers())
        self._known = known.to(next((tensor.device for tensor in tensors), torch.device("cpu")))

    def check(self, graph: AtomsGraph) -> None:
        """Raise UserError for a graph that the model would answer wrongly: unknown elements, too short a cutoff."""
        if graph.cutoff < self.cutoff - 1e-9:
            raise UserError(
                f"the graph holds pairs up to {graph.cutoff} Å, but the model needs {self.cutoff} Å: "
                f"build it with cutoff={self.cutoff}."
            )
        if self._known is not None and not bool(self._known[graph.numbers].all()):
            outside = graph.numbers[~self._known[graph.numbers]].cpu().numpy()
            raise UserError(
                f"the model was not trained on {', '.join(symbols_of(outside))}; "
                f"it knows {', '.join(SYMBOLS[z] for z in self.elements or ())}."
            )


class Prediction(NamedTuple):
    """What `predict` returns.

    | field         | shape, dtype      | unit                                                         |
    |---------------|-------------------|--------------------------------------------------------------|
    | energy        | (S,) float64      | eV                                                           |
    | atom_energies | (N,) float64      | eV                                                           |
    | forces        | (N, 3) float64    | eV/Å; None where not asked for                               |
    | stress        | (S, 3, 3) float64 | eV/Å³, ASE's sign; NaN where not periodic in three directions |
    """

    energy: Tensor
    atom_energies: Tensor
    forces: Tensor | None = None
    stress: Tensor | None = None


def predict(
    model: Potential, graph: AtomsGraph, *, forces: bool = True, stress: bool = False, create_graph: bool = False
) -> Prediction:
    """Energies, forces = -dE/dR and stress = dE/dε / |det cell| at symmetric strain ε, of every structure of a graph.

    With ``create_graph=True`` the results can be differentiated further, as training on forces needs; it is never
    taken from ``model.training``. Without it they are detached and no graph is kept.
    Totals are summed in float64, since float32 resolves only meV at the size of all-electron energies.
    Raises UserError for elements the model was not trained on and for a graph with too short a cutoff.
    """
    model.check(graph)
    differentiate = forces or stress
    with torch.set_grad_enabled(differentiate or create_graph):
        strain = None
        inner = graph
        if differentiate:
            positions = graph.positions.detach().requires_grad_(forces)
            cell = graph.cell
            if stress:
                strain = torch.zeros_like(cell, requires_grad=True)
                deformation = torch.eye(3, dtype=cell.dtype, device=cell.device) + 0.5 * (strain + strain.mT)
                cell = cell @ deformation
                strained = torch.bmm(positions[:, None], deformation[graph.batch])[:, 0]
            inner = graph.moved(strained if stress else positions, cell)
        atom_energies = model.atom_energies(inner).to(torch.float64)
        energy = atom_energies.new_zeros(graph.n_structures).index_add(0, graph.batch, atom_energies)
        wanted = ([positions] if forces else []) + ([strain] if strain is not None else [])
        gradients = _gradients(energy, wanted, create_graph)
    return Prediction(
        energy if create_graph else energy.detach(),
        atom_energies if create_graph else atom_energies.detach(),
        -gradients[0] if forces else None,
        _stress(gradients[-1], graph) if stress else None,
    )


def _gradients(energy: Tensor, wanted: list[Tensor], create_graph: bool) -> list[Tensor]:
    if not wanted:
        return []
    if not energy.requires_grad:  # no term depends on the geometry: isolated atoms, reference energies alone
        return [torch.zeros_like(tensor) for tensor in wanted]
    return list(torch.autograd.grad(energy.sum(), wanted, create_graph=create_graph, materialize_grads=True))


def _stress(strain_gradient: Tensor, graph: AtomsGraph) -> Tensor:
    volume = torch.linalg.det(graph.cell).abs()
    periodic = graph.pbc.all(dim=1)
    stress = strain_gradient / torch.where(periodic, volume, 1.0)[:, None, None]
    return torch.where(periodic[:, None, None], stress, torch.nan)
