"""HDF5 files with a group a molecule: what SPICE, ANI and modelforge have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mlpot.data.frame import Frame
from mlpot.errors import UserError, unknown
from mlpot.structure import Structure, number_of


def groups(parent: Any, wanted: Callable[[Any], bool]) -> Iterator[Any]:
    """The groups, at any depth, that `wanted` accepts."""
    for child in parent.values():
        if isinstance(child, h5py.Group):
            if wanted(child):
                yield child
            else:
                yield from groups(child, wanted)


def recognises(path: Path, wanted: Callable[[Any], bool]) -> bool:
    """Whether a file is sound HDF5 and has such a group."""
    if not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path) as file:
            return next(groups(file, wanted), None) is not None
    except (OSError, RuntimeError, KeyError, ValueError):
        return False


def held(path: Path, wanted: Callable[[Any], bool]) -> tuple[Counter[str], Counter[str]]:
    """Arrays of one row a frame, and of one a frame and atom, with the number of groups that carry each."""
    of_frame: Counter[str] = Counter()
    of_atoms: Counter[str] = Counter()
    with h5py.File(path) as file:
        for group in groups(file, wanted):
            for name, array in group.items():
                (of_atoms if array.ndim == 3 and array.shape[2] == 3 else of_frame)[name] += 1
    return of_frame, of_atoms


def pick(group: Any, named: str | None, defaults: tuple[str, ...]) -> str | None:
    """The name of a label's array: the one the user named, else the first of the defaults that is there."""
    if named is not None and named not in group:
        raise unknown("array", named, group, f"{group.file.filename}: {group.name}")
    return named or next((name for name in defaults if name in group), None)


def numbers_of(array: Any) -> NDArray[np.int64]:
    """Atomic numbers (n,) from numbers or from symbols."""
    values = np.ravel(array[()])
    if values.dtype.kind in "iu":
        return values.astype(np.int64)
    return np.array([number_of(s.decode() if isinstance(s, bytes) else str(s)) for s in values], dtype=np.int64)


def frames(
    where: str,
    numbers: NDArray[np.int64],
    positions: NDArray[np.float64],
    energy: NDArray[np.float64] | None,
    forces: NDArray[np.float64] | None,
    info: Mapping[str, str],
) -> Iterator[Frame]:
    """A frame for each of m conformations: positions (m, n, 3), energy (m,), forces (m, n, 3), in our units."""
    m, n = len(positions), len(numbers)
    for name, array, shape in (
        ("positions", positions, (m, n, 3)),
        ("energy", energy, (m,)),
        ("forces", forces, (m, n, 3)),
    ):
        if array is not None and array.shape != shape:
            raise UserError(f"{where}: {name} of shape {array.shape}; expected {shape} for {n} atoms.")
    for k in range(m):
        structure = Structure(numbers, positions[k], np.zeros((3, 3)), np.zeros(3, dtype=bool))
        yield Frame(
            structure, None if energy is None else float(energy[k]), None if forces is None else forces[k], info=info
        )
