"""mlpot: machine-learning interatomic potentials and molecular properties.

The public names below are imported when first used, so that ``import mlpot`` stays quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mlpot.calculator import Calculator as Calculator
    from mlpot.checkpoint import save as save
    from mlpot.graph import AtomsGraph as AtomsGraph
    from mlpot.potential import Potential as Potential
    from mlpot.potential import Prediction as Prediction
    from mlpot.potential import predict as predict
    from mlpot.pretrained import load as load

__version__ = "0.1.0"

_HOME = {
    "AtomsGraph": "mlpot.graph",
    "Potential": "mlpot.potential",
    "predict": "mlpot.potential",
    "Prediction": "mlpot.potential",
    "load": "mlpot.pretrained",
    "save": "mlpot.checkpoint",
    "Calculator": "mlpot.calculator",
}
_SUBMODULES = ("models", "testing", "data", "units", "compose", "nn", "convert", "pretrained", "property_model")

__all__ = ["AtomsGraph", "Calculator", "Potential", "Prediction", "load", "predict", "save"]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name]), name)
    elif name in _SUBMODULES:
        value = importlib.import_module(f"mlpot.{name}")
    else:
        raise AttributeError(f"module 'mlpot' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_SUBMODULES, "__version__"])
