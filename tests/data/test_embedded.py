"""The embedded ethanol set is what data/README.md says: its units by physics, its labels by computing them again."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from mlpot.units import HARTREE, KCAL_PER_MOL

PARTS = ("train", "test")
FRAMES = 1000
NUMBERS = (6, 6, 8, 1, 1, 1, 1, 1, 1)
BONDS = {"C-C": ((0, 1), 1.52), "C-O": ((1, 2), 1.42), "O-H": ((2, 3), 0.97), "C-H": ((1, 4), 1.10)}


def path_of(repository: Path, part: str) -> Path:
    return repository / "data" / f"ethanol_gfn2_500K_{part}.npz"


def arrays_of(repository: Path, part: str) -> dict[str, NDArray]:
    with np.load(path_of(repository, part), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


@pytest.fixture(params=PARTS)
def arrays(request: pytest.FixtureRequest, repository: Path) -> dict[str, NDArray]:
    return arrays_of(repository, request.param)


def test_format_is_md17s(arrays: dict[str, NDArray]) -> None:
    assert arrays["E"].shape == (FRAMES, 1)
    assert arrays["R"].shape == arrays["F"].shape == (FRAMES, 9, 3)
    assert {arrays[key].dtype for key in "ERF"} == {np.dtype("float64")}
    assert tuple(arrays["z"]) == NUMBERS
    assert all(np.isfinite(arrays[key]).all() for key in "ERF")


def test_files_are_small_and_those_of_the_readme(repository: Path) -> None:
    paths = [path_of(repository, part) for part in PARTS]
    assert sum(path.stat().st_size for path in paths) < 3_000_000
    stated = set(re.findall(r"\b[0-9a-f]{64}\b", (repository / "data" / "README.md").read_text()))
    assert {hashlib.sha256(path.read_bytes()).hexdigest() for path in paths} == stated


def test_units_by_physics(arrays: dict[str, NDArray]) -> None:
    for name, ((i, j), expected) in BONDS.items():
        length = np.linalg.norm(arrays["R"][:, i] - arrays["R"][:, j], axis=1).mean()
        assert length == pytest.approx(expected, abs=0.03), name
    energy = arrays["E"].mean() * KCAL_PER_MOL
    assert energy == pytest.approx(-11.39 * HARTREE, abs=0.02 * HARTREE)
    # Above the minimum lie half of 21 vibrations' kT: 0.45 eV, were they harmonic and classical.
    spread = arrays["E"].std() * KCAL_PER_MOL
    assert spread == pytest.approx(np.sqrt(21 / 2) * 500 * 8.617e-5, rel=0.1)


def test_forces_balance_and_the_centre_of_mass_rests(arrays: dict[str, NDArray]) -> None:
    masses = np.array([{1: 1.008, 6: 12.011, 8: 15.999}[number] for number in NUMBERS])
    np.testing.assert_allclose(np.einsum("i,fix->fx", masses / masses.sum(), arrays["R"]), 0, atol=1e-8)
    np.testing.assert_allclose(arrays["F"].sum(axis=1), 0, atol=1e-4)
    torque = np.cross(arrays["R"], arrays["F"]).sum(axis=1)
    np.testing.assert_allclose(torque, 0, atol=1e-4)


def test_no_frame_twice_and_none_in_both(repository: Path) -> None:
    """By the sorted distances, so that a turned copy of a frame counts too."""
    positions = np.concatenate([arrays_of(repository, part)["R"] for part in PARTS])
    first, second = np.triu_indices(9, 1)
    distances = np.sort(np.linalg.norm(positions[:, first] - positions[:, second], axis=2), axis=1)
    assert len(np.unique(distances.round(4), axis=0)) == 2 * FRAMES


def test_energies_of_neighbours_in_time_are_hardly_related(arrays: dict[str, NDArray]) -> None:
    energy = arrays["E"][:, 0] - arrays["E"].mean()
    correlation = (energy[1:] * energy[:-1]).mean() / energy.var()
    assert correlation < 0.5


def test_labels_are_gfn2(arrays: dict[str, NDArray]) -> None:
    tblite = pytest.importorskip("tblite.ase", reason="needs tblite (pip install mlpot[labels])")
    from ase import Atoms

    def atoms_of(positions: NDArray) -> Atoms:
        calculator = tblite.TBLite(method="GFN2-xTB", accuracy=0.01, verbosity=0)
        return Atoms(NUMBERS, positions, calculator=calculator)

    for frame in (0, 500, 999):
        atoms = atoms_of(arrays["R"][frame])
        assert atoms.get_potential_energy() == pytest.approx(arrays["E"][frame, 0] * KCAL_PER_MOL, abs=1e-6)
        np.testing.assert_allclose(atoms.get_forces(), arrays["F"][frame] * KCAL_PER_MOL, atol=1e-6)
    # The forces are the slope of the energy, along a direction that moves all atoms (Å).
    direction = np.random.default_rng(0).normal(size=(9, 3))
    ahead, behind = (atoms_of(atoms.positions + sign * 1e-4 * direction).get_potential_energy() for sign in (1, -1))
    slope = -(ahead - behind) / 2e-4
    assert slope == pytest.approx((direction * atoms.get_forces()).sum(), abs=2e-4)
