"""The settings of a training run: YAML and overrides, checked before anything heavy loads."""

from __future__ import annotations

import difflib
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from mlpot.errors import UserError, suggestion

_UNITS_OF_TIME = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def seconds(value: Any) -> Any:
    """'30min', '2h', '90s' or a number of seconds, as seconds."""
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"\s*([0-9.]+(?:e[0-9]+)?)\s*([a-z]*)\s*", value.lower())
    if not found or (found[2] and found[2] not in _UNITS_OF_TIME):
        raise ValueError(f"'{value}' is not a time; write 90s, 30min or 2h")
    return float(found[1]) * _UNITS_OF_TIME[found[2] or "s"]


Seconds = Annotated[float, BeforeValidator(seconds)]
# A number, or [[progress, number], ...] joined by straight lines; progress runs from 0 to 1.
Ramp = float | list[tuple[float, float]]


class Section(BaseModel):
    """Settings that refuse a key they do not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class DataConfig(Section):
    """Where the frames come from."""

    train: str = Field(description="file to train on")
    valid: str | float | int | None = Field(
        None, description="file, number or fraction of the training file; default 10 %"
    )
    test: str | float | int | None = Field(
        None,
        description="evaluated at the end, never seen before: a file, or a number or fraction of frames",
    )
    train_size: int | None = Field(None, ge=1, description="use this many frames of the training file")
    split: Literal["random", "blocks", "scaffold"] = Field(
        "random", description="blocks: stretches of a trajectory; scaffold: molecules of one ring system together"
    )
    split_file: str | None = Field(None, description="a split written by an earlier run")
    keys: dict[str, str] = Field({}, description="names of labels in the file, e.g. {energy: REF_energy}")
    units: dict[str, str] = Field({}, description="units in the file, e.g. {energy: kcal/mol, forces: kcal/mol/Å}")
    embed: bool = Field(False, description="give molecules of a table coordinates: a conformer of rdkit's")
    uncharacterized: bool = Field(False, description="QM9: keep the molecules that failed its consistency check")
    theory: str = Field("", description="level of theory of the labels, kept with the model")
    reference_energies: str | dict[str, float] = Field(
        "auto", description="auto, isolated_atoms, least_squares, none, or {H: -13.6, ...} in eV"
    )
    config_weights: dict[str, float] = Field({}, description="weight of each config type, e.g. {bulk: 2}")


class ModelConfig(BaseModel):
    """Name of the model and its settings."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "schnet"
    start: str | None = Field(None, description="a trained model to go on from, in place of a name and settings")
    zbl: bool = Field(False, description="add the ZBL repulsion of nuclei at short range")

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that go to the model itself."""
        return dict(self.__pydantic_extra__ or {})


class TermConfig(Section):
    """One term of the loss."""

    weight: Ramp = 1.0
    kind: Literal["mse", "mae", "huber"] = "huber"
    delta: float = Field(0.01, gt=0, description="where Huber turns from square to straight, in the label's unit")


class EnergyTermConfig(TermConfig):
    """The energy term."""

    weight: Ramp = 1.0
    per_atom: bool = Field(True, description="divide the error by the number of atoms")


class StressTermConfig(TermConfig):
    """The stress term."""

    weight: Ramp = 10.0
    delta: float = Field(0.001, gt=0, description="as above; stress errors are small numbers in eV/Å³")


class LossConfig(Section):
    """Weights and kinds of the terms; a weight of 0 leaves a term out, and what it costs to compute."""

    energy: EnergyTermConfig = EnergyTermConfig()
    forces: TermConfig = TermConfig()
    stress: StressTermConfig = StressTermConfig()


class PropertiesConfig(Section):
    """A model of properties in place of a potential: what it predicts, how, and the loss."""

    targets: list[str | dict[str, Any]] | None = Field(
        None,
        description="names of properties in the data, or {name: gap, kind: intensive}; all where it has no energies",
    )
    freeze: bool = Field(False, description="train the heads alone, on the features of model.start as they are")
    readout: str = Field("mean", description="pooling of atoms for intensive targets and classes")
    dropout: float = Field(0.0, ge=0, lt=1, description="part of the features left out of a head, in training")
    loss: Literal["mse", "mae", "huber"] = Field("huber", description="of errors in units of the target's spread")
    delta: float = Field(0.1, gt=0, description="where Huber turns from square to straight, in the same units")
    weights: dict[str, float] = Field({}, description="weight of each target in the loss; 1 where not given")


class TrainingConfig(Section):
    """How long, how fast, in which steps."""

    epochs: int | None = Field(None, ge=1, description="passes over the training frames")
    budget: Seconds | None = Field(None, gt=0, description="time to train for, e.g. 30min; the schedule ends with it")
    batch_size: int | None = Field(None, ge=1, description="frames in a batch")
    batch_atoms: int | None = Field(None, ge=1, description="or: fill batches up to this many atoms")
    batch_edges: int | None = Field(None, ge=1, description="or: fill batches up to this many directed edges")
    learning_rate: float = Field(5e-3, gt=0)
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"
    warmup: float = Field(0.02, ge=0, lt=1, description="part of the run in which the rate rises from zero")
    final_rate: float = Field(0.0, ge=0, le=1, description="cosine: where it ends, as a part of learning_rate")
    plateau_patience: int = Field(10, ge=1, description="plateau: validations without progress before a cut")
    plateau_factor: float = Field(0.5, gt=0, lt=1)
    weight_decay: float = Field(0.0, ge=0)
    clip: float | None = Field(10.0, gt=0, description="largest norm of the gradient; null for no limit")
    ema: float | None = Field(
        0.999, gt=0, lt=1, description="decay of the averaged parameters, which are the ones kept"
    )
    valid_every: int | None = Field(None, ge=1, description="epochs between validations; default: about 100 in a run")
    checkpoint_every: Seconds = Field(60.0, gt=0, description="time between checkpoints")

    @model_validator(mode="after")
    def _one_of_each(self) -> TrainingConfig:
        if self.epochs is not None and self.budget is not None:
            raise ValueError("give either epochs or budget, not both")
        if sum(size is not None for size in (self.batch_size, self.batch_atoms, self.batch_edges)) > 1:
            raise ValueError("give one of batch_size, batch_atoms and batch_edges")
        return self


class Config(Section):
    """Everything a run depends on."""

    data: DataConfig
    model: ModelConfig = ModelConfig()
    loss: LossConfig = LossConfig()
    properties: PropertiesConfig = PropertiesConfig()
    training: TrainingConfig = TrainingConfig()
    out: str | None = Field(None, description="run folder; default runs/<name of the training file>")
    seed: int = Field(0, ge=0)
    device: str = Field("cpu", description="cpu, cuda, cuda:1 ... or auto")
    dtype: Literal["float32", "float64"] = "float32"
    threads: int | None = Field(None, ge=1, description="CPU threads; default: one for 100 atoms of a batch")
    tensorboard: bool = Field(False, description="write TensorBoard logs too")


SECTIONS: dict[str, type[BaseModel]] = {
    "data": DataConfig,
    "model": ModelConfig,
    "loss": LossConfig,
    "properties": PropertiesConfig,
    "training": TrainingConfig,
}


def paths(schema: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key there is, e.g. training.learning_rate."""
    for name, info in schema.model_fields.items():
        yield prefix + name
        if isinstance(info.annotation, type) and issubclass(info.annotation, BaseModel):
            yield from paths(info.annotation, f"{prefix}{name}.")


