"""The loss: masks, weights, kinds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from ase.build import bulk

import mlpot
from mlpot.data.dataset import MemoryDataset
from mlpot.data.frame import Frame
from mlpot.data.loader import Batch, Loader, collate_labels, labels_of, plan_batches
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.structure import Structure
from mlpot.train.loss import KINDS, TERMS, Term, denominators, huber, loss

WEIGHTS = {"energy": 2.0, "forces": 3.0, "stress": 5.0}


def terms(kind: str = "mse") -> dict[str, Term]:
    return {name: Term(kind, 0.01) for name in TERMS}


def water(seed: int = 0) -> Structure:
    random = np.random.default_rng(seed)
    positions = np.array([[0.0, 0.0, 0.0], [0.96, 0.0, 0.0], [-0.24, 0.93, 0.0]]) + random.normal(
        scale=0.05, size=(3, 3)
    )
    return Structure.of([8, 1, 1], positions)


def copper() -> Structure:
    atoms = bulk("Cu", a=3.6)
    return Structure.of(atoms.numbers, atoms.positions, atoms.cell.array, True)


def batch_of(*frames: Frame) -> Batch:
    graphs = AtomsGraph.from_structure([frame.structure for frame in frames], 4.0)
    return Batch(graphs, collate_labels([labels_of(frame, k) for k, frame in enumerate(frames)]))


def network() -> mlpot.Potential:
    torch.manual_seed(0)
    return mlpot.models.build("schnet", channels=8, cutoff=4.0, n_basis=6, n_interactions=2).double()


def gradient(model: mlpot.Potential, batch: Batch, kind: str = "mse", **weights: float) -> tuple[float, torch.Tensor]:
    model.zero_grad()
    out = mlpot.predict(model, batch.graph, forces=True, stress=True, create_graph=True)
    value, _ = loss(out, batch, terms(kind), {**WEIGHTS, **weights})
    value.backward()
    return float(value), torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])


FULL = Frame(copper(), -3.0, np.zeros((1, 3)), 0.01 * np.eye(3))
NO_STRESS = Frame(water(1), -14.0, np.ones((3, 3)))
NO_ENERGY = Frame(water(2), None, np.ones((3, 3)))
NO_FORCES = Frame(water(3), -14.0)


def test_frames_with_missing_labels_give_finite_gradients() -> None:
    value, grad = gradient(network(), batch_of(FULL, NO_STRESS, NO_ENERGY, NO_FORCES))
    assert np.isfinite(value)
    assert torch.isfinite(grad).all()


def test_a_missing_label_does_not_change_its_term() -> None:
    model = network()
    only = {"energy": 0.0, "stress": 0.0}
    _, alone = gradient(model, batch_of(NO_STRESS), **only)
    _, beside = gradient(model, batch_of(NO_STRESS, NO_FORCES), **only)
    torch.testing.assert_close(beside, alone, rtol=1e-10, atol=1e-12)


def test_values_under_a_mask_do_not_matter() -> None:
    model = network()
    batch = batch_of(FULL, NO_STRESS, NO_ENERGY, NO_FORCES)
    labels = batch.labels
    spoilt = replace(
        labels,
        energy=torch.where(labels.has_energy, labels.energy, 1e9),
        forces=torch.where(labels.has_forces[batch.graph.batch][:, None], labels.forces, 1e9),
        stress=torch.where(labels.has_stress[:, None, None], labels.stress, 1e9),
    )
    expected, actual = gradient(model, batch), gradient(model, Batch(batch.graph, spoilt))
    assert actual[0] == expected[0]
    torch.testing.assert_close(actual[1], expected[1], rtol=0, atol=0)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_frame_of_weight_zero_is_as_if_it_were_not_there(kind: str) -> None:
    model = network()
    wrong = Frame(water(5), 1e5, 1e3 * np.ones((3, 3)), weight=0.0)
    expected, actual = gradient(model, batch_of(NO_STRESS), kind), gradient(model, batch_of(NO_STRESS, wrong), kind)
    assert actual[0] == pytest.approx(expected[0], rel=1e-12)
    torch.testing.assert_close(actual[1], expected[1], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_doubling_all_weights_leaves_the_loss(kind: str) -> None:
    model = network()
    twice = [replace(frame, weight=2.0) for frame in (FULL, NO_STRESS)]
    assert gradient(model, batch_of(*twice), kind)[0] == pytest.approx(
        gradient(model, batch_of(FULL, NO_STRESS), kind)[0]
    )


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_degenerate_geometries_give_finite_gradients(kind: str) -> None:
    lone = Structure.of([8, 1, 1, 2], np.vstack([water().positions, [20.0, 0.0, 0.0]]))
    nitrogen = Structure.of([7, 7], [[0.0, 0.0, 0.0], [0.0, 0.0, 1.1]])
    frames = [Frame(lone, -14.0, np.zeros((4, 3))), FULL, Frame(nitrogen, -10.0, np.zeros((2, 3)))]
    value, grad = gradient(network(), batch_of(*frames), kind)
    assert np.isfinite(value)
    assert torch.isfinite(grad).all()


def test_parts_of_a_batch_add_up_to_its_loss() -> None:
    model = network()
    whole = batch_of(FULL, NO_STRESS, NO_ENERGY, NO_FORCES)
    total = denominators(whole.labels, whole.graph.batch)
    out = mlpot.predict(model, whole.graph, stress=True)
    expected, _ = loss(out, whole, terms(), WEIGHTS)
    parts = [batch_of(FULL, NO_STRESS), batch_of(NO_ENERGY, NO_FORCES)]
    pieces = [loss(mlpot.predict(model, part.graph, stress=True), part, terms(), WEIGHTS, total)[0] for part in parts]
    assert float(sum(pieces)) == pytest.approx(float(expected), rel=1e-12)


def test_values_of_the_kinds() -> None:
    error = torch.tensor([-0.5, 0.001, 2.0])
    assert KINDS["mse"](error, 0.0).tolist() == pytest.approx([0.25, 1e-6, 4.0])
    assert KINDS["mae"](error, 0.0).tolist() == pytest.approx([0.5, 0.001, 2.0])
    assert huber(error, 0.01).tolist() == pytest.approx([0.495, 5e-5, 1.995])


def test_energy_is_per_atom() -> None:
    batch = batch_of(Frame(water(), -14.0))
    out = mlpot.Prediction(torch.tensor([-11.0], dtype=torch.float64), torch.zeros(3, dtype=torch.float64))
    value, _ = loss(out, batch, {"energy": Term("mse", 0.0)}, WEIGHTS)
    assert float(value) == pytest.approx(2.0)  # weight 2, (3 eV / 3 atoms)²
    value, _ = loss(out, batch, {"energy": Term("mse", 0.0, per_atom=False)}, WEIGHTS)
    assert float(value) == pytest.approx(18.0)


def test_a_stress_stored_for_a_molecule_is_no_label() -> None:
    labels = labels_of(Frame(water(), -14.0, None, np.zeros((3, 3))), 0)
    assert not labels.has_stress.item()


def test_every_frame_is_in_one_batch() -> None:
    order = np.random.default_rng(0).permutation(19)
    for plan in (
        plan_batches(order, 10),
        plan_batches(order, 100),
        plan_batches(order, None, np.arange(19) % 5 + 1, 7),
        plan_batches(order, None, np.full(19, 100), 7),
    ):
        assert sorted(np.concatenate(plan).tolist()) == list(range(19))
    sizes = np.arange(19) % 5 + 1
    assert max(sizes[batch].sum() for batch in plan_batches(order, None, sizes, 7)) <= 7
    with pytest.raises(UserError, match="batch_size is 0"):
        plan_batches(order, 0)


def test_the_loader_collates_what_it_cached() -> None:
    frames = [NO_STRESS, FULL, NO_ENERGY]
    cached, fresh = Loader(MemoryDataset(frames), 4.0), Loader(MemoryDataset(frames), 4.0, cache_bytes=0)
    for _ in range(2):
        a, b = cached.batch([2, 0, 1]), fresh.batch([2, 0, 1])
        torch.testing.assert_close(a.graph.edge_vectors(), b.graph.edge_vectors())
        for x, y in zip(a.graph.pairs, b.graph.pairs, strict=True):
            assert torch.equal(x, y)
        assert a.labels.index.tolist() == [2, 0, 1]
    whole = AtomsGraph.from_structure([frames[k].structure for k in (2, 0, 1)], 4.0)
    model = network()
    torch.testing.assert_close(mlpot.predict(model, a.graph).forces, mlpot.predict(model, whole).forces)
