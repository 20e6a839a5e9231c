"""Structure: atoms as plain float64 arrays, between other people's types and our graphs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from mlpot.errors import UserError

_TABLE = (
    "X H He Li Be B C N O F Ne Na Mg Al Si P S Cl Ar K Ca Sc Ti V Cr Mn Fe Co Ni Cu Zn Ga Ge As Se Br Kr Rb Sr Y Zr "
    "Nb Mo Tc Ru Rh Pd Ag Cd In Sn Sb Te I Xe Cs Ba La Ce Pr Nd Pm Sm Eu Gd Tb Dy Ho Er Tm Yb Lu Hf Ta W Re Os Ir "
    "Pt Au Hg Tl Pb Bi Po At Rn Fr Ra Ac Th Pa U Np Pu Am Cm Bk Cf Es Fm Md No Lr Rf Db Sg Bh Hs Mt Ds Rg Cn Nh Fl "
    "Mc Lv Ts Og"
)
SYMBOLS = tuple(_TABLE.split())
MAX_NUMBER = len(SYMBOLS) - 1


@dataclass(frozen=True)
class Bonds:
    """Bonds of n atoms, and what is said of both (see `mlpot.convert.smiles` for the columns).

    | field         | shape, dtype      | meaning                        |
    |---------------|-------------------|--------------------------------|
    | index         | (2, b) int64      | the two atoms, each bond once  |
    | features      | (b, F_b) float64  | of each bond                   |
    | atom_features | (n, F_a) float64  | of each atom                   |
    """

    index: NDArray[np.int64]
    features: NDArray[np.float64]
    atom_features: NDArray[np.float64]


@dataclass(frozen=True)
class Structure:
    """n atoms.

    | field     | shape, dtype    | meaning                                              |
    |-----------|-----------------|------------------------------------------------------|
    | numbers   | (n,) int64      | atomic numbers, 1 to 118                             |
    | positions | (n, 3) float64  | Å                                                    |
    | cell      | (3, 3) float64  | Å, rows are lattice vectors; zeros where there is none |
    | pbc       | (3,) bool       | periodic along each lattice vector                   |
    | charge    | float or None   | total charge in e, where one was stated              |
    | spin      | float or None   | spin multiplicity 2S + 1, where one was stated       |
    | bonds     | Bonds or None   | the molecule's bonds, where they are known           |

    A molecule known by its bonds alone (from a SMILES, say) has positions that are all NaN.
    """

    numbers: NDArray[np.int64]
    positions: NDArray[np.float64]
    cell: NDArray[np.float64]
    pbc: NDArray[np.bool_]
    charge: float | None = None
    spin: float | None = None
    bonds: Bonds | None = None

    @classmethod
    def of(
        cls,
        numbers: object,
        positions: object,
        cell: object = None,
        pbc: object = False,
        charge: float | None = None,
        spin: float | None = None,
        bonds: Bonds | None = None,
    ) -> Structure:
        """From anything numpy can read; `cell` and `pbc` may be left out for molecules. Checks (see `check`)."""
        box = np.zeros((3, 3)) if cell is None else np.array(cell, dtype=np.float64)
        structure = cls(
            np.array(numbers, dtype=np.int64).reshape(-1),
            np.array(positions, dtype=np.float64).reshape(-1, 3),
            np.diag(box) if box.shape == (3,) else box,
            np.broadcast_to(np.array(pbc, dtype=bool), (3,)).copy(),
            charge,
            spin,
            bonds,
        )
        structure.check()
        return structure

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def has_positions(self) -> bool:
        """Whether the positions are known; a molecule from a SMILES has only its bonds."""
        return self.bonds is None or not bool(np.isnan(self.positions).all())

    def check(self, where: str = "structure") -> None:
        """Raise UserError for what no model can take: no atoms, NaN, unknown elements, a flat periodic cell."""
        if len(self.numbers) == 0:
            raise UserError(f"{where}: it has no atoms.")
        if self.positions.shape != (len(self.numbers), 3):
            raise UserError(
                f"{where}: {len(self.numbers)} atomic numbers but positions of shape {self.positions.shape}; "
                f"expected ({len(self.numbers)}, 3)."
            )
        wrong = (self.numbers < 1) | (self.numbers > MAX_NUMBER)
        if wrong.any():
            atom = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{where}: atom {atom} has atomic number {int(self.numbers[atom])}; "
                f"expected 1 (H) to {MAX_NUMBER} (Og)."
            )
        if self.has_positions and not np.isfinite(self.positions).all():
            atom = int(np.flatnonzero(~np.isfinite(self.positions).all(axis=1))[0])
            raise UserError(
                f"{where}: the position of atom {atom} is {self.positions[atom].tolist()}, not a finite number."
            )
        if not np.isfinite(self.cell).all():
            raise UserError(f"{where}: the cell has numbers that are not finite: {self.cell.tolist()}.")
        self._check_cell(where)

    def _check_cell(self, where: str) -> None:
        lengths = np.linalg.norm(self.cell, axis=1)
        for axis in np.flatnonzero(self.pbc):
            if lengths[axis] < 1e-6:
                raise UserError(
                    f"{where}: periodic along lattice vector {'abc'[axis]}, but that vector has zero length. "
                    f"Give the vector, or turn periodicity off there."
                )
        rows = self.cell[self.pbc]
        if len(rows) > 1:
            spread = np.linalg.svd(rows / np.linalg.norm(rows, axis=1, keepdims=True), compute_uv=False)[-1]
            if spread < 1e-6:
                raise UserError(
                    f"{where}: the periodic lattice vectors lie in a plane or line (zero volume): "
                    f"{self.cell.tolist()}. "
                    f"Give three independent vectors, or turn periodicity off."
                )

    def coincident(self, within: float = 1e-3) -> tuple[int, int] | None:
        """Two atoms less than `within` Å apart, periodic images counted; None where there are none."""
        if not self.has_positions:
            return None
        box = _completed(self.cell, self.pbc) if self.pbc.any() else np.eye(3)
        inverse = np.linalg.inv(box) if self.pbc.any() else box
        places = self.positions @ inverse
        if len(places) <= 64:
            first, second = _pairs(len(places))
        else:
            from scipy.spatial import cKDTree

            places = np.where(self.pbc, places - np.floor(places), places)
            places[places >= 1.0] = np.where(self.pbc, 0.0, places)[places >= 1.0]
            low = np.where(self.pbc, 0.0, places.min(axis=0))  # a box of 0 is open, but wants no negative numbers
            tree = cKDTree(places - low, boxsize=np.where(self.pbc, 1.0, 0.0))
            pairs = tree.query_pairs(within * float(np.linalg.norm(inverse, 2)), output_type="ndarray")
            first, second = pairs[:, 0], pairs[:, 1]
        gaps = places[second] - places[first]
        gaps = (gaps - np.round(gaps) * self.pbc) @ box
        near = np.flatnonzero(np.einsum("ij,ij->i", gaps, gaps) < within**2)
        return (int(first[near[0]]), int(second[near[0]])) if len(near) else None


@lru_cache(maxsize=128)
def _pairs(n: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Every pair of n atoms once."""
    return np.triu_indices(n, 1)


def _completed(cell: NDArray[np.float64], pbc: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The cell with unit vectors at right angles to its periodic vectors along the open directions."""
    box = cell.copy()
    open_axes = np.flatnonzero(~pbc)
    if len(open_axes):
        box[open_axes] = np.linalg.svd(box[pbc])[2][-len(open_axes) :]
    return box


def symbols_of(numbers: object) -> list[str]:
    """Chemical symbols, each once, in order of atomic number."""
    return [SYMBOLS[int(z)] for z in np.unique(np.asarray(numbers))]


def number_of(symbol: str) -> int:
    """Atomic number of a chemical symbol; UserError with the nearest one where there is none."""
    if symbol in SYMBOLS[1:]:
        return SYMBOLS.index(symbol)
    from mlpot.errors import unknown

    raise unknown("element", symbol, SYMBOLS[1:])
