"""Recipes run again: what came out, beside what was recorded for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlpot.compare.runs import main_errors
from mlpot.errors import UserError
from mlpot.train.config import apply_overrides, read_recipe, resolve
from mlpot.train.run import train

RESULTS = "results"  # the folder beside the recipes with what was measured


def recorded(recipe: Path) -> dict[str, Any] | None:
    """The result kept beside a recipe, results/NAME.json; None where there is none."""
    path = recipe.parent / RESULTS / f"{recipe.stem}.json"
    if not path.is_file():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise UserError(f"{path}: not a result that mlpot bench has written ({error}).") from None


def rerun(recipe: Path, overrides: list[str], say: Callable[[str], None]) -> dict[str, Any]:
    """Train by a recipe. Errors by set, the learning curve, seconds; what `recorded` holds."""
    config = resolve(apply_overrides(read_recipe(recipe), overrides), str(recipe))
    finished = train(config, say)
    metrics = finished.metrics
    return {
        "recipe": recipe.name,
        "errors": {name: main_errors(metrics[name]) for name in ("valid", "test") if name in metrics},
        "metrics": {name: metrics[name] for name in ("valid", "test") if name in metrics},
        "train_seconds": metrics["train_seconds"],
        "epochs": metrics["epochs"],
        "steps": metrics["steps"],
        "parameters": metrics["parameters"],
        "data": metrics["data"],
        "config": finished.prepared.config.model_dump(mode="json"),
        "curve": [{k: v for k, v in row.items() if v == v} for row in finished.rows],
    }
