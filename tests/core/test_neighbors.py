"""Neighbour lists against brute force, ASE's own list and the numbers of published bug reports."""

from __future__ import annotations

import itertools

import ase.neighborlist
import numpy as np
import pytest
from ase import Atoms
from ase.build import bulk, molecule
from hypothesis import given, settings
from hypothesis import strategies as st

import mlpot
from mlpot.convert import ase as convert
from mlpot.errors import UserError
from mlpot.neighbors import SkinList, edge_vectors, neighbor_list
from mlpot.structure import Structure


def graph(atoms, cutoff):
    """i, j, S, D as of ASE, by way of AtomsGraph."""
    built = mlpot.AtomsGraph.from_ase(atoms, cutoff)
    built.validate()
    j, i = built.edge_index.numpy()
    return i, j, built.edge_shift.numpy(), built.edge_vectors().numpy()


def edges(atoms, cutoff):
    i, j, shift, _ = graph(atoms, cutoff)
    return sorted(zip(i.tolist(), j.tolist(), *shift.T.tolist(), strict=True))


def brute(atoms, cutoff):
    """Every pair of every image that could be near enough, one by one."""
    cell, pbc = atoms.cell.array, atoms.pbc
    reach = [0, 0, 0]
    if pbc.any():
        spread = np.ptp(atoms.positions @ np.linalg.pinv(cell), axis=0)
        # Rows of the periodic vectors' pseudo-inverse give the distance between lattice planes.
        planes = np.zeros((3, 3))
        planes[:, pbc] = np.linalg.pinv(cell[pbc])
        for axis in np.flatnonzero(pbc):
            reach[axis] = int(np.ceil(cutoff * np.linalg.norm(planes[:, axis]) + spread[axis])) + 1
    shifts = np.array(list(itertools.product(*(range(-n, n + 1) for n in reach))))
    found = []
    for i, j in itertools.product(range(len(atoms)), repeat=2):
        d = atoms.positions[j] - atoms.positions[i] + shifts @ cell
        near = np.linalg.norm(d, axis=1) < cutoff
        if i == j:
            near &= shifts.any(axis=1)
        found += [(i, j, *s) for s in shifts[near].tolist()]
    return sorted(found)


ZOO = {
    "water": molecule("H2O"),
    "ethanol": molecule("CH3CH2OH"),
    "argon": bulk("Ar", "fcc", a=5.26),
    "copper": bulk("Cu", "fcc", a=3.6, cubic=True),
    "skewed": Atoms("Al2", [[0, 0, 0], [1.2, 1.1, 0.9]], cell=[[4, 0, 0], [7, 3.5, 0], [-5, 3, 4.4]], pbc=True),
    "left-handed": Atoms(
        "Si2", [[0, 0, 0], [1.3, 1.3, 1.3]], cell=[[0, 2.7, 2.7], [2.7, 2.7, 0], [2.7, 0, 2.7]], pbc=True
    ),
    "slab": Atoms("Cu2", [[0, 0, -0.5], [0, 0, 1.5]], cell=[3, 3, 10], pbc=[1, 1, 0]),
    "wire": Atoms("C2", [[0, 0, 0], [0.3, -4.0, 1.2]], cell=[[0, 0, 0], [0, 0, 0], [0.4, 0.2, 2.5]], pbc=[0, 0, 1]),
    "tilted slab": Atoms("C2", [[0, 9, 0], [2, -7, 1]], cell=[[3, 0, 1], [0, 8, 0], [1, 1, 4]], pbc=[1, 0, 1]),
    "outside": Atoms("HO", [[-31, 8, 2], [40, -9, 17.5]], cell=[[5, 0, 0], [1, 6, 0], [0, 2, 7]], pbc=True),
}


@pytest.mark.parametrize("name", ZOO)
@pytest.mark.parametrize("cutoff", [2.0, 5.0, 9.1])
def test_zoo_against_brute_force(name, cutoff):
    atoms = ZOO[name]
    assert edges(atoms, cutoff) == brute(atoms, cutoff)
    i, j, shift, vectors = graph(atoms, cutoff)
    assert np.allclose(vectors, atoms.positions[j] - atoms.positions[i] + shift @ atoms.cell.array, rtol=0, atol=1e-12)
    assert (np.diff(i) >= 0).all()


@pytest.mark.parametrize("name", [name for name in ZOO if name != "wire"])
def test_zoo_against_ase(name):
    i, j, shift = ase.neighborlist.neighbor_list("ijS", ZOO[name], 4.2)
    assert edges(ZOO[name], 4.2) == sorted(zip(i.tolist(), j.tolist(), *shift.T.tolist(), strict=True))


coordinate = st.floats(-9.0, 9.0, allow_nan=False, width=32)


