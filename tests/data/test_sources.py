"""Every published file is read right, against numbers taken from the raw files, or refused with the reason."""
# ruff: noqa: E501 (one line a file in the table)

from __future__ import annotations

import gzip
import re
import warnings
from pathlib import Path

import ase.io
import h5py
import numpy as np
import pytest
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator

from mlpot.data.opening import formats, open_dataset, read_structures
from mlpot.data.options import ReadOptions
from mlpot.errors import PhysicsWarning, UserError

# CODATA 2014, typed here again on purpose: a golden value must not come from the code under test.
HARTREE, BOHR, KCAL, KJ, GPA = 27.211386024, 0.52917721056, 0.0433641039, 0.01036426957, 0.00624150912
REF = {"energy": "REF_energy", "forces": "REF_forces", "stress": "REF_stress"}
DFT = {"energy": "dft_energy", "forces": "dft_forces", "stress": "dft_stress"}
EV = {"units": {"energy": "eV"}}

# file -> options, frames, frames with energy, forces, stress, energy (eV) of frame 0, force (eV/Å) on its atom 0
FILES: dict[str, tuple[dict, int, tuple[int, int, int], float | None, list[float] | None]] = {
    "3bpa/iso_atoms.xyz": ({}, 4, (4, 0, 0), -1029.4889999855063, None),
    "3bpa/train_300K.xyz": ({}, 500, (500, 500, 0), -17660.461737861464, [0.17092934, 0.13274200, 0.79555789]),
    "acac/isolated_atoms.xyz": ({}, 3, (3, 0, 0), None, None),
    "acac/test_MD_300K.xyz": ({}, 650, (650, 650, 0), None, None),
    "acac/train_300K.xyz": ({}, 500, (500, 500, 0), -9391.45554428476, [1.47339228, 1.13796366, 0.06391102]),
    "alexandria/alexandria-random-1k.xyz": ({}, 1000, (1000, 1000, 1000), -17.52450881, [0, 0, 0]),
    "ani/ani1x_n5.hdf5": ({}, 8, (8, 8, 0), -559.9673266512569 * HARTREE, [0.01657831 * HARTREE, 0.00208556 * HARTREE, 0.00961986 * HARTREE]),
    "boron/B_DFT_data.xyz": ({"keys": REF}, 39, (39, 39, 30), None, None),
    "carbon/carbon_reduced_100.xyz": ({"keys": {"forces": "force", "virial": "virial"}}, 100, (100, 100, 100), -632.106478, [1.84408021, 1.20057170, -0.34951743]),
    "ethanol_botnet/isolated_atoms.xyz": ({}, 4, (4, 0, 0), None, None),
    "ethanol_botnet/test_MD.xyz": ({}, 1000, (1000, 1000, 0), None, None),
    "ethanol_botnet/train.xyz": ({}, 1000, (1000, 1000, 0), None, None),
    "md17/ethanol_ccsd_t-train.npz": ({}, 1000, (1000, 1000, 0), None, None),
    "md17/ethanol_reduced_100.xyz": ({}, 100, (100, 100, 0), None, None),
    "md17/md17_ethanol_dft_first2000.npz": ({}, 2000, (2000, 2000, 0), None, None),
    "mof_janus/mlip_test.xyz": ({"keys": DFT}, 1, (1, 1, 1), None, None),
    "mof_janus/mlip_train.xyz": ({"keys": DFT}, 22, (22, 22, 18), -842.13121459, [0.29812259, 0.31641841, -0.08193909]),
    "mof_janus/mlip_valid.xyz": ({"keys": DFT}, 1, (1, 1, 1), None, None),
    "mptrj/10_mptraj_systems.db": ({}, 10, (10, 10, 10), None, None),
    "mptrj/mptrj-random-1k.xyz": ({}, 1000, (1000, 1000, 1000), -28.75765745, [-0.00426214, 0, -0.01015544]),
    "oc20_like/oxides.db": ({}, 295, (295, 295, 0), None, None),
    "oc20_like/toy_c3h8_relax.extxyz": ({}, 101, (101, 101, 0), 15.804699620277187, [-0.00001079, -0.00000380, 0.11356054]),
    "odd/dpdata_energy_hartree.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 0), -0.5 * HARTREE, [0.01 * HARTREE / BOHR, 0.02 * HARTREE / BOHR, 0.03 * HARTREE / BOHR]),
    "odd/dpdata_energy_kcal_mol.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 0), -10 * KCAL, [KCAL, 2 * KCAL, 3 * KCAL]),
    "odd/dpdata_energy_key_variants.xyz": ({"keys": {"energy": "Energy", "forces": "force"}}, 1, (1, 1, 0), -1.5, [0.1, 0, 0]),
    "odd/dpdata_forces_key.xyz": ({}, 1, (1, 1, 0), -1.5, [0.1, 0, 0]),
    "odd/dpdata_nopbc.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 0), -1.5, [0.1, 0, 0]),
    "odd/dpdata_pbc_false.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 0), -1.5, [0.1, 0, 0]),
    "odd/dpdata_stress_gpa.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 1), -3.0, [0.1, 0.2, 0.3]),
    "odd/dpdata_stress_kbar.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 1), -3.0, [0.1, 0.2, 0.3]),
    "odd/dpdata_stress_only.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 1), -1.5, [0.1, 0, 0]),
    "odd/dpdata_stress_voigt.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 1), -1.5, [0.1, 0, 0]),
    "odd/dpdata_stresses_key.xyz": ({"keys": {"forces": "force", "stress": "stresses"}}, 1, (1, 1, 1), -1.5, [0.1, 0, 0]),
    "odd/dpdata_unknown_props.xyz": ({"keys": {"forces": "force"}}, 1, (1, 1, 0), -1.5, [0.1, 0, 0]),
    "odd/dpdata_virial_hartree.xyz": ({"keys": {"forces": "force", "virial": "virial"}}, 1, (1, 1, 1), -HARTREE, [0.01 * HARTREE / BOHR, 0.02 * HARTREE / BOHR, 0.03 * HARTREE / BOHR]),
    "odd/dpdata_virials_key.xyz": ({"keys": {"forces": "force", "virial": "virials"}}, 1, (1, 1, 1), -1.5, [0.1, 0, 0]),
    "odd/graphpes_Cu_test.xyz": ({}, 10, (10, 10, 10), -28.79358018, [0, 0, -0.006178]),
    "odd/hfo2.extxyz": ({}, 2, (2, 2, 2), -347.81221934, [-0.05978600, 0.15122200, -0.08519600]),
    "odd/janus_NaCl-set.xyz": ({"keys": DFT}, 11, (11, 11, 11), -21.27061945, [0, 0, 0]),
    "qm9/qm9_dataset_v1.1_ntc_10.hdf5": ({"keys": {"energy": "internal_energy_at_0K"}}, 10, (10, 0, 0), None, None),
    "qm9/qm9_reduced_100.xyz": ({"keys": {"energy": "U0"}, "units": {"energy": "Hartree"}}, 100, (100, 0, 0), -40.47893 * HARTREE, None),
    "qm9/schnetpack_test_qm9.db": ({"keys": {"energy": "energy_U0"}}, 20, (20, 0, 0), -40.47893 * HARTREE, None),
    "solids_mlff/test_solid.npz": (EV, 50, (50, 50, 0), None, None),
    "solvent_xtb/solvent_test.xyz": ({}, 200, (200, 200, 0), None, None),
    "solvent_xtb/solvent_train.xyz": ({}, 203, (203, 203, 0), -10.707211383396714, [0, 0, 0]),
    "spice/SPICE-1.1.4_n2.hdf5": ({}, 55, (55, 55, 0), -370.43397424571714 * HARTREE, [0.00179922 * HARTREE / BOHR, -0.03140596 * HARTREE / BOHR, 0.01925333 * HARTREE / BOHR]),
    "water_mattersim/high_level_water.xyz": ({}, 10, (10, 10, 0), -30011.49340274, [-1.64291447, -4.57499559, -4.29338264]),
}  # fmt: skip
# Structures of one of our formats that carry no label: refused for training, read otherwise.
UNLABELLED = {
    "odd/carbon_allotropes.xyz": 30,
    "odd/janus_isomer.xyz": 1,
    "odd/tight_cell.xyz": 1,
    "qm7x/qm7x_reduced_100.xyz": 100,
    "solids_mlff/multi_sized_solids.npz": 50,
    **{f"qm9/outliers/dsgdb9nsd_{n}.xyz": 1 for n in ("000006", "049432", "123126", "133848", "133857")},
}
# What others must be called in the message.
LOOKS = {
    "cu2s_n2p2/input.data": "RuNNer",
    "water_n2p2/input.data": "RuNNer",
    "mlearn/Cu_test.json": "mlearn",
    "water_deepmd/data_0/set.000/coord.npy": "DeePMD",
    "water_deepmd/data_0/type.raw": "DeePMD",
    "odd/Li.cif": "CIF",
    "odd/POSCAR": "VASP",
    "odd/OUTCAR.ch4.1step": "OUTCAR",
    "odd/dump.tatb": "LAMMPS dump",
    "odd/li_minimal.data": "LAMMPS data",
    "odd/gdb9_small.sdf": "gdb9_small.sdf.csv in the same folder",
    "screening/delaney-processed.csv": "SMILES",
    "qm9/qm9pack_every33rd.csv.gz": "gzip",
}


