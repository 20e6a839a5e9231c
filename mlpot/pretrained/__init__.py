"""Models from files: our own, and those of other packages, one reader a file, found by module name.

A reader defines FORMAT, `recognises(path)` and `load(path) -> Potential`. None runs any code of the file it reads.
"""

from __future__ import annotations

import importlib
import os
import pkgutil
from pathlib import Path
from typing import Any

from mlpot import checkpoint
from mlpot.potential import Potential
from mlpot.property_model import PropertyModel

_PARTS = ("inert",)  # not readers


def readers() -> list[Any]:
    """The modules here that read a format."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name not in _PARTS)
    return [importlib.import_module(f"{__name__}.{name}") for name in names]


def load(path: str | os.PathLike[str]) -> Potential | PropertyModel:
    """The model in a file: a .mlpot file, or a model of another package (mace-torch, matgl), on the CPU.

    matgl's models are folders; the model.json in one may be named too.
    Raises UserError for a file that is missing, damaged, of an unknown kind or version, or that holds code.
    """
    file = Path(path)
    if file.exists() and file.suffix != ".mlpot":
        for reader in readers():
            if reader.recognises(file):
                return reader.load(file)
    model = checkpoint.load(path)
    assert isinstance(model, Potential | PropertyModel)
    return model