@st.composite
def structures(draw):
    n = draw(st.integers(1, 5))
    pbc = np.array(draw(st.tuples(st.booleans(), st.booleans(), st.booleans())))
    lengths = np.diag(draw(st.tuples(*[st.floats(2.0, 9.0)] * 3)))
    shear = np.array(draw(st.tuples(*[st.floats(-1.5, 1.5)] * 3)))
    cell = lengths.copy()
    cell[1, 0], cell[2, 0], cell[2, 1] = shear * lengths.max()
    cell = cell[list(draw(st.permutations([0, 1, 2])))]
    if draw(st.booleans()):
        cell[~pbc] = 0.0
    positions = np.array(draw(st.lists(st.tuples(coordinate, coordinate, coordinate), min_size=n, max_size=n)))
    return Atoms("C" * n, positions, cell=cell, pbc=pbc)


@settings(max_examples=120, deadline=None, derandomize=True)
@given(structures(), st.floats(0.5, 6.0))
def test_any_cell_against_brute_force(atoms, cutoff):
    found, expected = set(edges(atoms, cutoff)), set(brute(atoms, cutoff))
    for i, j, *shift in found ^ expected:  # only a pair at the cutoff to within rounding may differ
        distance = np.linalg.norm(atoms.positions[j] - atoms.positions[i] + np.array(shift) @ atoms.cell.array)
        assert abs(distance - cutoff) < 1e-9


@settings(max_examples=60, deadline=None, derandomize=True)
@given(structures(), st.floats(1.0, 5.0), st.floats(0.0, 1.5), st.integers(0, 10**6))
def test_skin_list_is_a_fresh_list(atoms, cutoff, skin, seed):
    rng = np.random.default_rng(seed)
    kept = SkinList(cutoff, skin)
    structure = convert.structure(atoms)
    for step in range(5):
        cell = structure.cell
        positions = structure.positions + rng.normal(scale=0.15, size=structure.positions.shape)
        if step == 3:  # the cell changes, the atoms with it
            deformation = np.eye(3) + rng.normal(scale=0.02, size=(3, 3))
            positions, cell = positions @ deformation, cell @ deformation
        structure = Structure.of(structure.numbers, positions, cell, structure.pbc)
        fresh, mine = neighbor_list(structure, cutoff), kept(structure)
        assert (np.diff(mine[0][1]) >= 0).all()
        as_set = [{tuple(row) for row in np.column_stack([e[0].T, e[1]]).tolist()} for e in (fresh, mine)]
        for j, i, *shift in as_set[0] ^ as_set[1]:
            distance = np.linalg.norm(positions[j] - positions[i] + np.array(shift) @ cell)
            assert abs(distance - cutoff) < 1e-9


def test_skin_list_searches_only_when_it_must():
    atoms = bulk("Cu", cubic=True).repeat(2)
    kept = SkinList(5.0, 1.0)
    first = kept(convert.structure(atoms))
    assert kept(convert.structure(atoms))[0] is first[0]
    atoms.positions += 100.0 * np.eye(3)[0]  # a rigid move is far for every atom, so it is searched
    kept(convert.structure(atoms))
    atoms.positions[3] += 0.2
    kept(convert.structure(atoms))
    assert kept.n_searches == 2
    atoms.positions[3] += 0.9
    kept(convert.structure(atoms))
    assert kept.n_searches == 3


def test_skin_list_is_blind_to_what_the_caller_does_in_place():
    atoms = bulk("Cu", cubic=True).repeat(2)
    structure = convert.structure(atoms)
    kept = SkinList(5.0, 0.5)
    kept(structure)
    structure.positions[0] += [1.4, 0.0, 0.0]
    assert len(kept(structure)[1]) == len(neighbor_list(structure, 5.0)[1])
    assert kept.n_searches == 2


@pytest.mark.parametrize("a", [2.5, 3.0, 3.6, 4.05, 5.43])
def test_pairs_at_the_cutoff_are_taken_or_left_both_ways(a):
    """Perfect crystals have whole shells within rounding of a cutoff."""
    atoms = bulk("Cu", "fcc", a=a).repeat((2, 1, 1))
    atoms.positions += [0.1, 0.2, 0.3]
    shells = sorted({round(d, 9) for d in np.linalg.norm(graph(atoms, 2.5 * a)[3], axis=1)})
    for cutoff in shells:
        for nudge in (-1, 0, 1):
            value = cutoff + nudge * np.spacing(cutoff)
            for edge_index, shift in (
                neighbor_list(convert.structure(atoms), value),
                SkinList(value, 0.4)(convert.structure(atoms)),
            ):
                there = {(i, j, *s) for j, i, s in zip(*edge_index.tolist(), map(tuple, shift.tolist()), strict=True)}
                back = {(j, i, *(-x for x in s)) for i, j, *s in there}
                assert there == back
    pair_edge, edge_pair = mlpot.AtomsGraph.from_ase(atoms, shells[2]).pairs
    assert 2 * len(pair_edge) == len(edge_pair)


@pytest.mark.parametrize("offset", [0, -6, 100, 5000])
def test_n01_molecule_far_from_the_origin(offset):
    atoms = molecule("H2O")
    atoms.positions += offset
    i, _, shift, vectors = graph(atoms, 5.0)
    assert len(i) == 6
    assert not shift.any()
    assert np.linalg.norm(vectors, axis=1).max() == pytest.approx(1.526478, abs=1e-6)