def opened(path: Path, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", PhysicsWarning)
        return open_dataset(path, ReadOptions(**options))


@pytest.mark.parametrize("name", FILES)
def test_published_file(shared: Path, name: str) -> None:
    options, n, counts, energy, force = FILES[name]
    data = opened(shared / "data" / name, **options)
    assert len(data) == n
    assert tuple(data.counts().values()) == counts
    assert len(data.n_atoms()) == n
    assert data.n_atoms()[-1] == len(data[n - 1].structure)
    if energy is not None:
        assert data[0].energy == pytest.approx(energy, rel=1e-8)
    if force is not None:
        np.testing.assert_allclose(data[0].forces[0], force, rtol=1e-6, atol=5e-7)


def test_every_other_file_is_refused_with_the_reason(shared: Path) -> None:
    refused = 0
    for path in sorted((shared / "data").rglob("*")):
        name = path.relative_to(shared / "data").as_posix()
        if not path.is_file() or name in FILES:
            continue
        if (
            name.startswith(("qm9/raw/", "qm9/qm9pack", "screening/")) or name == "qm9/qm9_mini.sdf"
        ):  # properties, not energies and forces
            assert open_dataset(path).targets, name
            continue
        with pytest.raises(UserError) as error:
            open_dataset(path)
        message = str(error.value)
        assert path.name in message, name
        if name in UNLABELLED:
            assert "no labels found" in message, name
            assert len(open_dataset(path, require_labels=False)) == UNLABELLED[name]
        elif name != "odd/gdb9_small.sdf":
            assert all(known in message for known in formats()), name
        assert LOOKS.get(name, "") in message, name
        refused += 1
    assert refused >= 70


@pytest.mark.parametrize("name", [n for n in FILES if n.endswith("xyz") and FILES[n][0] == {}])
def test_extxyz_agrees_with_ase(shared: Path, name: str) -> None:
    """ASE's own reader is the oracle where it reads the labels at all."""
    path = shared / "data" / name
    frames = opened(path, index=":40")
    for frame, atoms in zip(frames, ase.io.read(path, ":40"), strict=False):
        results, s = atoms.calc.results, frame.structure
        assert frame.energy == results["energy"]
        np.testing.assert_array_equal(s.numbers, atoms.numbers)
        np.testing.assert_array_equal(s.positions, atoms.positions)
        np.testing.assert_array_equal(s.cell, atoms.cell.array)
        np.testing.assert_array_equal(s.pbc, atoms.pbc)
        assert frame.has("forces") == ("forces" in results)
        assert frame.has("stress") == ("stress" in results)
        if frame.forces is not None:
            np.testing.assert_array_equal(frame.forces, results["forces"])
        if frame.stress is not None:
            np.testing.assert_allclose(frame.stress, atoms.get_stress(voigt=False), atol=1e-12)
        assert frame.config_type == atoms.info.get("config_type", "")


def test_md17_is_kcal_per_mol_converted_once(shared: Path) -> None:
    path = shared / "data/md17/ethanol_ccsd_t-train.npz"
    raw = np.load(path)
    data = opened(path)
    assert data[7].energy == pytest.approx(float(raw["E"][7, 0]) * KCAL, rel=1e-8)
    np.testing.assert_allclose(data[7].forces, raw["F"][7] * KCAL, rtol=1e-7)
    np.testing.assert_array_equal(data[7].structure.positions, raw["R"][7])
    assert any("kcal/mol -> eV" in note for note in data.notes)
    assert any("CCSD(T)" in note for note in data.notes)
    # The user's word goes before the convention, and forces follow it.
    said = opened(path, units={"energy": "eV"})
    assert said[7].energy == float(raw["E"][7, 0])
    np.testing.assert_array_equal(said[7].forces, raw["F"][7])


def test_rmd17_names(tmp_path: Path) -> None:
    """D03: an npz made of Lennard-Jones numbers in kcal/mol; energies and forces stay consistent."""
    generator = np.random.default_rng(0)
    start = generator.normal(size=(9, 3)) * 3
    coords = np.array([start, start + 1e-4 * generator.normal(size=(9, 3)), start])

    def energy_and_forces(places: np.ndarray) -> tuple[float, np.ndarray]:
        gaps = places[:, None] - places[None]
        distance = np.linalg.norm(gaps, axis=-1) + np.eye(9)
        off = 1 - np.eye(9)
        slope = (-12 * distance**-13 + 6 * distance**-7) * off
        return 0.5 * ((distance**-12 - distance**-6) * off).sum(), -((slope / distance)[..., None] * gaps).sum(1)

    values = [energy_and_forces(place) for place in coords]
    energies, forces = np.array([e for e, _ in values]), np.array([f for _, f in values])
    np.savez(tmp_path / "r.npz", nuclear_charges=np.full(9, 18), coords=coords, energies=energies, forces=forces)
    a, b = opened(tmp_path / "r.npz")[0], opened(tmp_path / "r.npz")[1]
    assert a.energy == pytest.approx(energies[0] * KCAL, rel=1e-8)
    work = (0.5 * (a.forces + b.forces) * (b.structure.positions - a.structure.positions)).sum()
    assert work == pytest.approx(a.energy - b.energy, rel=1e-4)


def test_periodic_and_padded_npz(shared: Path) -> None:
    folder = shared / "data/solids_mlff"
    with pytest.raises(UserError, match=r"unit_cell.*units\.energy=eV"):
        open_dataset(folder / "test_solid.npz")
    raw = np.load(folder / "test_solid.npz")
    frame = opened(folder / "test_solid.npz", **EV)[3]
    assert frame.energy == float(raw["E"][3, 0])
    np.testing.assert_array_equal(frame.forces, raw["F"][3])
    np.testing.assert_array_equal(frame.structure.cell, raw["unit_cell"][3])
    assert frame.structure.pbc.all()
    padded = np.load(folder / "multi_sized_solids.npz")
    data = open_dataset(folder / "multi_sized_solids.npz", require_labels=False)
    np.testing.assert_array_equal(data.n_atoms(), padded["node_mask"].sum(1))
    for k in range(50):
        np.testing.assert_array_equal(data[k].structure.pbc, padded["pbc"][k])


def test_padded_energies_without_units_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "s.npz"
    base = {"z": np.array([1, 8]), "R": np.arange(6.0).reshape(1, 2, 3), "unit_cell": 9 * np.eye(3)}
    np.savez(path, energies=np.ones(1), **base)
    with pytest.raises(UserError, match="unit_cell"):
        open_dataset(path)
    np.savez(path, E=np.ones(1), **base)
    frame = opened(path, units={"energy": "Hartree", "length": "Bohr"})[0]
    np.testing.assert_allclose(frame.structure.cell, 9 * BOHR * np.eye(3), rtol=1e-8)  # one cell for all frames


def test_ani_levels_of_theory_and_missing_energies(shared: Path, tmp_path: Path) -> None:
    path = shared / "data/ani/ani1x_n5.hdf5"
    with h5py.File(path) as file:
        energies = {name: group["ccsd(t)_cbs.energy"][()] for name, group in file.items()}
    data = opened(path, keys={"energy": "ccsd(t)_cbs.energy"})
    assert len(data) == sum(np.isfinite(e).sum() for e in energies.values())
    assert data.counts()["forces"] == 0  # the forces of another level are not taken
    with pytest.raises(UserError, match="different levels"):
        open_dataset(path, ReadOptions(keys={"energy": "hf_dz.energy", "forces": "wb97x_dz.forces"}))
    with pytest.raises(UserError, match=r'Did you mean "hf_dz\.energy"'):
        open_dataset(path, ReadOptions(keys={"energy": "hf_dz.energi"}))
    with h5py.File(tmp_path / "ani1.h5", "w") as file:
        group = file.create_group("gdb11_s01/gdb11_s01-0")
        group["species"] = np.array([b"C", b"H", b"H", b"H", b"H"])
        group["coordinates"] = np.random.default_rng(0).normal(size=(3, 5, 3))
        group["energies"] = np.array([-40.5, np.nan, -40.3])
    data = opened(tmp_path / "ani1.h5")
    assert [frame.energy for frame in data] == pytest.approx([-40.5 * HARTREE, -40.3 * HARTREE], rel=1e-8)
    assert any("left out" in note for note in data.notes)


def test_spice_geometry_is_in_bohr_and_the_gradient_is_minus_the_force(shared: Path) -> None:
    path = shared / "data/spice/SPICE-1.1.4_n2.hdf5"
    with h5py.File(path) as file:
        group = file["103147721"]
        places, gradient = group["conformations"][4], group["dft_total_gradient"][4]
    frame = opened(path)[4]
    np.testing.assert_allclose(frame.structure.positions, places.astype(float) * BOHR, rtol=1e-8)
    np.testing.assert_allclose(frame.forces, -gradient.astype(float) * HARTREE / BOHR, rtol=1e-8)
    assert frame.info["molecule"] == "103147721"


def test_modelforge_states_its_units(shared: Path) -> None:
    path = shared / "data/qm9/qm9_dataset_v1.1_ntc_10.hdf5"
    with h5py.File(path) as file:
        raw = file["dsgdb9nsd_000001"]["internal_energy_at_0K"][0, 0]
    frame = opened(path, keys={"energy": "internal_energy_at_0K"})[0]
    assert frame.energy == pytest.approx(raw * KJ, rel=1e-7)
    # D02: methane, U0 = -40.47893 Ha, -17.1722 eV from its atoms
    assert frame.energy == pytest.approx(-1101.4878, abs=2e-4)
    assert frame.energy - HARTREE * (-37.846772 - 4 * 0.500273) == pytest.approx(-17.1722, abs=2e-4)
    lengths = np.linalg.norm(frame.structure.positions[1:] - frame.structure.positions[0], axis=1)
    np.testing.assert_allclose(lengths, 1.092, atol=2e-3)
    assert opened(path)[0].energy is None  # which of its energies is the label is for the user to say


def write_ways(tmp_path: Path) -> dict[str, Path]:
    """D01: one labelled frame, once where ASE hides the labels and once under names of one's own."""
    forces = np.array([[0.1, 0.2, 0.3], [-0.1, -0.2, -0.3]])
    stress = np.array([0.01, 0.02, 0.03, 0.004, 0.005, 0.006])
    hidden = Atoms("CO", [[0, 0, 0], [0, 0, 1.1]], cell=[4, 5, 6], pbc=True)
    hidden.calc = SinglePointCalculator(hidden, energy=-1.5, forces=forces, stress=stress)
    named = hidden.copy()
    full = np.array([[0.01, 0.006, 0.005], [0.006, 0.02, 0.004], [0.005, 0.004, 0.03]])
    named.info.update(REF_energy=-1.5, REF_stress=full.ravel(), REF_virial=-full.ravel() * 120.0, mp_id="mp-1")
    named.arrays["REF_forces"] = forces
    paths = {
        "hidden": tmp_path / "hidden.xyz",
        "named": tmp_path / "named.xyz",
        "traj": tmp_path / "t.traj",
        "db": tmp_path / "d.db",
    }
    ase.io.write(paths["hidden"], hidden)
    ase.io.write(paths["named"], named)
    ase.io.write(paths["traj"], hidden)
    ase.io.write(paths["db"], hidden)
    return paths


def test_labels_are_the_same_wherever_ase_puts_them(tmp_path: Path) -> None:
    paths = write_ways(tmp_path)
    first = opened(paths["hidden"])[0]
    others = [
        opened(paths["named"], keys=REF)[0],
        opened(paths["named"], keys={"energy": "REF_energy", "forces": "REF_forces", "virial": "REF_virial"})[0],
        opened(paths["traj"])[0],
        opened(paths["db"])[0],
    ]
    assert first.stress[0, 1] == 0.006  # xy is the last of ASE's six
    assert first.stress[1, 2] == 0.004
    for other in others:
        assert other.energy == first.energy == -1.5
        np.testing.assert_array_equal(other.forces, first.forces)
        np.testing.assert_allclose(other.stress, first.stress, rtol=1e-12)


def test_missing_labels_name_what_is_there(tmp_path: Path) -> None:
    named = write_ways(tmp_path)["named"]
    with pytest.raises(UserError) as error:
        open_dataset(named)
    text = str(error.value)
    assert "REF_energy (1)" in text
    assert "REF_forces (1)" in text
    assert "keys.energy=REF_energy keys.forces=REF_forces keys.stress=REF_stress" in text
    with pytest.raises(UserError, match='Did you mean "REF_energy"'):
        open_dataset(named, ReadOptions(keys={"energy": "REF_enrgy"}))
    with pytest.raises(UserError, match="value of the frame, not of its atoms"):
        open_dataset(named, ReadOptions(keys={"energy": "REF_energy", "forces": "REF_energy"}))
    with pytest.raises(UserError, match="no frame has"):
        open_dataset(named, ReadOptions(keys={**REF, "config_type": "group"}))
    assert opened(named, keys=REF)[0].info["mp_id"] == "mp-1"


def test_forces_nobody_named_are_a_warning(shared: Path, tmp_path: Path) -> None:
    with pytest.warns(PhysicsWarning, match=r'no forces are read.*"force" \(100 frames\).*keys\.forces=force'):
        open_dataset(shared / "data/carbon/carbon_reduced_100.xyz")
    named = write_ways(tmp_path)["named"]
    with pytest.warns(PhysicsWarning, match=r"keys\.forces=REF_forces"):
        open_dataset(named, ReadOptions(keys={"energy": "REF_energy"}))
    with pytest.warns(PhysicsWarning, match=r"no energy is read.*keys\.energy=REF_energy"):
        open_dataset(named, ReadOptions(keys={"forces": "REF_forces"}))
    with warnings.catch_warnings():  # energies alone, with nothing that looks like forces, are no reason for one
        warnings.simplefilter("error")
        open_dataset(shared / "data/acac/isolated_atoms.xyz")


def one(tmp_path: Path, comment: str, columns: str = "species:S:1:pos:R:3:forces:R:3") -> Path:
    path = tmp_path / "one.xyz"
    path.write_text(f"2\n{comment} Properties={columns}\nSi 0 0 0 1 2 3\nSi 1 1 1 -1 -2 -3\n")
    return path


def test_units_of_extxyz(tmp_path: Path) -> None:
    cell = 'Lattice="5 0 0 0 5 0 0 0 5"'
    path = one(tmp_path, f"{cell} energy=2")
    frame = opened(path, units={"energy": "kcal/mol"})[0]
    assert frame.energy == pytest.approx(2 * KCAL, rel=1e-8)
    assert frame.forces[0, 0] == pytest.approx(KCAL, rel=1e-8)  # forces follow the energy's unit
    frame = opened(path, units={"energy": "Hartree", "length": "Bohr"})[0]
    assert frame.forces[0, 0] == pytest.approx(HARTREE / BOHR, rel=1e-8)
    assert frame.structure.cell[0, 0] == pytest.approx(5 * BOHR, rel=1e-8)
    assert frame.structure.positions[1, 0] == pytest.approx(BOHR, rel=1e-8)
    frame = opened(path, units={"forces": "Hartree/Bohr"})[0]
    assert frame.energy == 2
    assert frame.forces[0, 0] == pytest.approx(HARTREE / BOHR, rel=1e-8)
    # What the file states, and the user's word before it.
    path = one(tmp_path, f"{cell} energy=2 energy_unit=kJ/mol forces_unit=kJ/mol/nm")
    assert opened(path)[0].forces[0, 0] == pytest.approx(KJ / 10, rel=1e-8)
    assert opened(path, units={"energy": "eV"})[0].energy == 2
    with pytest.raises(UserError, match=r'frame 0.*unit "furlong"'):
        open_dataset(one(tmp_path, f"{cell} energy=2 energy_unit=furlong"))


def test_vasp_stress_in_three_spellings(tmp_path: Path) -> None:
    """D04: +100 kB in an OUTCAR is compression: -10 GPa = -0.0624151 eV/Å³ in ASE's sign."""
    cell = 'Lattice="5 0 0 0 5 0 0 0 5" energy=1'
    for value, unit in ((100.0, "kbar_vasp"), (-10.0, "GPa"), (-0.0624150912588, "eV/A3"), (-100.0, "kbar")):
        path = one(tmp_path, f'{cell} stress="{value} 0 0 0 {value} 0 0 0 {value}"')
        stress = opened(path, units={"stress": unit})[0].stress
        np.testing.assert_allclose(stress, -0.0624150912588 * np.eye(3), rtol=1e-8)
    path = one(tmp_path, f'{cell} stress="1 0 0 0 1 0 0 0 1"')
    with pytest.raises(UserError, match=r"unit of its stress is open.*units\.stress"):
        open_dataset(path, ReadOptions(units={"energy": "Hartree"}))


def test_stress_of_published_files(shared: Path) -> None:
    odd = shared / "data/odd"
    np.testing.assert_allclose(opened(odd / "dpdata_stress_gpa.xyz")[0].stress, GPA * np.eye(3), rtol=1e-8)
    np.testing.assert_allclose(opened(odd / "dpdata_stress_kbar.xyz")[0].stress, GPA * np.eye(3), rtol=1e-8)
    np.testing.assert_array_equal(
        opened(odd / "dpdata_stress_voigt.xyz")[0].stress,
        [[0.01, 0.006, 0.005], [0.006, 0.02, 0.004], [0.005, 0.004, 0.03]],
    )
    virial = opened(odd / "dpdata_virials_key.xyz", keys={"virial": "virials"})[0]
    np.testing.assert_allclose(virial.stress, -np.diag([0.01, 0.02, 0.03]), rtol=1e-12)  # -virial / 27 Å³
    hartree = opened(odd / "dpdata_virial_hartree.xyz", keys={"virial": "virial"})[0]
    np.testing.assert_allclose(hartree.stress, -HARTREE / 125 * np.eye(3), rtol=1e-8)
    # Compression is negative in ASE's sign: the slab's stress as it stands in the file.
    np.testing.assert_allclose(opened(odd / "graphpes_Cu_test.xyz")[0].stress[0, 0], -0.0910987907973754)


def test_frames_carry_groups_weights_and_text(tmp_path: Path) -> None:
    path = tmp_path / "mixed.xyz"
    path.write_text(
        '1\nenergy=-1 config_type=bulk config_weight=2.5 mp_id="mp-1" step=7 charge=1 spin=2\nH 0 0 0\n'
        "1\nenergy=-2\nH 0 0 0\n"
    )
    first, second = opened(path)
    assert (first.config_type, first.weight, dict(first.info)) == ("bulk", 2.5, {"mp_id": "mp-1", "step": 7})
    assert (first.structure.charge, first.structure.spin) == (1.0, 2.0)
    assert (second.config_type, second.weight, second.structure.charge) == ("", 1.0, None)
    assert opened(path, keys={"weight": "step"})[0].weight == 7.0


def test_lists_patterns_and_slices(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data/acac"
    both = open_dataset([folder / "train_300K.xyz", folder / "isolated_atoms.xyz"])
    assert (len(both), both.counts()["forces"], both.elements) == (503, 500, (1, 6, 8))
    assert both[502].energy == both[-1].energy == opened(folder / "isolated_atoms.xyz")[2].energy
    assert both[499].energy == opened(folder / "train_300K.xyz")[499].energy
    assert len(open_dataset(str(shared / "data/mof_janus/mlip_*.xyz"), ReadOptions(keys=DFT))) == 24
    with pytest.raises(UserError, match="pattern"):
        open_dataset(str(tmp_path / "no*.xyz"))
    whole = opened(folder / "train_300K.xyz")
    for index, expected in ((":3", [0, 1, 2]), ("5", [5]), ("-2:", [498, 499]), ("10:20:5", [10, 15]), ("-1", [499])):
        chosen = opened(folder / "train_300K.xyz", index=index)
        assert [frame.energy for frame in chosen] == [whole[k].energy for k in expected]
    for index in ("a:b", "1:2:3:4", "::0", ""):
        with pytest.raises(UserError, match="not a slice"):
            open_dataset(folder / "train_300K.xyz", ReadOptions(index=index))


def test_the_hash_is_that_of_the_content(tmp_path: Path) -> None:
    """T07: another set under the same name is another set."""
    path = one(tmp_path, "energy=1")
    first = opened(path)
    assert opened(path).sha == first.sha
    path.write_text(path.read_text().replace("energy=1", "energy=3"))
    second = opened(path)
    assert second.sha != first.sha
    assert second[0].energy == 3


def test_compressed_and_foreign_encoded_extxyz(shared: Path, tmp_path: Path) -> None:
    path = tmp_path / "set.xyz.gz"
    path.write_bytes(gzip.compress((shared / "data/acac/train_300K.xyz").read_bytes()))
    assert opened(path, index=":5")[4].energy == opened(shared / "data/acac/train_300K.xyz")[4].energy
    latin = tmp_path / "latin.xyz"
    latin.write_bytes(b"\xef\xbb\xbf1\r\nenergy=-1 author=M\xfcller\r\nH 0 0 0\r\n\r\n")
    assert opened(latin)[0].energy == -1


def test_a_database_is_not_changed_by_reading(shared: Path, tmp_path: Path) -> None:
    copy = tmp_path / "qm9.db"
    copy.write_bytes((shared / "data/qm9/schnetpack_test_qm9.db").read_bytes())
    before = copy.read_bytes()
    opened(copy, keys={"energy": "energy_U0"})
    assert copy.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["qm9.db"]


# file -> number of structures, formula of the first
STRUCTURES = {
    "odd/AB3C_cP5_221_a_c_b@Ba-O-Ti.POSCAR.xz": (1, "BaO3Ti"),
    "odd/CONTCAR.MD": (1, "Ge2Li20P4S24"),
    "odd/ICSD59959.cif": (1, "F3KMn"),
    "odd/MultiStructure.cif": (2, "Fe4Li4O16P4"),
    "odd/OneLineSymmP1.cif": (1, "Ga4O8Pb2"),
    "odd/nosymm.cif": (1, "C60H96O8"),
    "odd/dpdata_stress_voigt.xyz": (1, "H2O"),
    "odd/gdb9_small.sdf": (2, "CH4"),
    "qm9/qm9_mini.sdf": (21, "CH4"),
    "spice/SPICE-1.1.4_n2.hdf5": (55, "C8H18N"),
    "solids_mlff/test_solid.npz": (50, "Al3Au2Mg51O54"),
    "mptrj/10_mptraj_systems.db": (10, None),
}
NO_STRUCTURES = {
    "odd/Li10GeP2S12.cif": "partly occupied",
    "odd/PF_sd_1928405.cif": "disordered",
    "odd/Cod_2100513.cif": "disordered",
    "odd/srycoo.cif": "disordered",
    "odd/symmetry_disorder.cif": "partly occupied",
    "odd/Senegalite_implicit_hydrogen.cif": "formula names H",
    "odd/malformed.cif": "cannot be read",
    "odd/bad_superflat_inf_loop.cif.gz": "zero volume",
    "odd/POSCAR.oh.err1": "cannot be read",
    "odd/POSCAR.oh.d.dup": "same place",
    "odd/dump.tatb": "no elements",
    "odd/li_minimal.data": "LAMMPS data file",
    "water_n2p2/input.data": "no units",
    "screening/delaney-processed.csv": "SMILES",
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(shared: Path, name: str) -> None:
    if name.endswith(("ICSD59959.cif", "OneLineSymmP1.cif", "nosymm.cif")):
        pytest.importorskip("pymatgen", reason="ASE cannot read this CIF; pymatgen can")
    structures = read_structures(shared / "data" / name)
    n, formula = STRUCTURES[name]
    assert len(structures) == n
    assert formula is None or structures[0].get_chemical_formula() == formula
    assert all(atoms.calc is None for atoms in structures)


@pytest.mark.parametrize("name", NO_STRUCTURES)
def test_structures_refused(shared: Path, name: str) -> None:
    with pytest.raises(UserError, match=re.escape(Path(name).name)) as error:
        read_structures(shared / "data" / name)
    assert re.search(NO_STRUCTURES[name], str(error.value))


def test_every_file_gives_structures_or_a_reason(shared: Path) -> None:
    for path in sorted((shared / "data").rglob("*")):
        if path.is_file() and path.stat().st_size < 200_000:
            try:
                found = read_structures(path)
            except UserError as error:
                found = [str(error)] if path.name in str(error) else []
            assert found, path


def test_charges_of_mol_files(tmp_path: Path) -> None:
    record = (
        "ion\n  test\n\n  2  1  0  0  0  0            999 V2000\n"
        "    0.0000    0.0000    0.0000 O   0  0\n    0.0000    0.0000    0.9600 H   0  0\n  1  2  1  0\n"
        "M  CHG  1   1  -1\nM  END\n$$$$\n"
    )
    path = tmp_path / "ions.sdf"
    path.write_text(record * 2)
    assert [atoms.info["charge"] for atoms in read_structures(path)] == [-1.0, -1.0]


def test_own_output_read_back(tmp_path: Path) -> None:
    """D06: stored results are no live calculator; constraints stay, and the results are labels where asked for."""
    from ase.constraints import FixAtoms

    atoms = Atoms("Cu2", [[0, 0, 0], [0, 0, 2.5]], cell=[6, 6, 9], pbc=True, constraint=FixAtoms([0]))
    atoms.calc = SinglePointCalculator(atoms, energy=-1.0, forces=np.zeros((2, 3)))
    for name in ("out.xyz", "out.traj"):
        ase.io.write(tmp_path / name, atoms)
        read = read_structures(tmp_path / name)[0]
        assert read.calc is None
        assert list(read.constraints[0].index) == [0]
        assert opened(tmp_path / name)[0].energy == -1.0
