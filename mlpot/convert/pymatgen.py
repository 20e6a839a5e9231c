"""pymatgen: Structure and Molecule to and from our Structure."""

from __future__ import annotations

from typing import Any

import numpy as np

from mlpot.errors import UserError
from mlpot.structure import Structure, symbols_of


def structure(source: Any) -> Structure:
    """Structure of a pymatgen ``Structure`` or ``Molecule``. Disordered sites are refused."""
    if not hasattr(source, "sites"):
        raise UserError(f"expected a pymatgen Structure or Molecule, got {type(source).__name__}.")
    if not source.is_ordered:
        partial = next(site for site in source.sites if not site.is_ordered)
        raise UserError(
            f"the structure is disordered (site {partial.species_string}). A potential needs whole atoms: "
            f"make an ordered one first, e.g. with pymatgen's OrderDisorderedStructureTransformation."
        )
    numbers = [site.specie.Z for site in source.sites]
    lattice = getattr(source, "lattice", None)
    # A molecule's charge is always set; a crystal's only where somebody stated it.
    stated = getattr(source, "_charge", None)
    charge = None if stated is None else float(stated)
    if lattice is None:
        return Structure.of(numbers, source.cart_coords, charge=charge, spin=float(source.spin_multiplicity))
    return Structure.of(numbers, source.cart_coords, lattice.matrix, lattice.pbc, charge)


def to_pymatgen(source: Structure) -> Any:
    """A pymatgen ``Structure`` where there is periodicity, else a ``Molecule``."""
    from pymatgen.core.lattice import Lattice
    from pymatgen.core.structure import Molecule
    from pymatgen.core.structure import Structure as Crystal

    species = [symbols_of([number])[0] for number in source.numbers]
    if not source.pbc.any():
        return Molecule(species, source.positions, charge=source.charge or 0.0)
    if np.linalg.matrix_rank(source.cell) < 3:
        raise UserError("pymatgen needs three independent lattice vectors; the cell has fewer.")
    lattice = Lattice(source.cell, pbc=(bool(source.pbc[0]), bool(source.pbc[1]), bool(source.pbc[2])))
    return Crystal(lattice, species, source.positions, coords_are_cartesian=True, charge=source.charge)
