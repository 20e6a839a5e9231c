"""Going on from a trained model: another level of theory is a shift, features serve other properties."""

from __future__ import annotations

from pathlib import Path

import ase.io
import numpy as np
import pytest
import torch

import mlpot
from mlpot import checkpoint, models
from mlpot.compose import ReferenceEnergies, Scaled, Sum
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.property_model import PropertyModel, build
from mlpot.train.config import apply_overrides, resolve
from mlpot.train.run import read_run, train
from mlpot.train.setup import prepare
from tests.train.conftest import cluster


def trained(folder: Path) -> Path:
    torch.manual_seed(1)
    network = models.build("painn", cutoff=5.0, channels=8, n_interactions=1)
    potential = Sum([Scaled([network], scale=0.5), ReferenceEnergies(energies={18: -3.0, 2: -1.0})])
    checkpoint.save(folder / "start.mlpot", potential)
    return folder / "start.mlpot"


def labelled_by(path: Path, folder: Path, shift: float) -> Path:
    """Clusters with the energies of a potential, shifted by so much an atom, and its forces."""
    from ase.calculators.singlepoint import SinglePointCalculator

    frames = [cluster(k, 4 + k % 3) for k in range(12)]
    for atoms in frames:
        atoms.calc = mlpot.Calculator(str(path))
        energy, forces = atoms.get_potential_energy(), atoms.get_forces()
        atoms.calc = SinglePointCalculator(atoms, energy=energy + shift * len(atoms), forces=forces)
    ase.io.write(folder / "labelled.xyz", frames)
    return folder / "labelled.xyz"


def settings(data: Path, *overrides: str) -> object:
    return resolve(apply_overrides({"data": {"train": str(data)}, "threads": 1}, overrides), "test")


def test_another_level_of_theory_is_a_shift_by_element(tmp_path: Path) -> None:
    start = trained(tmp_path)
    data = labelled_by(start, tmp_path, -7.25)
    prepared = prepare(settings(data, f"model.start={start}", "epochs=1"))  # type: ignore[arg-type]
    graph = AtomsGraph.from_ase(ase.io.read(data, ":"), 5.0)
    out = mlpot.predict(prepared.potential, graph)
    energies = [atoms.get_potential_energy() for atoms in ase.io.read(data, ":")]
    np.testing.assert_allclose(out.energy, energies, atol=2e-4)
    assert prepared.potential.elements == (18,)
    assert any("Ar -7.25" in note for note in prepared.notes)
    assert all(p.requires_grad for p in prepared.potential.parameters())


def test_a_fine_tuned_run_is_resumed_to_the_bit(tmp_path: Path) -> None:
    start = trained(tmp_path)
    data = labelled_by(start, tmp_path, 1.0)
    whole = train(settings(data, f"model.start={start}", "epochs=3", f"out={tmp_path / 'a'}"), lambda _: None)  # type: ignore[arg-type]
    short = settings(data, f"model.start={start}", "epochs=3", f"out={tmp_path / 'b'}")
    train(short, lambda _: None)  # type: ignore[arg-type]
    again = train(read_run(tmp_path / "b"), lambda _: None, resume=True)
    for (name, a), (_, b) in zip(
        whole.potential.state_dict().items(), again.potential.state_dict().items(), strict=True
    ):
        assert torch.equal(a, b), name


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    start = trained(tmp_path)
    data = labelled_by(start, tmp_path, 0.0)
    with pytest.raises(UserError, match=r"leave out model\.channels"):
        prepare(settings(data, f"model.start={start}", "model.channels=4"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"leave out model\.name"):
        prepare(settings(data, f"model.start={start}", "model.name=mace"))  # type: ignore[arg-type]
    narrow = models.build("painn", cutoff=5.0, channels=8)
    narrow.restrict_to([1, 8])
    checkpoint.save(tmp_path / "narrow.mlpot", narrow)
    with pytest.raises(UserError, match="does not know Ar"):
        prepare(settings(data, f"model.start={tmp_path / 'narrow.mlpot'}"))  # type: ignore[arg-type]
    checkpoint.save(tmp_path / "gap.mlpot", build("painn", [{"name": "gap"}], channels=8))
    with pytest.raises(UserError, match="gives no energies"):
        prepare(settings(data, f"model.start={tmp_path / 'gap.mlpot'}"))  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"no such|does not exist"):
        prepare(settings(data, f"model.start={tmp_path / 'none.mlpot'}"))  # type: ignore[arg-type]
    assert isinstance(mlpot.load(tmp_path / "gap.mlpot"), PropertyModel)
