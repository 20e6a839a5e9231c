"""What several commands need: reading options, finding the model, writing structures."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlpot.errors import UserError, suggestion

if TYPE_CHECKING:
    from mlpot.data.options import ReadOptions


def read_options(overrides: list[str] | None) -> ReadOptions:
    """`keys.energy=REF_energy units.energy=kcal/mol index=:100` as options for opening a file."""
    from mlpot.data.options import ReadOptions

    values: dict[str, Any] = {"keys": {}, "units": {}}
    for override in overrides or []:
        key, separator, text = override.partition("=")
        section, _, name = key.strip().partition(".")
        if section == "data":  # the same words as in a recipe
            section, _, name = name.partition(".")
        if not separator or section not in ReadOptions.model_fields or (section in ("keys", "units")) != bool(name):
            keys = [f"keys.{label}" for label in ("energy", "forces", "stress", "virial")]
            known = [*keys, *(f"units.{name}" for name in ("energy", "forces", "stress", "length")), "index", "theory"]
            raise UserError(f'"{override}" is not a setting; expected key=value.{suggestion(key, known)}')
        if name:
            values[section][name] = text
        else:
            values[section] = text
    return ReadOptions(**values)


def model_path(path: str | Path) -> Path:
    """A model's file, the best one of a run folder, or a folder that is a model of another package."""
    file = Path(path)
    if file.is_dir():
        if (file / "model.json").is_file():  # matgl's
            return file
        if not (file / "best.mlpot").is_file():
            raise UserError(f"{file}: is a folder without best.mlpot; give a .mlpot file or a run folder.")
        return file / "best.mlpot"
    return file


def write_frames(path: Path, frames: list[Any]) -> None:
    """Write ``ase.Atoms`` to any format of ASE, whole or not at all; extxyz where the ending says nothing else."""
    import ase.io
    from ase.constraints import FixAtoms

    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.new{path.suffix}")
    extxyz = path.suffix in (".xyz", ".extxyz", "")
    try:
        if extxyz:
            kept = []
            for atoms in frames:
                copy = atoms.copy()
                copy.calc = atoms.calc
                # The format holds fixed atoms and no other constraint.
                copy.set_constraint([c for c in atoms.constraints if isinstance(c, FixAtoms)])
                kept.append(copy)
            ase.io.write(temporary, kept, format="extxyz")
        else:
            ase.io.write(temporary, frames)
        os.replace(temporary, path)
    except (OSError, ValueError, NotImplementedError) as error:
        temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: cannot be written ({error}).") from None


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    """Rows as CSV, whole or not at all; a column for each name that any row has."""
    from mlpot.simulate.files import replace_file

    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, text.getvalue().encode())
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}).") from None