@pytest.mark.parametrize("c", [1.0, 10.0, 1000.0])
def test_n02_slab_across_the_open_direction(c):
    atoms = Atoms("Cu2", [[0, 0, -0.5], [0, 0, 1.5]], cell=[3, 3, c], pbc=[1, 1, 0])
    i, _, shift, vectors = graph(atoms, 2.9)
    assert len(i) == 2
    assert not shift.any()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(2.0)


@pytest.mark.parametrize("cell", [None, np.eye(3)])
def test_n03_no_shifts_without_periodicity(cell):
    i, _, shift, vectors = graph(Atoms("H2", [[0, 0, 0], [1.1, 1.2, 1.3]], cell=cell), 5.0)
    assert len(i) == 2
    assert not shift.any()
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(2.08326667, abs=1e-8)


@pytest.mark.parametrize(("cutoff", "neighbours"), [(5.0, 42), (6.0, 78)])
def test_n04_cutoff_beyond_the_cell(cutoff, neighbours):
    primitive, cubic = bulk("Cu", "fcc", a=3.6), bulk("Cu", "fcc", a=3.6, cubic=True)
    for atoms in (primitive, cubic, primitive.repeat(2), primitive.repeat(3)):
        i, _, _, _ = graph(atoms, cutoff)
        assert np.bincount(i).tolist() == [neighbours] * len(atoms)


def test_n05_no_cell_and_a_pair_at_the_cutoff():
    atoms = Atoms("Cu2", [[0, 0, 0], [2.5, 0, 0]])
    assert [len(graph(atoms, cutoff)[0]) for cutoff in (3.0, 2.0, 2.5)] == [2, 0, 0]
    wire = Atoms("Cu2", [[0, 0, 0], [2.5, 0, 0]], cell=[[6, 0, 0], [0, 0, 0], [0, 0, 0]], pbc=[1, 0, 0])
    assert edges(wire, 4.0) == [(0, 1, -1, 0, 0), (0, 1, 0, 0, 0), (1, 0, 0, 0, 0), (1, 0, 1, 0, 0)]
    wire.pbc = [1, 1, 0]
    with pytest.raises(UserError, match="lattice vector b"):
        graph(wire, 4.0)


def test_n06_skewed_cells():
    primitive = bulk("Al", a=4.05)
    sheared = primitive.copy()
    sheared.set_cell(primitive.cell.array + np.array([[0, 0, 0], [3, 0, 0], [0, 0, 0]]) @ primitive.cell.array)
    lengths = np.sort(np.linalg.norm(graph(primitive, 6.0)[3], axis=1))
    assert np.allclose(np.sort(np.linalg.norm(graph(sheared, 6.0)[3], axis=1)), lengths, rtol=0, atol=1e-12)
    for atoms in (primitive, primitive.repeat(3), bulk("Al", a=4.05, cubic=True), sheared):
        assert np.bincount(graph(atoms, 3.1)[0]).tolist() == [12] * len(atoms)


def test_n07_no_cap_on_neighbours():
    atoms = Atoms("C34", np.random.default_rng(0).normal(size=(34, 3)))
    i, j, _, _ = graph(atoms, 10.0)
    assert len(i) == 34 * 33
    assert set(zip(i, j, strict=True)) == set(zip(j, i, strict=True))


def test_n10_coordinates_that_are_almost_zero():
    counts = []
    for tiny in (-4.4e-52, 0.0, 4.4e-52):
        atoms = bulk("SiC", "zincblende", a=4.5274, cubic=True)
        atoms.positions[:, 0][atoms.positions[:, 0] == 0] = tiny
        counts.append(len(graph(atoms, 5.0)[0]))
        atoms.wrap()
        counts.append(len(graph(atoms, 5.0)[0]))
    atoms.set_scaled_positions(
        np.where(atoms.get_scaled_positions(wrap=False) < 1e-9, 1.0, atoms.get_scaled_positions())
    )
    counts.append(len(graph(atoms, 5.0)[0]))
    assert set(counts) == {len(brute(atoms, 5.0))}


def test_n11_hcp_has_twelve_neighbours():
    a, c = 3.1790434213597902, 5.100201896236235
    for times in (1, 3):
        atoms = bulk("Mg", "hcp", a=a, c=c).repeat(times)
        for _ in range(2):
            assert np.bincount(graph(atoms, 1.01 * a)[0]).tolist() == [12] * len(atoms)
            atoms.positions += 1.0
            atoms.rotate(37.0, (1, 2, 3), rotate_cell=True)


def test_bad_lengths_are_told():
    structure = convert.structure(molecule("H2O"))
    for cutoff in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match="cutoff"):
            neighbor_list(structure, cutoff)
    with pytest.raises(UserError, match="skin"):
        SkinList(5.0, -0.1)
    assert neighbor_list(structure, 0.0)[0].shape == (2, 0)


def test_numpy_edge_vectors_are_those_of_the_graph():
    structure = convert.structure(ZOO["skewed"])
    edge_index, shift = neighbor_list(structure, 5.0)
    expected = mlpot.AtomsGraph.from_structure(structure, 5.0).edge_vectors().numpy()
    assert np.allclose(edge_vectors(structure, edge_index, shift), expected, rtol=0, atol=1e-12)
