"""The store: labelled structures in one HDF5 file, with units as attributes, read a frame at a time.

Atoms of all frames lie one after the other; `offset` says where each frame begins. What is missing is NaN.

| dataset                 | shape     | unit  |     | dataset        | shape        | unit  |
|-------------------------|-----------|-------|-----|----------------|--------------|-------|
| offset                  | (n + 1,)  |       |     | energy         | (n,)         | eV    |
| numbers                 | (A,)      |       |     | forces         | (A, 3)       | eV/Å  |
| positions               | (A, 3)    | Å     |     | stress         | (n, 3, 3)    | eV/Å³ |
| cell                    | (n, 3, 3) | Å     |     | weight         | (n,)         |       |
| pbc                     | (n, 3)    |       |     | config_type    | (n,)         | index |
| charge, spin            | (n,)      | e, -  |     | info           | (n,) JSON    |       |
| labels (which it has)   | (n, 3)    |       |     |                |              |       |

Properties and bonds of molecules: see `mlpot.data.store_molecules`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from mlpot import __version__
from mlpot.data.frame import LABELS, Frame, checked
from mlpot.data.store_molecules import MoleculeReader, MoleculeWriter
from mlpot.errors import UserError
from mlpot.structure import Structure
from mlpot.target import Target

FORMAT = "mlpot store"
VERSION = 2  # 1 had no properties and no bonds
UNITS = {"positions": "Å", "cell": "Å", "energy": "eV", "forces": "eV/Å", "stress": "eV/Å³", "charge": "e"}
# name -> (per atom or per frame, shape of an entry, type)
_LAYOUT: dict[str, tuple[str, tuple[int, ...], Any]] = {
    "numbers": ("atom", (), np.uint8),
    "positions": ("atom", (3,), np.float64),
    "forces": ("atom", (3,), np.float64),
    "cell": ("frame", (3, 3), np.float64),
    "pbc": ("frame", (3,), np.bool_),
    "energy": ("frame", (), np.float64),
    "stress": ("frame", (3, 3), np.float64),
    "charge": ("frame", (), np.float64),
    "spin": ("frame", (), np.float64),
    "weight": ("frame", (), np.float64),
    "config_type": ("frame", (), np.int32),
    "info": ("frame", (), h5py.string_dtype()),
    "labels": ("frame", (len(LABELS),), np.bool_),
    "offset": ("frame", (), np.int64),
}
_CHUNK = {"atom": 512, "frame": 128}  # rows; small, so that reading frames in any order stays quick
_BUFFER = 4096  # frames


def is_store(path: Path) -> bool:
    """Whether a file is a store of ours; UserError for HDF5 that is damaged."""
    if not h5py.is_hdf5(path):
        return False
    try:
        with h5py.File(path) as file:
            return bool(file.attrs.get("format") == FORMAT)
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        raise UserError(
            f"{path}: the HDF5 file cannot be opened ({_short(error)}). It is damaged or cut short."
        ) from error


def _short(error: Exception) -> str:
    return str(error).strip().strip("\"'").splitlines()[0][:160] if str(error).strip() else type(error).__name__


class Store:
    """A data set in a store. Opening reads the header alone; each frame is read when asked for."""

    source = FORMAT
    targets: tuple[Target, ...]

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(path)
        self._handle: tuple[int, h5py.File, dict[str, Any]] | None = None
        self._molecules: MoleculeReader | None = None
        self._offset: NDArray[np.int64] | None = None
        try:
            self._read_header()
        except (KeyError, ValueError, TypeError, OSError, RuntimeError) as error:
            raise UserError(f"{path}: the store's header cannot be read ({_short(error)}). It is damaged.") from error

    def _read_header(self) -> None:
        _, file, data = self._open()
        attributes, path = file.attrs, self.path
        if attributes["version"] > VERSION:
            raise UserError(
                f"{path}: store version {attributes['version']}; this mlpot {__version__} reads up to {VERSION}."
            )
        for name, unit in UNITS.items():
            stated = data[name].attrs.get("units")
            if stated != unit:
                raise UserError(f'{path}: {name} is in "{stated}"; a store holds {unit}. Convert the source again.')
        self.sha = str(attributes["sha"])
        self.theory = str(attributes["theory"])
        self.notes = tuple(json.loads(attributes["notes"]))
        self.elements = tuple(int(z) for z in attributes["elements"])
        self._counts = {label: int(attributes[f"n_{label}"]) for label in LABELS}
        self._types: list[str] = json.loads(attributes["config_types"])
        self._n = int(attributes["n_frames"])
        self._n_info = int(attributes["n_info"])
        self.targets = MoleculeReader(file).targets

    def _open(self) -> tuple[int, h5py.File, dict[str, Any]]:
        # A handle does not survive a fork, so each process opens its own. Looking a dataset up by name costs more
        # than reading a frame of it, so they are kept.
        if self._handle is None or self._handle[0] != os.getpid():
            try:
                file = h5py.File(self.path)
            except OSError as error:
                raise UserError(
                    f"{self.path}: cannot be opened ({_short(error)}). It may be damaged or cut short."
                ) from error
            if file.attrs.get("format") != FORMAT:
                raise UserError(f"{self.path}: is not a store written by mlpot.")
            missing = sorted(set(_LAYOUT) - set(file))
            if missing:
                raise UserError(f"{self.path}: the store lacks {', '.join(missing)}; it is damaged.")
            self._handle = os.getpid(), file, {name: file[name] for name in _LAYOUT}
            self._molecules = MoleculeReader(file)
        return self._handle

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handle": None, "_molecules": None}

    def __len__(self) -> int:
        return self._n

    def _offsets(self) -> NDArray[np.int64]:
        if self._offset is None:
            data = self._open()[2]
            self._offset = np.append(data["offset"][()], data["numbers"].shape[0])
        return self._offset

    def n_atoms(self) -> NDArray[np.int64]:
        """Atoms of every frame, (n,)."""
        return np.diff(self._offsets())

    def counts(self) -> dict[str, int]:
        """How many frames carry each label."""
        return dict(self._counts)

    def carries(self) -> NDArray[np.bool_]:
        """Which frame carries which of LABELS, (n, 3)."""
        return self._open()[2]["labels"][()]

    def config_types(self) -> list[str]:
        """Config type of every frame."""
        return [self._types[index] for index in self._open()[2]["config_type"][()]]

    def __getitem__(self, index: int) -> Frame:
        if not -self._n <= index < self._n:
            raise IndexError(index)
        try:
            return self._frame(index % self._n)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise UserError(
                f"{self.path}: frame {index} cannot be read ({_short(error)}). The store is damaged."
            ) from error

    def _frame(self, index: int) -> Frame:
        data = self._open()[2]
        first, last = (int(x) for x in self._offsets()[index : index + 2])
        energy, charge, spin = (float(data[name][index]) for name in ("energy", "charge", "spin"))
        forces, stress = data["forces"][first:last], data["stress"][index]
        molecules = self._molecules
        assert molecules is not None
        structure = Structure(
            data["numbers"][first:last].astype(np.int64),
            data["positions"][first:last],
            data["cell"][index],
            data["pbc"][index],
            None if np.isnan(charge) else charge,
            None if np.isnan(spin) else spin,
            molecules.bonds(index, self.n_atoms),
        )
        return Frame(
            structure,
            None if np.isnan(energy) else energy,
            None if np.isnan(forces).any() else forces,
            None if np.isnan(stress).any() else stress,
            float(data["weight"][index]),
            self._types[int(data["config_type"][index])],
            json.loads(data["info"].asstr()[index]) if self._n_info else {},
            molecules.properties(index),
        )


def _columns(frame: Frame, first_atom: int, types: dict[str, int]) -> dict[str, Any]:
    s, n = frame.structure, len(frame.structure)

    def or_nan(value: Any, shape: tuple[int, ...]) -> Any:
        return np.full(shape, np.nan) if value is None else value

    return {
        "numbers": s.numbers,
        "positions": s.positions,
        "forces": or_nan(frame.forces, (n, 3)),
        "cell": s.cell,
        "pbc": s.pbc,
        "energy": or_nan(frame.energy, ()),
        "stress": or_nan(frame.stress, (3, 3)),
        "charge": or_nan(s.charge, ()),
        "spin": or_nan(s.spin, ()),
        "weight": frame.weight,
        "config_type": types.setdefault(frame.config_type, len(types)),
        "info": json.dumps(dict(frame.info), ensure_ascii=False) if frame.info else "{}",
        "labels": [frame.has(label) for label in LABELS],
        "offset": first_atom,
    }


class _Writer:
    """Appends frames to an open file, some thousand at a time."""

    def __init__(self, file: h5py.File, targets: Sequence[Target] = ()) -> None:
        self.file, self.rows, self.frames = file, list[dict[str, Any]](), list[Frame]()
        self.types: dict[str, int] = {}
        self.counts = dict.fromkeys(LABELS, 0)
        self.elements: set[int] = set()
        self.n_frames = self.n_atoms = self.n_info = 0
        self.digest = hashlib.sha256()
        self.molecules = MoleculeWriter(file, targets, self.digest)
        for name, (kind, shape, dtype) in _LAYOUT.items():
            data = file.create_dataset(name, (0, *shape), dtype, maxshape=(None, *shape), chunks=(_CHUNK[kind], *shape))
            if name in UNITS:
                data.attrs["units"] = UNITS[name]

    def add(self, frame: Frame) -> None:
        self.rows.append(_columns(frame, self.n_atoms, self.types))
        self.frames.append(frame)
        self.n_frames += 1
        self.n_info += bool(frame.info)
        self.n_atoms += len(frame.structure)
        self.elements.update(np.unique(frame.structure.numbers).tolist())
        for label in LABELS:
            self.counts[label] += frame.has(label)
        if len(self.rows) >= _BUFFER:
            self.flush()

    def flush(self) -> None:
        if not self.rows:
            return
        for name, (kind, _, dtype) in _LAYOUT.items():
            values = [row[name] for row in self.rows]
            block: Any = (
                np.concatenate(values)
                if kind == "atom"
                else np.array(values, dtype=object if name == "info" else dtype)
            )
            data = self.file[name]
            start = data.shape[0]
            data.resize(start + len(block), axis=0)
            data[start:] = block
            self.digest.update(
                "\n".join(values).encode() if name == "info" else np.ascontiguousarray(block, dtype=dtype).tobytes()
            )
        self.molecules.add(self.frames, self.n_frames - len(self.frames))
        self.rows.clear()
        self.frames.clear()

    def header(self, theory: str, notes: list[str], source: str) -> dict[str, Any]:
        """Attributes of the file, once all frames are there."""
        self.digest.update(json.dumps([list(self.types), theory]).encode())
        return {
            "format": FORMAT,
            "version": VERSION,
            "written_by": __version__,
            "n_frames": self.n_frames,
            "n_info": self.n_info,
            "elements": sorted(self.elements),
            "config_types": json.dumps(list(self.types)),
            "theory": theory,
            "notes": json.dumps(notes),
            "source": source,
            "sha": self.digest.hexdigest(),
            **{f"n_{label}": count for label, count in self.counts.items()},
        }


def write_store(
    path: str | os.PathLike[str],
    frames: Iterable[Frame],
    theory: str | Callable[[], str] = "",
    notes: Iterable[str] = (),
    source: str | Callable[[], str] = "",
    targets: Sequence[Target] = (),
) -> int:
    """Write frames to a store and return their number. The file is there whole, or not at all; frames are streamed.

    targets are the properties that frames may carry. theory, notes and source are asked for when the frames are
    through, since a reading of another file may know them no sooner: then give functions, and a list that grows.
    """
    target = Path(path)
    temporary = target.with_name(f".{target.name}.{os.getpid()}.new")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(temporary, "w") as file:
            writer = _Writer(file, targets)
            for number, frame in enumerate(frames):
                writer.add(checked(frame, f"{target}: frame {number}"))
            writer.flush()
            if not writer.n_frames:
                raise UserError(f"{target}: there are no frames to write.")
            told = [text() if callable(text) else text for text in (theory, source)]
            file.attrs.update(writer.header(told[0], list(notes), told[1]))
        os.replace(temporary, target)
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror or _short(error)}).") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return writer.n_frames


def frames_of(dataset: Any) -> Iterator[Frame]:
    """The frames of a data set, one after the other."""
    return (dataset[index] for index in range(len(dataset)))
