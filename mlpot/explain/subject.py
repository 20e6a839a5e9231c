"""What is explained: one number that a model gives for one molecule, as a function of the molecule and of its parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlpot.compose import ReferenceEnergies
from mlpot.errors import UserError, unknown
from mlpot.graph import AtomsGraph, collate
from mlpot.model import Model
from mlpot.potential import Potential
from mlpot.property_model import PropertyModel
from mlpot.structure import Bonds, Structure
from mlpot.target import Target


class Subject:
    """A model, a molecule, and the number in question: a target's value, the logit of a class, or the energy.

    `unit` is that of the number; logits have none. Energies are those above the free atoms, where the potential has
    reference energies: what those contribute would hide all else.
    Raises UserError for a target or class that the model does not have, naming the nearest one.
    """

    def __init__(
        self, model: Model, structure: Structure, target: str | None = None, one_class: int | None = None
    ) -> None:
        self.model, self.structure = model.eval().requires_grad_(False), structure
        self.target: Target | None = None
        self.unit, self.name = "eV", "energy above the free atoms"
        if isinstance(model, PropertyModel):
            self.target = _chosen(model, target)
            logit = self.target.is_class
            self.name, self.unit = self.target.name, "" if logit else self.target.unit
            if self.target.shape:
                raise UserError(f"target {self.name} has {self.target.shape} numbers; one number can be explained.")
        elif target not in (None, "energy"):
            raise unknown("target", str(target), ["energy"])
        self.class_number = self._class(one_class)
        model.check(self.graph(structure))

    def _class(self, wanted: int | None) -> int:
        classes = self.target.classes if self.target is not None and self.target.kind == "classes" else 0
        if not classes:
            if wanted is not None:
                raise UserError(f"--class={wanted}: {self.name} is not one of several classes.")
            return 0
        if wanted is not None and not 0 <= wanted < classes:
            raise UserError(f"--class={wanted}: {self.name} has the classes 0 to {classes - 1}.")
        if wanted is not None:
            return wanted
        assert isinstance(self.model, PropertyModel)
        with torch.no_grad():
            return int(self.model(self.graph(self.structure))[self.name][0].argmax())

    def graph(self, structure: Structure) -> AtomsGraph:
        """The graph of the molecule, or of a part of it."""
        return AtomsGraph.from_structure(structure, self.model.cutoff)

    def value(self, graph: AtomsGraph) -> Tensor:
        """The number for every structure of a graph, (S,) float64."""
        if isinstance(self.model, PropertyModel):
            assert self.target is not None
            raw = self.model(graph)
            if self.target.kind == "classes":
                return raw[self.name][:, self.class_number].to(torch.float64)
            if self.target.kind == "binary":
                return raw[self.name].to(torch.float64)
            return self.model.values(raw, graph)[self.name]
        energies = self.atom_energies(graph)
        return energies.new_zeros(graph.n_structures).index_add(0, graph.batch, energies)

    def atom_energies(self, graph: AtomsGraph) -> Tensor:
        """Of a potential, less its reference energies, (N,) float64 in eV."""
        assert isinstance(self.model, Potential)
        energies = self.model.atom_energies(graph).to(torch.float64)
        for part in self.model.modules():
            if isinstance(part, ReferenceEnergies):
                energies = energies - part.atom_energies(graph)
        return energies

    @torch.no_grad()
    def values(self, structures: Sequence[Structure], most: int = 64) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The number for each of several molecules, (n,)."""
        found = []
        for first in range(0, len(structures), most):
            graphs = [self.graph(one) for one in structures[first : first + most]]
            found.append(self.value(collate(graphs)).numpy())
        return np.concatenate(found)

    @property
    def network(self) -> Potential | None:
        """The network inside that knows atoms by features; None where there is none."""
        if isinstance(self.model, PropertyModel):
            return self.model.backbone
        found = (m for m in self.model.modules() if isinstance(m, Potential) and m.channels)
        return next(found, None)

    @contextmanager
    def embedded(self, scale: float = 1.0) -> Iterator[list[Tensor]]:
        """Within, the first features of atoms are multiplied by `scale`, and what they were then is in the list.

        UserError for a network whose first features do not come from one embedding alone.
        """
        embedding = first_features(self.network)
        if embedding is None:
            raise UserError(f"{type(self.network).__name__} has no embedding that gradients could be taken in.")
        kept: list[Tensor] = []

        def hook(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            scaled = (scale * output.detach()).requires_grad_(True)
            kept.append(scaled)
            return scaled

        handle = embedding.register_forward_hook(hook)
        try:
            yield kept
        finally:
            handle.remove()


def first_features(network: nn.Module | None) -> nn.Embedding | None:
    """The embedding that all of a network's work on atoms begins with; None where there is more than that."""
    if network is None or type(network).__module__.rpartition(".")[2] in ("painn", "mace"):
        return None  # these also look species up in the table itself
    return next((module for module in network.modules() if isinstance(module, nn.Embedding)), None)


def without(structure: Structure, atoms: Sequence[int]) -> Structure:
    """The molecule with some atoms and their bonds taken away; what the others' features say of them stays."""
    kept = np.setdiff1d(np.arange(len(structure)), np.asarray(atoms, dtype=np.int64))
    bonds = structure.bonds
    if bonds is not None:
        place = np.full(len(structure), -1)
        place[kept] = np.arange(len(kept))
        index = place[bonds.index]
        there = (index >= 0).all(axis=0)
        bonds = Bonds(index[:, there], bonds.features[there], bonds.atom_features[kept])
    return replace(structure, numbers=structure.numbers[kept], positions=structure.positions[kept], bonds=bonds)


def _chosen(model: PropertyModel, name: str | None) -> Target:
    known = {target.name: target for target in model.targets}
    if name is None:
        return model.targets[0]
    if name not in known:
        raise unknown("target", name, known)
    return known[name]
