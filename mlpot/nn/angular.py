"""Real spherical harmonics and the Clebsch-Gordan couplings between them, in e3nn's basis and signs.

A feature of degree l is a block (N, 2 l + 1, C), channels last. Components are ordered as in e3nn (arXiv:2207.09453):
those of l = 1 are x, y, z, and y is the polar axis.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mlpot.nn.constant import Constant


@functools.cache
def coupling(l1: int, l2: int, l3: int) -> Tensor:
    """√(2 l₃ + 1) times e3nn's 3j symbol, (2 l₁ + 1, 2 l₂ + 1, 2 l₃ + 1) float64.

    Coupling with l = 0 is then the identity, and components keep their size on the average.
    """
    from e3nn.o3 import wigner_3j  # two seconds to import, so only where it is needed

    return wigner_3j(l1, l2, l3, dtype=torch.float64) * math.sqrt(2 * l3 + 1)


@functools.cache
def _ladder(degree: int) -> Tensor:
    """The map (3 (2 l - 1), 2 l + 1) that takes Y₁ ⊗ Y_{l-1} to Y_l."""
    raw = coupling(1, degree - 1, degree)
    # Its scale and sign follow from the polar axis, where only the middle component is not zero, √(2 l + 1).
    at_pole = math.sqrt(3.0) * math.sqrt(2 * degree - 1) * float(raw[1, degree - 1, degree])
    return (raw * (math.sqrt(2 * degree + 1) / at_pole)).reshape(-1, 2 * degree + 1)


class SphericalHarmonics(nn.Module):
    """Y_l of unit vectors for l = 0 .. l_max, in component normalisation: |Y_l|² = 2 l + 1.

    Each degree is made of the one before: Y_l ∝ (Y₁ ⊗ Y_{l-1})_l.
    """

    def __init__(self, l_max: int) -> None:
        super().__init__()
        self.l_max = l_max
        self._ladders = [Constant(_ladder(degree)) for degree in range(2, l_max + 1)]

    def forward(self, unit: Tensor) -> Tensor:
        """(P, 3) -> (P, (l_max + 1)²)."""
        harmonics = [torch.ones_like(unit[:, :1])]
        if self.l_max:
            harmonics.append(math.sqrt(3.0) * unit)
        for ladder in self._ladders:
            product = harmonics[1][:, :, None] * harmonics[-1][:, None]
            harmonics.append(product.flatten(1) @ ladder.like(unit))
        return torch.cat(harmonics, 1)


class Path(NamedTuple):
    """A coupling of a neighbour's feature (l_in) with the direction to it (l_edge) into l_out."""

    l_in: int
    l_edge: int
    l_out: int


def paths(l_in: int, l_edge: int, l_out: int) -> list[Path]:
    """All couplings of degrees up to these of natural parity (-1)^l, ordered by l_out, then l_in, then l_edge."""
    given, made = ([Irrep(degree, (-1) ** degree) for degree in range(highest + 1)] for highest in (l_in, l_out))
    return [Path(a.degree, b, c.degree) for c in made for a in given for b in edge_degrees(a, c, l_edge)]


class Irrep(NamedTuple):
    """How a feature turns: as harmonics of that degree; an inversion multiplies it by its parity, 1 or -1."""

    degree: int
    parity: int

    def __str__(self) -> str:
        """As e3nn writes it: 0e, 1o, ..."""
        return f"{self.degree}{'e' if self.parity > 0 else 'o'}"


SCALAR = Irrep(0, 1)


def edge_degrees(given: Irrep, made: Irrep, l_max: int) -> list[int]:
    """Degrees up to l_max of the harmonics that couple with the one into the other; their parity is (-1)^l."""
    a, c = given.degree, made.degree
    fitting = range(abs(a - c), min(a + c, l_max) + 1)
    return [b for b in fitting if given.parity * (-1) ** b == made.parity]
