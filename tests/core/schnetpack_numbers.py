"""What the comparisons with schnetpack share: its stored weights, and its numbers beside ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mlpot import AtomsGraph, models, predict
from mlpot.structure import Structure

SYSTEMS = ["ethanol", "nacl_cubic", "nacl_primitive"]


class Stored:
    """The content of one of tests/reference/*_schnetpack.json."""

    def __init__(self, content):
        self.config, self.weights, self.systems = content["config"], content["weights"], content["systems"]

    def build(self, name):
        """Our model of the same sizes, float64."""
        config = self.config
        return models.build(
            name,
            channels=config["channels"],
            n_basis=config["n_rbf"],
            n_interactions=config["interactions"],
            cutoff=config["cutoff"],
        ).double()

    def weight(self, name):
        return torch.tensor(self.weights[name], dtype=torch.float64)

    def fill_ends(self, state):
        """The embedding and the readout, which both models have."""
        for number, row in self.weights["representation.embedding.weight"].items():
            state["embedding.weight"][int(number)] = torch.tensor(row, dtype=torch.float64)
        self.fill_layers(state, "readout", "output_modules.0.outnet")

    def fill_layers(self, state, ours, theirs):
        """Two linear layers with an activation between them, which is a module here and part of the layer there."""
        for k, place in enumerate((0, 2)):
            for kind in ("weight", "bias"):
                state[f"{ours}.{place}.{kind}"] = self.weight(f"{theirs}.{k}.{kind}")

    def compare(self, name, model):
        """Energy, atoms' energies, forces and stress of one system."""
        system = self.systems[name]
        structure = Structure.of(system["numbers"], system["positions"], system["cell"], system["pbc"])
        graph = AtomsGraph.from_structure(structure, model.cutoff)
        out = predict(model, graph, stress=True)
        assert graph.n_edges == system["n_edges"]
        assert float(out.energy) == pytest.approx(system["energy"], abs=1e-10)
        assert np.allclose(out.atom_energies, system["atom_energies"], rtol=0, atol=1e-10)
        assert np.allclose(out.forces, system["forces"], rtol=0, atol=1e-9)
        if "stress" in system:
            assert np.allclose(out.stress[0], system["stress"], rtol=0, atol=1e-9)
        else:
            assert bool(out.stress.isnan().all())
