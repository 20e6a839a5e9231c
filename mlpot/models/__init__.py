"""Models, one file each, found by module name: a file here that defines a Potential with a Config is a model."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

from pydantic import BaseModel, ValidationError

from mlpot.errors import UserError, suggestion, unknown
from mlpot.potential import Potential


def names() -> list[str]:
    """The models there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> type[Potential]:
    """The class of a model; UserError with the nearest name where there is none."""
    if name not in names():
        raise unknown("model", name, names())
    module = importlib.import_module(f"{__name__}.{name}")
    classes = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Potential) and value.__module__ == module.__name__
    ]
    if len(classes) != 1:
        raise TypeError(f"{module.__name__} defines {len(classes)} potentials; a model file defines one")
    return classes[0]


def config_class(name: str) -> type[BaseModel]:
    """The pydantic model of a model's settings."""
    module = importlib.import_module(find(name).__module__)
    return module.Config


def build(name: str, **config: Any) -> Potential:
    """An untrained model, initialised from torch's generator: ``build("schnet", cutoff=5.0, channels=64)``.

    Raises UserError for an unknown model or setting, and for a value out of range.
    """
    model = find(name)
    schema = config_class(name)
    try:
        return model(schema(**config))  # type: ignore[call-arg]
    except ValidationError as error:
        raise UserError(explain(error, schema, f"model {name}")) from None


def explain(error: ValidationError, schema: type[BaseModel], where: str) -> str:
    """A pydantic error as one message that names the key, what was expected and the nearest valid key."""
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f'{where}: unknown setting "{key}".{suggestion(key, schema.model_fields)}')
        else:
            lines.append(f"{where}: {key} = {problem['input']!r}: {problem['msg'].lower()}.")
    return "\n".join(lines)
