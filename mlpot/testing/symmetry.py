"""What physics demands of any potential: energies that do not depend on how the same atoms are written down."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from mlpot.structure import Structure
from mlpot.testing.bench import Answer, Bench, Check, Figure, largest
from mlpot.testing.structures import joined, moved, permuted, repeated, rotation, turned


def _cases(bench: Bench) -> list[tuple[str, Structure]]:
    samples = bench.samples
    return [
        ("molecule", samples.molecule()),
        ("crystal", samples.crystal()),
        ("slab", samples.crystal(4, (True, True, False))),
        ("wire", samples.crystal(4, (False, False, True))),
    ]


def permutation(bench: Bench) -> Iterator[Figure]:
    """The order of the atoms does not matter."""
    for name, one in _cases(bench):
        order = bench.rng.permutation(len(one))
        plain = bench.answer(one)
        expected = plain._replace(atom_energies=plain.atom_energies[order], forces=plain.forces[order])
        yield from bench.compare(name, bench.answer(permuted(one, order)), expected)


def translation(bench: Bench) -> Iterator[Figure]:
    """Nor does the origin, be it thousands of Å away."""
    for name, one in _cases(bench):
        plain = bench.answer(one)
        for by in ([0.7, -6.0, 3.1], [5000.0, 5000.0, -5000.0]):
            yield from bench.compare(f"{name} by {by[0]:g} Å", bench.answer(moved(one, np.array(by))), plain)


def lattice_translation(bench: Bench) -> Iterator[Figure]:
    """Nor which image of an atom is given."""
    for name, one in _cases(bench):
        shifts = bench.rng.integers(-3, 4, (len(one), 3)) * one.pbc
        yield from bench.compare(name, bench.answer(moved(one, shifts @ one.cell)), bench.answer(one))


def _orthogonal(bench: Bench, matrix: NDArray[np.float64]) -> Iterator[Figure]:
    q = torch.from_numpy(matrix)
    for name, one in _cases(bench):
        plain = bench.answer(one)
        expected = Answer(plain.energy, plain.atom_energies, plain.forces @ q, q.T @ plain.virial @ q)
        yield from bench.compare(name, bench.answer(turned(one, matrix)), expected)


def turning(bench: Bench) -> Iterator[Figure]:
    """Forces and stress turn with the atoms and the cell."""
    yield from _orthogonal(bench, rotation(bench.rng))


def reflection(bench: Bench) -> Iterator[Figure]:
    """And are mirrored with them."""
    yield from _orthogonal(bench, rotation(bench.rng, proper=False))


def supercell(bench: Bench) -> Iterator[Figure]:
    """A repeated cell has that many times the energy, the same forces and the same stress."""
    for name, one in (("crystal", bench.samples.crystal()), ("lattice", bench.samples.lattice())):
        plain = bench.answer(one)
        for times in ((2, 1, 1), (1, 3, 2)):
            n = int(np.prod(times))
            got = bench.answer(repeated(one, times))
            # On a symmetric site forces are what rounding leaves of many that cancel: the crystal's are looked at.
            forces = plain.forces.repeat(n, 1) if len(one) > 1 else got.forces
            expected = Answer(plain.energy * n, plain.atom_energies.repeat(n), forces, plain.virial * n)
            yield from bench.compare(f"{name} times {times}", got, expected)


def equivalent_cells(bench: Bench) -> Iterator[Figure]:
    """A left-handed or sheared cell of the same lattice changes nothing, the sign of the stress included."""
    one = bench.samples.crystal()
    plain = bench.answer(one)
    left_handed = one.cell[[1, 0, 2]]
    skewed = one.cell + np.array([[0, 0, 0], [3, 0, 0], [-2, 1, 0]]) @ one.cell
    for name, cell in (("left-handed", left_handed), ("skewed", skewed)):
        yield from bench.compare(name, bench.answer(replace(one, cell=cell)), plain)


def net_force_and_torque(bench: Bench) -> Iterator[Figure]:
    """Forces add up to nothing, and turn no free molecule."""
    for name, one in _cases(bench):
        forces = bench.answer(one).forces
        size = max(1.0, largest(forces))
        yield Figure(f"{name}, net force", largest(forces.sum(0)) / size, bench.tolerance)
        if not one.pbc.any():
            torque = torch.linalg.cross(torch.from_numpy(one.positions - one.positions.mean(0)), forces).sum(0)
            yield Figure(f"{name}, torque", largest(torque) / size, 10 * bench.tolerance)


def far_molecules_add(bench: Bench) -> Iterator[Figure]:
    """Two molecules out of each other's range have the sum of their energies."""
    first, second = bench.samples.molecule(5), bench.samples.molecule(4)
    second = moved(second, np.array([0.0, 3.0 * bench.cutoff + 20.0, 0.0]))
    a, b = bench.answer(first), bench.answer(second)
    expected = Answer(
        a.energy + b.energy,
        torch.cat([a.atom_energies, b.atom_energies]),
        torch.cat([a.forces, b.forces]),
        a.virial,
    )
    yield from bench.compare("two molecules", bench.answer(joined(first, second)), expected)


def isolated_atom(bench: Bench) -> Iterator[Figure]:
    """A lone atom has a finite energy, whatever box is drawn around it, and no force."""
    atom = bench.samples.atom()
    plain = bench.answer(atom)
    yield Figure("energy is finite", 0.0 if torch.isfinite(plain.energy).all() else float("nan"), 0.0)
    yield Figure("force", largest(plain.forces), 0.0)
    for pbc in (False, True):
        boxed = replace(atom, cell=np.eye(3) * (2.0 * bench.cutoff + 10.0), pbc=np.full(3, pbc))
        yield from bench.compare(f"in a {'periodic' if pbc else 'free'} box", bench.answer(boxed), plain, bench.exactly)


def no_edges(bench: Bench) -> Iterator[Figure]:
    """Atoms that do not see each other are so many lone atoms."""
    apart = bench.samples.apart()
    each = [replace(apart, numbers=apart.numbers[[k]], positions=apart.positions[[k]]) for k in range(len(apart))]
    single = torch.cat([bench.answer(one).energy for one in each])
    together = bench.answer(apart)
    size = max(1.0, float(single.abs().sum()))
    yield Figure("energy", abs(float(together.energy[0] - single.sum())) / size, bench.tolerance)
    yield Figure("forces", largest(together.forces), 0.0)


CHECKS: tuple[Check, ...] = (
    permutation,
    translation,
    lattice_translation,
    turning,
    reflection,
    supercell,
    equivalent_cells,
    net_force_and_torque,
    far_molecules_add,
    isolated_atom,
    no_edges,
)
