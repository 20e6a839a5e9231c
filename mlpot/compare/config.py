"""What is compared: settings that all runs share, variants laid over them, seeds, and sizes of the training set."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from pydantic import Field, ValidationError, model_validator

from mlpot.errors import UserError, suggestion
from mlpot.train.config import Config, Section, read_recipe, resolve

MOST_RUNS = 500


class PlotConfig(Section):
    """One more picture: the error over a setting, a line for each value of another."""

    over: str = Field(description="a setting by its dotted name, e.g. model.n_layers")
    by: str | None = Field(None, description="another one, whose values are told apart by lines")


class Comparison(Section):
    """The settings of `mlpot compare`."""

    base: dict[str, Any] = Field(description="settings of a training run that all share")
    variants: dict[str, dict[str, Any]] = Field({}, description="name -> settings laid over the base")
    grid: dict[str, list[Any]] = Field({}, description="dotted setting -> values; every combination is a variant")
    seeds: list[int] = Field([0], min_length=1, description="each variant is trained with each")
    train_sizes: list[int] = Field([], description="frames to train on; all of them where none are given")
    plots: list[PlotConfig] = Field([], description="pictures of errors over a setting")
    out: str = Field("compare", description="folder for the runs and the report")

    @model_validator(mode="after")
    def _something_to_compare(self) -> Comparison:
        if not self.variants and not self.grid:
            raise ValueError("give variants, a grid, or both")
        return self


class Trial(NamedTuple):
    """One run of a comparison."""

    variant: str
    size: int | None
    seed: int
    folder: Path
    config: Config


def read_comparison(path: Path, overrides: Mapping[str, Any]) -> Comparison:
    """The settings of a YAML file, some of them replaced. UserError names each wrong key with the nearest valid one."""
    values = {**read_recipe(path), **overrides}
    try:
        return Comparison(**values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"])
            if problem["type"] == "extra_forbidden":
                fields = PlotConfig.model_fields if key.startswith("plots") else Comparison.model_fields
                lines.append(f'{path}: unknown setting "{key}".{suggestion(key.rpartition(".")[2], fields)}')
            else:
                lines.append(
                    f"{path}: {key or 'settings'}: {str(problem['msg']).removeprefix('Value error, ').lower()}."
                )
        raise UserError("\n".join(lines)) from None


def laid_over(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Nested settings with others laid over them; dotted names reach into sections."""
    out: dict[str, Any] = dict(base)
    for key, value in changes.items():
        first, dot, rest = key.partition(".")
        if dot:
            out[first] = laid_over(out.get(first) or {}, {rest: value})
        elif isinstance(value, Mapping) and isinstance(out.get(key), Mapping):
            out[key] = laid_over(out[key], value)
        else:
            out[key] = value
    return out


def variants(comparison: Comparison) -> dict[str, dict[str, Any]]:
    """Every variant by name, those of the grid named by their values, e.g. "gcn, n_layers 4, residual none"."""
    named = comparison.variants or {"": {}}
    found = {}
    for name, changes in named.items():
        for values in itertools.product(*comparison.grid.values()):
            cell = dict(zip(comparison.grid, values, strict=True))
            told = [f"{key.rpartition('.')[2]} {value}" for key, value in cell.items()]
            found[", ".join([name, *told] if name else told)] = {**changes, **cell}
    return found


def trials(comparison: Comparison, where: str) -> list[Trial]:
    """All runs, each with its resolved settings, in the order in which they are trained.

    Seeds come outermost, so that a comparison that is stopped early has each variant at least once.
    """
    found: list[Trial] = []
    sizes: list[int | None] = [*comparison.train_sizes] or [None]
    for seed, (name, changes), size in itertools.product(comparison.seeds, variants(comparison).items(), sizes):
        words = [name.replace(", ", "_").replace(" ", "-"), *([f"n{size}"] if size else []), f"seed{seed}"]
        folder = Path(comparison.out) / "runs" / "_".join(words)
        settings = laid_over(comparison.base, changes)
        settings = laid_over(settings, {"seed": seed, "out": str(folder)})
        if size:
            settings = laid_over(settings, {"data": {"train_size": size}})
        found.append(Trial(name, size, seed, folder, resolve(settings, f"{where}: variant {name}")))
    if len(found) > MOST_RUNS:
        raise UserError(f"{where}: {len(found)} runs; at most {MOST_RUNS} are compared at once.")
    return found


def setting(config: Config, dotted: str) -> Any:
    """The value of a dotted setting in a resolved configuration; None where there is none."""
    value: Any = config.model_dump(mode="json")
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def to_yaml(comparison: Comparison) -> str:
    """The settings as YAML."""
    return yaml.safe_dump(comparison.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
