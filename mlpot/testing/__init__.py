"""The conformance suite: what any potential must do, whoever wrote it.

import mlpot
mlpot.testing.check_potential(mlpot.models.build("schnet"))
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mlpot.errors import UserError
from mlpot.potential import Potential
from mlpot.testing import derivatives, symmetry, use
from mlpot.testing.bench import TOLERANCES, Bench, Check, Figure, NotApplicableError

CHECKS: tuple[Check, ...] = (*use.CHECKS, *symmetry.CHECKS, *derivatives.CHECKS)


def check_potential(
    potential: Potential,
    *,
    dtype: torch.dtype | str | None = None,
    elements: Sequence[int] | None = None,
    seed: int = 0,
) -> list[str]:
    """Run every check on a copy of `potential`, which may be any `Potential` on any device; the names of those run.

    dtype: float32 or float64; by default both, one after the other.
    elements: atomic numbers of the structures tried; by default those the potential knows, or H, C, N, O.
    seed: of the random structures.

    Checks that have no meaning for the potential, such as the training of one without parameters, are left out.
    Raises AssertionError with every figure that is out of its tolerance; TypeError for what is not a Potential.
    """
    if not isinstance(potential, Potential):
        raise TypeError(f"check_potential checks a mlpot.Potential, got {type(potential).__name__}")
    run, failures = [], []
    for chosen in _dtypes(dtype):
        label = str(chosen).removeprefix("torch.")
        for check in CHECKS:
            name = f"{label}: {check.__name__.replace('_', ' ')}"
            # A bench of its own: the outcome of a check does not depend on those before it.
            bench = Bench(potential, chosen, elements, seed)
            try:
                figures = list(check(bench))
            except NotApplicableError:
                continue
            except Exception as error:  # one check that breaks must not hide the others
                figures, broken = [], f"{name}: {type(error).__name__}: {error}"
                failures.append(broken)
            run.append(name)
            failures += [_told(name, figure) for figure in figures if not figure.passes]
    if failures:
        raise AssertionError(f"{type(potential).__name__} fails {len(failures)} figures:\n" + "\n".join(failures))
    return run


def _dtypes(dtype: torch.dtype | str | None) -> list[torch.dtype]:
    if dtype is None:
        return [torch.float64, torch.float32]
    named = {str(known).removeprefix("torch."): known for known in TOLERANCES}
    chosen = named.get(dtype) if isinstance(dtype, str) else dtype
    if chosen not in TOLERANCES:
        raise UserError(f"dtype {dtype} is not one to check; expected {' or '.join(named)}.")
    return [chosen]


def _told(name: str, figure: Figure) -> str:
    return f"{name}: {figure.what}: {figure.value:.3g}, allowed {figure.tolerance:.3g}"
