"""The files of a run: a trajectory that grows frame by frame, a log, and what a restart needs to go on exactly.

Each is written so that a process killed at any moment leaves files that `resume_point` can mend.
"""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from ase import Atoms
from ase.calculators.singlepoint import SinglePointCalculator
from ase.constraints import FixAtoms

from mlpot.errors import UserError

STEP = re.compile(rb"(?:^|\s)step=(\d+)(?:\s|$)")


def replace_file(path: Path, content: bytes) -> None:
    """Put `content` at `path`, whole or not at all."""
    temporary = path.with_name(f".{path.name}.new")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def labelled(atoms: Atoms, results: dict[str, Any], **info: Any) -> Atoms:
    """A copy with fixed results and more info; only constraints that every format holds."""
    frame = atoms.copy()
    frame.info.update(info)
    frame.set_constraint([c for c in atoms.constraints if isinstance(c, FixAtoms)])
    frame.calc = SinglePointCalculator(frame, **results)
    return frame


class Frames(Protocol):
    """A trajectory file."""

    def append(self, atoms: Atoms) -> None:
        """Add a frame and hand it to the operating system."""

    def steps(self) -> list[int]:
        """The steps of the complete frames."""

    def keep(self, n: int) -> Atoms:
        """Cut the file down to its first n frames; the last of them."""


class XYZFrames:
    """Extended XYZ."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, atoms: Atoms) -> None:
        """Add a frame in one write."""
        from ase.io.extxyz import write_xyz

        text = io.StringIO()
        write_xyz(text, [atoms])
        with self.path.open("ab") as file:
            file.write(text.getvalue().encode())

    def _scan(self) -> list[tuple[int, int]]:
        """(step, where the frame ends in bytes) of each complete frame; a torn one at the end is left out."""
        found: list[tuple[int, int]] = []
        offset = 0
        with self.path.open("rb") as file:
            while (first := file.readline()).strip():
                comment = file.readline()
                rows = [file.readline() for _ in range(int(first))] if first.strip().isdigit() else [b""]
                if not all(line.endswith(b"\n") for line in (comment, *rows)):
                    break
                offset += len(first) + len(comment) + sum(map(len, rows))
                step = STEP.search(comment)
                if step is None:
                    raise UserError(f"{self.path}: frame {len(found)} has no step=; it was not written by mlpot md.")
                found.append((int(step[1]), offset))
        return found

    def steps(self) -> list[int]:
        """The steps of the complete frames."""
        return [step for step, _ in self._scan()]

    def keep(self, n: int) -> Atoms:
        """Cut the file down to its first n frames; the last of them."""
        import ase.io

        os.truncate(self.path, self._scan()[n - 1][1])
        last: Any = ase.io.read(self.path, index=-1, format="extxyz")
        return last


class TrajFrames:
    """ASE's binary trajectory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, atoms: Atoms) -> None:
        """Add a frame."""
        from ase.io.trajectory import Trajectory

        with Trajectory(self.path, "a") as file:
            file.write(atoms)

    def _read(self) -> list[Atoms]:
        import ase.io

        frames: Any = ase.io.read(self.path, index=":", format="traj")
        return frames

    def steps(self) -> list[int]:
        """The steps of the complete frames."""
        frames = self._read()
        if any("step" not in frame.info for frame in frames):
            raise UserError(f"{self.path}: its frames have no step; it was not written by mlpot md.")
        return [int(frame.info["step"]) for frame in frames]

    def keep(self, n: int) -> Atoms:
        """Cut the file down to its first n frames; the last of them."""
        import ase.io

        frames = self._read()[:n]
        temporary = self.path.with_name(f".{self.path.name}.new")
        ase.io.write(temporary, frames, format="traj")
        os.replace(temporary, self.path)
        return frames[-1]


def frames_file(path: Path) -> Frames:
    """The trajectory at `path`, by its ending."""
    if path.suffix == ".traj":
        return TrajFrames(path)
    if path.suffix in (".xyz", ".extxyz"):
        return XYZFrames(path)
    raise UserError(f'{path}: a trajectory ends in .xyz, .extxyz or .traj, not in "{path.suffix}".')


class Log:
    """Rows of numbers as CSV; they are gathered and written by `flush`."""

    def __init__(self, path: Path | None, columns: Sequence[str]) -> None:
        self.path, self.columns = path, tuple(columns)
        self.rows: list[tuple[float, ...]] = []
        self._pending: list[str] = []

    def create(self) -> None:
        """An empty log with a header."""
        self._pending = [",".join(self.columns)]
        self.flush("wb")

    def keep_until(self, step: int) -> None:
        """Drop the rows after a step, and one that was cut short."""
        lines = self.path.read_text().splitlines(keepends=True) if self.path is not None and self.path.is_file() else []
        if not lines:
            return self.create()
        if lines[0].strip() != ",".join(self.columns):
            raise UserError(f"{self.path}: its columns are {lines[0].strip()}; expected {','.join(self.columns)}.")
        kept = [line for line in lines[1:] if line.endswith("\n") and int(line.split(",", 1)[0]) <= step]
        self.rows = [tuple(float(value) for value in line.split(",")) for line in kept]
        assert self.path is not None
        replace_file(self.path, "".join([lines[0], *kept]).encode())
        return None

    def add(self, row: Sequence[float]) -> None:
        """Take in a row; the first number is the step."""
        self.rows.append(tuple(row))
        if self.path is not None:
            self._pending.append(",".join([str(int(row[0])), *(f"{value:.10g}" for value in row[1:])]))

    def flush(self, mode: str = "ab") -> None:
        """Write what was gathered."""
        if self.path is not None and self._pending:
            with self.path.open(mode) as file:
                file.write(("\n".join(self._pending) + "\n").encode())
            self._pending = []


def save_state(path: Path, step: int, atoms: Atoms, rng: np.random.Generator, **more: Any) -> None:
    """All that decides how the run goes on, to the last bit."""
    buffer = io.BytesIO()
    np.savez(
        buffer,
        step=step,
        numbers=atoms.numbers,
        positions=atoms.positions,
        momenta=atoms.get_momenta(),
        cell=atoms.cell.array,
        rng=json.dumps(rng.bit_generator.state),
        **more,
    )
    replace_file(path, buffer.getvalue())


def load_state(path: Path) -> dict[str, Any] | None:
    """What `save_state` wrote; None where there is none or it is damaged."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, KeyError):
        return None
