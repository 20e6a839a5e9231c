"""The contract of every potential, and `predict`: the only place that differentiates an energy."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.model import Features, Model


class Potential(Model):
    """What a model author writes: `cutoff`, `atom_energies` and a frozen pydantic `config` (see `Model`).

    `atom_energies` must let energies and forces go to zero smoothly at the cutoff, and must not change the graph.
    A network whose features other properties can be read out of defines `features` as well, with `channels` scalars
    and `vector_channels` vectors; what nothing but the energy needs lies in submodules called `readout`.
    """

    channels: int = 0
    vector_channels: int = 0

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """Energy of each atom in eV, (N,), in the model's own dtype or float64."""
        raise NotImplementedError(f"{type(self).__name__} must define atom_energies(graph)")

    def features(self, graph: AtomsGraph) -> Features:
        """What the energies are read out of: scalars (N, `channels`), and vectors where the network has them."""
        raise UserError(f"{type(self).__name__} has no features that other properties could be read out of.")


def as_potential(model: Model, where: str = "") -> Potential:
    """The model itself, if it gives energies; UserError that names what it predicts otherwise."""
    if isinstance(model, Potential):
        return model
    names = ", ".join(target.name for target in getattr(model, "targets", ()))
    raise UserError(
        f"{where or type(model).__name__}{': this model' if where else ''} gives no energies; it predicts "
        f"{names or 'something else'}: use `mlpot predict`, or predict_properties of mlpot.property_model."
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
    model: Model, graph: AtomsGraph, *, forces: bool = True, stress: bool = False, create_graph: bool = False
) -> Prediction:
    """Energies, forces = -dE/dR and stress = dE/dε / |det cell| at symmetric strain ε, of every structure of a graph.

    With ``create_graph=True`` the results can be differentiated further, as training on forces needs; it is never
    taken from ``model.training``. Without it they are detached and no graph is kept.
    Totals are summed in float64, since float32 resolves only meV at the size of all-electron energies.
    Raises UserError for elements the model was not trained on and for a graph with too short a cutoff.
    """
    model = as_potential(model)
    model.check(graph)
    if "positions" not in model.needs:
        raise UserError(
            f"{type(model).__name__} with these settings reads bonds alone and knows no distances: it has no forces, "
            f"and is no potential. Choose edges that come from positions, or use it for properties."
        )
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
