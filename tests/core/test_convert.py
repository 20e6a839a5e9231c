"""There and back: ASE, pymatgen, rdkit, torch_geometric; and what each of them may hand over that is refused."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from ase import Atoms
from ase.build import bulk, fcc111, molecule

from mlpot import AtomsGraph
from mlpot.convert import ase as convert
from mlpot.convert import pymatgen as from_pymatgen
from mlpot.convert import rdkit as from_rdkit
from mlpot.errors import UserError
from mlpot.structure import Structure

CUTOFF = 5.0


def close(a: Structure, b: Structure) -> None:
    assert a.numbers.tolist() == b.numbers.tolist()
    assert np.allclose(a.positions, b.positions, rtol=0, atol=1e-10)
    assert np.allclose(a.cell, b.cell, rtol=0, atol=1e-10)
    assert a.pbc.tolist() == b.pbc.tolist()


ASE_ZOO = [molecule("CH3CH2OH"), bulk("NaCl", "rocksalt", a=5.6), fcc111("Cu", (1, 1, 2), vacuum=6.0), Atoms("H")]


@pytest.mark.parametrize("atoms", ASE_ZOO, ids=str)
def test_ase_round_trip(atoms):
    structure = convert.structure(atoms)
    assert structure.positions.dtype == np.float64
    close(convert.structure(convert.atoms(structure)), structure)
    close(AtomsGraph.from_ase(atoms, CUTOFF).structures()[0], structure)


def test_ase_charge_and_spin():
    atoms = molecule("OH")
    atoms.info.update(charge=-1, spin=1)
    structure = convert.structure(atoms)
    assert (structure.charge, structure.spin) == (-1.0, 1.0)
    assert convert.atoms(structure).info == {"charge": -1.0, "spin": 1.0}
    atoms.info["charge"] = "minus one"
    with pytest.raises(UserError, match=r'info\["charge"\].*minus one.*expected a number'):
        convert.structure(atoms)


def test_voigt_order_and_sign():
    full = np.array([[1.0, 6.0, 5.0], [6.0, 2.0, 4.0], [5.0, 4.0, 3.0]])
    assert convert.to_voigt(full).tolist() == [1, 2, 3, 4, 5, 6]
    assert np.array_equal(convert.from_voigt(np.arange(1.0, 7.0)), full)
    assert np.array_equal(convert.as_stress(full.ravel(), "here"), full)
    with pytest.raises(UserError, match=r"here.*6 or 9.*has 3"):
        convert.as_stress([1, 2, 3], "here")
    cell = np.diag([2.0, -2.0, 2.5])  # a left-handed cell has a volume too
    assert np.allclose(convert.stress_from_virial(10.0 * np.eye(3), cell), -np.eye(3))
    with pytest.raises(UserError, match="volume"):
        convert.stress_from_virial(np.eye(3), np.zeros((3, 3)))


def test_pymatgen_crystal_and_molecule():
    core = pytest.importorskip("pymatgen.core")
    crystal = core.Structure.from_spacegroup(
        "Fm-3m", core.Lattice.cubic(5.64), ["Na", "Cl"], [[0, 0, 0], [0.5, 0.5, 0.5]]
    )
    structure = from_pymatgen.structure(crystal)
    assert structure.pbc.all()
    assert structure.charge is None
    close(from_pymatgen.structure(from_pymatgen.to_pymatgen(structure)), structure)
    graph = AtomsGraph.from_pymatgen([crystal, crystal], CUTOFF)
    assert graph.n_structures == 2
    assert graph.n_edges == 2 * AtomsGraph.from_structure(structure, CUTOFF).n_edges

    ion = core.Molecule(["N", "H", "H", "H", "H"], np.random.default_rng(0).normal(size=(5, 3)) * 2, charge=1)
    structure = from_pymatgen.structure(ion)
    assert (structure.charge, structure.spin) == (1.0, 1.0)
    back = from_pymatgen.to_pymatgen(structure)
    assert back.charge == 1
    close(from_pymatgen.structure(back), structure)


def test_pymatgen_partial_periodicity_and_charge():
    core = pytest.importorskip("pymatgen.core")
    slab = core.Structure(core.Lattice.cubic(4.0, pbc=(True, True, False)), ["Cu"], [[0, 0, 0]], charge=2)
    structure = from_pymatgen.structure(slab)
    assert structure.pbc.tolist() == [True, True, False]
    assert structure.charge == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pymatgen compares the charge with oxidation states that nobody gave
        assert from_pymatgen.to_pymatgen(structure).charge == 2.0


def test_pymatgen_oxidation_states_are_the_same_elements():
    core = pytest.importorskip("pymatgen.core")
    crystal = core.Structure(core.Lattice.cubic(4.2), ["Mg2+", "O2-"], [[0, 0, 0], [0.5, 0.5, 0.5]])
    assert from_pymatgen.structure(crystal).numbers.tolist() == [12, 8]


def test_pymatgen_disorder_is_refused():
    core = pytest.importorskip("pymatgen.core")
    alloy = core.Structure(core.Lattice.cubic(3.6), [{"Cu": 0.5, "Au": 0.5}], [[0, 0, 0]])
    with pytest.raises(UserError, match="disordered"):
        AtomsGraph.from_pymatgen(alloy, CUTOFF)


def ethanol(chem, smiles="CCO"):
    from rdkit.Chem import AllChem

    mol = chem.AddHs(chem.MolFromSmiles(smiles))
    AllChem.EmbedMolecule(mol, randomSeed=1)
    return mol


def test_rdkit_round_trip():
    chem = pytest.importorskip("rdkit.Chem")
    mol = ethanol(chem)
    structure = from_rdkit.structure(mol)
    assert sorted(structure.numbers.tolist()) == [1] * 6 + [6, 6, 8]
    assert structure.charge == 0.0
    back = from_rdkit.to_rdkit(structure)
    close(from_rdkit.structure(back), structure)
    assert chem.MolToSmiles(chem.RemoveHs(back)) == "CCO"
    assert AtomsGraph.from_rdkit([mol, mol], CUTOFF).n_structures == 2


def test_rdkit_charge_comes_from_formal_charges():
    chem = pytest.importorskip("rdkit.Chem")
    structure = from_rdkit.structure(ethanol(chem, "C[NH3+]"))
    assert structure.charge == 1.0
    assert chem.GetFormalCharge(from_rdkit.to_rdkit(structure)) == 1


def test_rdkit_oddities_are_refused():
    chem = pytest.importorskip("rdkit.Chem")
    from rdkit.Chem import AllChem

    plain = chem.MolFromSmiles("CCO")
    with pytest.raises(UserError, match="no conformer"):
        AtomsGraph.from_rdkit(plain, CUTOFF)
    AllChem.EmbedMolecule(plain, randomSeed=1)
    with pytest.raises(UserError, match=r"6 implicit hydrogen.*AddHs"):
        AtomsGraph.from_rdkit(plain, CUTOFF)
    flat = chem.AddHs(chem.MolFromSmiles("CCO"))
    AllChem.Compute2DCoords(flat)
    with pytest.raises(UserError, match="flat"):
        AtomsGraph.from_rdkit(flat, CUTOFF)
    with pytest.raises(UserError, match="periodic"):
        from_rdkit.to_rdkit(convert.structure(bulk("Cu")))


def test_torch_geometric_round_trip():
    pytest.importorskip("torch_geometric")
    single = AtomsGraph.from_ase(ASE_ZOO[0], CUTOFF).to_pyg()
    assert AtomsGraph.from_pyg([single, single], CUTOFF).n_structures == 2
    for frames in (ASE_ZOO[:1], ASE_ZOO):
        graph = AtomsGraph.from_ase(frames, CUTOFF)
        data = graph.to_pyg()
        assert torch.equal(data.edge_index, graph.edge_index)
        assert torch.equal(data.edge_shift, graph.edge_shift)
        back = AtomsGraph.from_pyg(data, CUTOFF)
        assert torch.equal(back.edge_index, graph.edge_index)
        for a, b in zip(back.structures(), graph.structures(), strict=True):
            close(a, b)


def test_torch_geometric_plain_molecules_keep_all_neighbours():
    data = pytest.importorskip("torch_geometric.data")
    positions = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    graph = AtomsGraph.from_pyg(data.Data(z=torch.full((40,), 6), pos=positions), 20.0)
    assert graph.n_edges == 40 * 39
    assert not graph.pbc.any()
    with pytest.raises(UserError, match="has no z"):
        AtomsGraph.from_pyg(data.Data(pos=positions), 5.0)


@pytest.mark.parametrize("name", ["from_ase", "from_pymatgen", "from_rdkit", "from_structure", "from_pyg"])
@pytest.mark.parametrize("source", ["water.xyz", 3, [1, 2]], ids=str)
def test_other_types_are_refused_by_name(name, source):
    with pytest.raises(UserError, match="expected"):
        getattr(AtomsGraph, name)(source, CUTOFF)
