"""mlpot models."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table


def models(as_json: Annotated[bool, typer.Option("--json", help="print as JSON")] = False) -> None:
    """List the models and their settings.

    Example:  mlpot models
    """
    from mlpot import models as registry

    found = {name: registry.config_class(name).model_fields for name in registry.names()}
    if as_json:
        print(
            json.dumps({name: {key: field.default for key, field in fields.items()} for name, fields in found.items()})
        )
        return
    table = Table("model", "setting", "default", "meaning", box=None, pad_edge=False)
    for name, fields in found.items():
        for position, (key, field) in enumerate(fields.items()):
            table.add_row(name if position == 0 else "", key, str(field.default), field.description or "")
    Console(highlight=False).print(table)
