"""The spherical Fourier-Bessel basis of distance and angle of DimeNet (arXiv:2003.03123, equations 5 to 8)."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from numpy.polynomial import chebyshev
from scipy.optimize import brentq
from scipy.special import spherical_jn
from torch import Tensor

from mlpot.nn.constant import Constant
from mlpot.nn.polynomials import Chebyshev, Legendre
from mlpot.nn.radial import polynomial_cutoff


def zeros_of_bessel(n_orders: int, n_zeros: int) -> np.ndarray:
    """z_ln > 0 with j_l(z_ln) = 0, (n_orders, n_zeros) float64. The zeros of one order part those of the next."""
    between = np.pi * np.arange(1, n_zeros + n_orders)
    rows = [between[:n_zeros]]
    for order in range(1, n_orders):
        pairs = itertools.pairwise(between)
        between = np.array([brentq(lambda z, n=order: spherical_jn(n, z), a, b, xtol=1e-15) for a, b in pairs])
        rows.append(between[:n_zeros])
    return np.stack(rows)


def envelope(distances: Tensor, cutoff: float, exponent: int) -> Tensor:
    """u(x) / x with u the polynomial envelope of order `exponent` + 1 and x = d / cutoff; finite at d = 0."""
    x = torch.where(distances == 0, cutoff, distances) / cutoff
    return polynomial_cutoff(distances, cutoff, exponent + 1) / x


class SphericalBessel:
    """√2 / |j_{l+1}(z_ln)| j_l(z_ln x) for l = 0 .. n_spherical - 1, n = 1 .. n_radial: orthonormal on [0, 1] by x² dx.

    Summed from Chebyshev polynomials on [-1, 1] with coefficients in float64. Formulas in sines and cosines over powers
    of x, and recurrences upward in l, lose all digits near x = 0; this does not, and costs a matrix product.
    """

    def __init__(self, n_spherical: int, n_radial: int) -> None:
        zeros = zeros_of_bessel(n_spherical, n_radial)
        # A wave of z radians has coefficients like Bessel's J_k(z): below rounding where k exceeds z by some ∛z.
        degree = math.ceil(zeros.max() + 8.0 * math.cbrt(zeros.max()) + 10.0)
        nodes = chebyshev.chebpts1(degree + 1)[:, None, None]
        orders = np.arange(n_spherical)[:, None]
        # Even or odd in x, as l is; scipy leaves negative x out.
        values = np.sign(nodes) ** orders * spherical_jn(orders, zeros * np.abs(nodes))
        values *= math.sqrt(2.0) / np.abs(spherical_jn(orders + 1, zeros))
        vandermonde = chebyshev.chebvander(nodes[:, 0, 0], degree)
        self._series = Constant(torch.from_numpy(np.linalg.solve(vandermonde, values.reshape(degree + 1, -1))))
        self._polynomials = Chebyshev(degree + 1)

    def __call__(self, x: Tensor) -> Tensor:
        """x (P,) float64 -> (P, n_spherical · n_radial), n running fastest. Beyond x = 1 it stays as at 1."""
        return self._polynomials(x.clamp(max=1.0)).T @ self._series.like(x)


class ZonalHarmonics:
    """Y_l0 = √((2 l + 1) / 4π) P_l(cos θ) for l < n."""

    def __init__(self, n: int) -> None:
        self._polynomials = Legendre(n)
        self._norms = Constant(((2.0 * torch.arange(n, dtype=torch.float64) + 1.0) / (4.0 * math.pi)).sqrt())

    def __call__(self, cosines: Tensor) -> Tensor:
        """(M,) -> (n, M)."""
        return self._norms.like(cosines)[:, None] * self._polynomials(cosines)