def _full_path(key: str) -> str:
    """`budget` for `training.budget`, `keys.energy` for `data.keys.energy`: what one section has may stand alone."""
    known = list(paths())
    first, dot, rest = key.partition(".")
    if dot and first not in SECTIONS and first not in known:
        return f"{_full_path(first)}.{rest}"
    if key in known or dot:
        return key
    ends = [path for path in known if path.rpartition(".")[2] == key]
    if len(ends) == 1:
        return ends[0]
    if ends:
        raise UserError(f'setting "{key}" is ambiguous: write one of {", ".join(ends)}.')
    return key


def apply_overrides(values: dict[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """`key=value` pairs, values read as YAML, laid over the settings of a recipe."""
    out: dict[str, Any] = {**values}
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator:
            raise UserError(f'"{override}" is not a setting; expected key=value, e.g. training.budget=30min.')
        *sections, last = _full_path(key.strip()).split(".")
        place = out
        for section in sections:
            place[section] = dict(place.get(section) or {})
            place = place[section]
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise UserError(f'setting {key}: "{text}" is not a value that YAML can read.') from None
    return out


def model_names() -> list[str]:
    """The models there are, found without importing them."""
    spec = find_spec("mlpot")
    folders = [str(Path(place) / "models") for place in (spec.submodule_search_locations or [])] if spec else []
    return sorted(module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_"))


def _message(problem: Mapping[str, Any], where: str) -> str:
    location: Sequence[Any] = problem["loc"]
    key = ".".join(str(part) for part in location)
    if problem["type"] == "extra_forbidden":
        parent, _, last = key.rpartition(".")
        siblings = {path.rpartition(".")[2]: path for path in paths() if path.rpartition(".")[0] == parent}
        leaves = {path.rpartition(".")[2]: path for path in paths()}
        close = difflib.get_close_matches(last, siblings, n=1) or difflib.get_close_matches(last, leaves, n=1)
        nearest = f' Did you mean "{siblings.get(close[0]) or leaves[close[0]]}"?' if close else ""
        return f'{where}: unknown setting "{key}".{nearest} Known there: {", ".join(siblings or SECTIONS)}.'
    if problem["type"] == "missing":
        return f"{where}: setting {key} is missing."
    message = str(problem["msg"]).removeprefix("Value error, ")
    shown = "" if isinstance(problem["input"], dict) else f" = {problem['input']!r}"
    return f"{where}: {key}{shown}: {message[:1].lower()}{message[1:]}."


def resolve(values: Mapping[str, Any], where: str) -> Config:
    """Checked settings. UserError names each wrong key with the nearest valid one."""
    try:
        config = Config(**values)
    except ValidationError as error:
        # A union reports one problem a member; the first of each key says enough.
        problems = {str(problem["loc"][:3]): problem for problem in reversed(error.errors())}
        raise UserError("\n".join(_message(problem, where) for problem in reversed(problems.values()))) from None
    names = model_names()
    if config.model.name not in names:
        raise UserError(
            f'{where}: model.name: unknown model "{config.model.name}".{suggestion(config.model.name, names)}'
        )
    return config


def read_recipe(path: Path) -> dict[str, Any]:
    """The settings in a YAML file; paths in it are relative to the working folder."""
    if not path.is_file():
        near = [p.name for p in path.parent.glob("*.y*ml")] if path.parent.is_dir() else []
        raise UserError(f"{path}: there is no such file.{suggestion(path.name, near)}")
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not valid YAML: {str(error).replace(chr(10), ' ')}") from None
    if not isinstance(values, dict):
        raise UserError(
            f"{path}: expected settings such as `data:`, `model:`, `training:`; found {type(values).__name__}."
        )
    return values


def to_yaml(config: Config) -> str:
    """The resolved settings as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
