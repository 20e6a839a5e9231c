"""A SMILES a line, with a name after a space; a first line that says SMILES is a heading."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mlpot.screen.lines import Columns, Line, opened, whole, without_columns
from mlpot.screen.molecule import Molecule, Standardiser, from_smiles

FORMAT = "SMILES"
SUFFIXES = (".smi", ".smiles", ".txt")


def lines(path: Path, columns: Columns) -> Iterator[Line]:
    """Every line, blank ones too."""
    without_columns(path, columns)
    with opened(path) as file:
        for number, text in enumerate(whole(file), 1):
            words = text.split(None, 1)
            if not (number == 1 and words and words[0].lower() == "smiles"):
                yield Line(number, words[1].strip() if len(words) > 1 else "", words[0] if words else "")


def molecule(text: str, standardise: Standardiser, coordinates: bool) -> Molecule:
    """The molecule of a SMILES, standardised."""
    return from_smiles(text, standardise)
