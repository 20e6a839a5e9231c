"""Recordings: what is played again is what the model answers, for every model, wherever the atoms are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from ase import Atoms, units
from ase.build import bulk, molecule
from ase.md.verlet import VelocityVerlet

import mlpot
from mlpot import models
from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, predict
from mlpot.recording import AFTER, MOST_EDGES, NotRecordableError, Player, Recording, record

CUTOFF = 4.0


def model_of(name: str, dtype: torch.dtype) -> Potential:
    torch.manual_seed(1)
    settings = {"cutoff": CUTOFF} if "cutoff" in models.config_class(name).model_fields else {}
    return models.build(name, **settings).to(dtype).eval()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", models.names())
def test_every_model_is_recorded(name: str, dtype: torch.dtype) -> None:
    model = model_of(name, dtype)
    ethanol, silicon = molecule("CH3CH2OH"), bulk("Si", cubic=True)
    tolerance = {"rtol": 0.0, "atol": 1e-10 if dtype == torch.float64 else 2e-4}
    for atoms, stress in ((ethanol, False), (silicon, True)):
        graph = AtomsGraph.from_ase(atoms, model.cutoff)
        play = Recording(model, graph, forces=True, stress=stress)
        random = torch.Generator().manual_seed(2)
        for _ in range(3):
            shift = 0.1 * torch.randn(graph.positions.shape, generator=random, dtype=torch.float64)
            strain = 0.02 * torch.randn(3, 3, generator=random, dtype=torch.float64)
            moved = graph.moved(graph.positions + shift, graph.cell + graph.cell @ strain)
            expected, found = predict(model, moved, stress=stress), play(moved)
            for ours, theirs in zip(found, expected, strict=True):
                assert (ours is None) == (theirs is None)
                if ours is not None and theirs is not None:
                    assert ours.dtype == theirs.dtype
                    torch.testing.assert_close(ours, theirs, **tolerance)


def test_a_constant_that_is_written_to_is_as_it_was_each_time() -> None:
    table = torch.ones(3)

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        total = table.clone()
        total.add_(x)
        total[1] = 5.0 * x[0]
        return [total]

    play = record(function, torch.zeros(3))
    for value in (1.0, 2.0, 2.0):
        torch.testing.assert_close(play(torch.full((3,), value))[0], torch.tensor([1.0 + value, 5 * value, 1 + value]))


def test_what_depends_on_a_value_is_not_recorded() -> None:
    with pytest.raises(NotRecordableError):
        record(lambda x: [x * float(x.sum())], torch.ones(3))
    with pytest.raises(NotRecordableError):
        record(lambda x: [x[x > 0]], torch.ones(3))
    buffer = torch.zeros(4)

    def into_a_part(x: torch.Tensor) -> list[torch.Tensor]:
        buffer[:2].add_(x)
        return [buffer]

    with pytest.raises(NotRecordableError, match="part of a constant"):
        record(into_a_part, torch.ones(2))


class Stepwise(Potential):
    """An energy that takes another way beyond a distance: it cannot be recorded."""

    cutoff = 5.0

    def atom_energies(self, graph: AtomsGraph) -> torch.Tensor:
        d = graph.edge_vectors().norm(dim=1).sum()
        return graph.positions.new_ones(graph.n_atoms) * (d if float(d) > 1.0 else 2 * d)


def test_a_player_leaves_alone_what_it_cannot_record() -> None:
    model = Stepwise()
    graph = AtomsGraph.from_ase(molecule("H2O"), 5.0)
    player = Player(model)
    for _ in range(AFTER + 3):
        moved = graph.moved(graph.positions + 0.01)
        torch.testing.assert_close(player(moved, forces=True, stress=False).forces, predict(model, moved).forces)
    assert not player.recordable


def test_many_edges_are_not_recorded() -> None:
    model = model_of("schnet", torch.float32)
    graph = AtomsGraph.from_ase(bulk("Si", cubic=True) * (3, 3, 3), CUTOFF)
    assert graph.n_edges > MOST_EDGES
    player = Player(model)
    for _ in range(AFTER + 2):
        player(graph, forces=True, stress=False)
    assert not player._recordings


def trajectory(calculator: mlpot.Calculator, steps: int) -> Atoms:
    atoms = molecule("CH3CH2OH")
    atoms.calc = calculator
    random = np.random.default_rng(0)
    atoms.set_momenta(random.normal(scale=1.0, size=(9, 3)))
    VelocityVerlet(atoms, 0.5 * units.fs).run(steps)
    return atoms


def test_dynamics_by_a_recording_are_those_of_the_model() -> None:
    model = model_of("painn", torch.float64)
    played = mlpot.Calculator(model)
    plain = mlpot.Calculator(model)
    plain._player.recordable = False
    a, b = trajectory(played, 60), trajectory(plain, 60)
    assert played._player._recordings
    assert not plain._player._recordings
    np.testing.assert_allclose(a.positions, b.positions, atol=1e-9)
    assert a.get_potential_energy() == pytest.approx(b.get_potential_energy(), abs=1e-9)


def test_another_molecule_gets_a_recording_of_its_own() -> None:
    model = model_of("schnet", torch.float64)
    calculator = mlpot.Calculator(model)
    for atoms in (molecule("H2O"), molecule("CH4"), molecule("H2O")):
        atoms.calc = calculator
        for _ in range(AFTER + 3):
            atoms.rattle(0.01)
            forces = atoms.get_forces()
        expected = predict(model, AtomsGraph.from_ase(atoms, CUTOFF)).forces
        assert expected is not None
        np.testing.assert_allclose(forces, expected.numpy(), atol=1e-10)
