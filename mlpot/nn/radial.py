"""Distances expanded in radial bases, and the envelopes that take them to zero at the cutoff."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from mlpot.nn.constant import Constant


def norm(vectors: Tensor) -> Tensor:
    """Lengths of vectors (E, 3) -> (E,), with the gradient of a zero vector taken as zero."""
    squares = (vectors * vectors).sum(-1)
    zero = squares == 0
    return torch.where(zero, 0.0, torch.where(zero, 1.0, squares).sqrt())


def cosine_cutoff(distances: Tensor, cutoff: float) -> Tensor:
    """½ (cos(π d / cutoff) + 1) below the cutoff, 0 beyond (Behler, J. Chem. Phys. 134, 074106, 2011, eq. 3)."""
    envelope = 0.5 * (torch.cos(distances * (math.pi / cutoff)) + 1.0)
    return envelope * (distances < cutoff)


def polynomial_cutoff(distances: Tensor, cutoff: float | Tensor, p: int = 6) -> Tensor:
    """1 - (p+1)(p+2)/2 x^p + p(p+2) x^(p+1) - p(p+1)/2 x^(p+2), x = d / cutoff; 0 beyond (arXiv:2003.03123, eq. 8).

    Its value and first two derivatives vanish at the cutoff.
    """
    x = distances / cutoff
    envelope = 1.0 - x**p * ((p + 1) * (p + 2) / 2 - x * (p * (p + 2)) + x * x * (p * (p + 1) / 2))
    return envelope * (distances < cutoff)


def agnesi(distances: Tensor, radii: Tensor, q: float = 0.9183, p: float = 4.5791, a: float = 1.0805) -> Tensor:
    """1 / (1 + a x^q / (1 + x^(q - p))), x = 2 d / radii: near 1 for touching nuclei, falling to 0 far apart.

    distances (P,) in Å; radii (P,) is the sum of the two atoms' covalent radii (J. Chem. Phys. 159, 164101, 2023).
    Two nuclei at one place give 1.
    """
    zero = distances == 0
    x = torch.where(zero, 1.0, distances) * (2.0 / radii)
    return torch.where(zero, 1.0, 1.0 / (1.0 + a * x**q / (1.0 + x ** (q - p))))


class GaussianBasis(nn.Module):
    """exp(-γ (d - μ_k)²), n centres μ_k evenly from 0 to the cutoff, γ = 1 / (2 Δμ²) (arXiv:1706.08566, eq. 4)."""

    def __init__(self, n_basis: int, cutoff: float) -> None:
        super().__init__()
        self.n_basis, self.cutoff = n_basis, cutoff

    def forward(self, distances: Tensor) -> Tensor:
        """(E,) in Å -> (E, n_basis)."""
        # Made anew in the dtype of the distances: a stored float32 copy would spoil a model cast to float64.
        centers = torch.linspace(0.0, self.cutoff, self.n_basis, dtype=distances.dtype, device=distances.device)
        difference = distances[:, None] - centers
        return torch.exp(difference * difference * (-0.5 * ((self.n_basis - 1) / self.cutoff) ** 2))


class SincBasis(nn.Module):
    """sin(n π d / cutoff) / d, n = 1 .. n_basis (arXiv:2102.03150, table 2; without its constant factor)."""

    def __init__(self, n_basis: int, cutoff: float) -> None:
        super().__init__()
        self.n_basis, self.cutoff = n_basis, cutoff

    def forward(self, distances: Tensor) -> Tensor:
        """(E,) in Å -> (E, n_basis). At d = 0 the limit n π / cutoff."""
        frequencies = self.orders(distances) * (math.pi / self.cutoff)
        zero = (distances == 0)[:, None]
        safe = torch.where(zero, 1.0, distances[:, None])
        return torch.where(zero, frequencies, torch.sin(safe * frequencies) / safe)

    def orders(self, distances: Tensor) -> Tensor:
        """n = 1 .. n_basis, in the dtype of the distances."""
        return torch.arange(1, self.n_basis + 1, dtype=distances.dtype, device=distances.device)


class TrainableSincBasis(SincBasis):
    """sin(w_n π d / cutoff) / d, with w_n = n at first and trained with the rest (arXiv:2101.03164, methods)."""

    def __init__(self, n_basis: int, cutoff: float) -> None:
        super().__init__(n_basis, cutoff)
        self.order = nn.Parameter(torch.arange(1.0, n_basis + 1))

    def orders(self, distances: Tensor) -> Tensor:
        """w_n."""
        return self.order


class ExpNormalBasis(nn.Module):
    """f(d) exp(-β (exp(-5 d / cutoff) - μ_k)²), f the cosine cutoff, μ_k evenly from exp(-cutoff) to 1.

    β = (2 (1 - exp(-cutoff)) / n)⁻², cutoff in Å: PhysNet's (arXiv:1902.08408) with the scale of arXiv:2306.06482.
    """

    def __init__(self, n_basis: int, cutoff: float) -> None:
        super().__init__()
        self.n_basis, self.cutoff = n_basis, cutoff

    def forward(self, distances: Tensor) -> Tensor:
        """(E,) in Å -> (E, n_basis)."""
        first = math.exp(-self.cutoff)
        centers = torch.linspace(first, 1.0, self.n_basis, dtype=distances.dtype, device=distances.device)
        difference = torch.exp(distances * (-5.0 / self.cutoff))[:, None] - centers
        gaussians = torch.exp(difference * difference * -((0.5 * self.n_basis / (1.0 - first)) ** 2))
        return gaussians * cosine_cutoff(distances, self.cutoff)[:, None]


class SmoothSincBasis(nn.Module):
    """Orthonormal combinations of sin(k π d / cutoff) / d that vanish at the cutoff with two derivatives.

    J. Chem. Phys. 150, 154102 (2019), used in M3GNet (arXiv:2202.02450).
    """

    def __init__(self, n_basis: int, cutoff: float) -> None:
        super().__init__()
        self._sines = SincBasis(n_basis + 1, cutoff)
        k = torch.arange(1, n_basis + 2, dtype=torch.float64)
        # f_n is the sum of the n-th and the next function, each divided by its value at zero.
        unit = torch.eye(n_basis + 1, dtype=torch.float64) * cutoff / (math.pi * k)
        pairs = unit[:-1] + unit[1:]
        a, b = k[:-1], k[1:]
        sign = (-1.0) ** (a - 1)
        f = (sign * math.sqrt(2.0) * math.pi / cutoff**1.5 * a * b / (a**2 + b**2).sqrt())[:, None] * pairs
        e = (a - 1) ** 2 * (a + 1) ** 2 / (4 * a**4 + 1)
        rows, d = [f[0]], 1.0
        for n in range(1, n_basis):
            last, d = d, 1.0 - float(e[n]) / d
            rows.append((f[n] + math.sqrt(float(e[n]) / last) * rows[-1]) / math.sqrt(d))
        self._matrix = Constant(torch.stack(rows))

    def forward(self, distances: Tensor) -> Tensor:
        """(E,) in Å -> (E, n_basis)."""
        return self._sines(distances) @ self._matrix.like(distances).T
