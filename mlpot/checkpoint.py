"""One file holds a model: versioned, strict, and read without running any code in it."""

from __future__ import annotations

import io
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from mlpot import __version__, models
from mlpot.compose import KINDS as COMPOSITIONS
from mlpot.errors import UserError, suggestion, unknown
from mlpot.model import Model
from mlpot.property_model import PropertyModel
from mlpot.structure import SYMBOLS

FORMAT = "mlpot potential"
VERSION = 1
# version -> a pure function from that version's content to the next one's
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}
# What is made of other models, by the name in a file.
KINDS: dict[str, Any] = {**COMPOSITIONS, "properties": PropertyModel}
DTYPES = {"float32": torch.float32, "float64": torch.float64}


def describe(potential: Model) -> dict[str, Any]:
    """The plain description that rebuilds a potential: model, config, parts, elements; no parameters."""
    name = next((key for key, kind in KINDS.items() if type(potential) is kind), None)
    if name is not None:
        parts = [describe(part) for part in potential.parts]  # type: ignore[union-attr]
    else:
        name, parts = type(potential).__module__.rpartition(".")[2], []
        if name not in models.names() or models.find(name) is not type(potential):
            name = None
    if name is None:
        raise UserError(
            f"{type(potential).__name__} cannot be saved: only models found in mlpot.models can be rebuilt from a file."
        )
    config = potential.config.model_dump(mode="json")
    elements = None if potential.elements is None else [SYMBOLS[z] for z in potential.elements]
    return {"model": name, "config": config, "parts": parts, "elements": elements}


def rebuild(description: Mapping[str, Any], where: str) -> Model:
    """A potential with fresh parameters from `describe`'s output. UserError for anything unknown or missing."""
    name, config = description["model"], dict(description["config"])
    known = [*KINDS, *models.names()]
    if name not in known:
        raise UserError(f'{where}: it holds an unknown model "{name}".{suggestion(name, known)}')
    schema = KINDS[name].Config if name in KINDS else models.config_class(name)
    missing = sorted(set(schema.model_fields) - set(config))
    if missing:
        raise UserError(
            f"{where}: the settings of {name} lack {', '.join(missing)}; the file is damaged or was edited."
        )
    try:
        settings = schema(**config)
    except ValidationError as error:
        raise UserError(models.explain(error, schema, f"{where}: {name}")) from None
    if name in KINDS:
        potential = KINDS[name].assemble([rebuild(part, where) for part in description["parts"]], settings)
    else:
        potential = models.find(name)(settings)  # type: ignore[call-arg]
    elements = description["elements"]
    strange = [symbol for symbol in elements or () if symbol not in SYMBOLS[1:]]
    if strange:
        raise UserError(f"{where}: it names elements that do not exist: {', '.join(map(str, strange))}.")
    potential.restrict_to(None if elements is None else [SYMBOLS.index(symbol) for symbol in elements])
    return potential


def content(potential: Model, metadata: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What `save` writes: tensors and plain values only."""
    state = {key: value.detach().cpu().clone() for key, value in potential.state_dict().items()}
    return {
        "format": FORMAT,
        "version": VERSION,
        "written_by": __version__,
        "potential": describe(potential),
        "dtype": _dtype(potential, state),
        "state_dict": state,
        "units": {"energy": "eV", "length": "Å"},
        "metadata": dict(potential.metadata if metadata is None else metadata),
    }


def _dtype(potential: Model, state: Mapping[str, torch.Tensor]) -> str:
    """The one dtype of a potential's parameters, by name."""
    found = {value.dtype for value in state.values() if value.is_floating_point()} or {potential.dtype}
    names = sorted(str(dtype).removeprefix("torch.") for dtype in found)
    if len(names) > 1 or names[0] not in DTYPES:
        raise UserError(
            f"the parameters are in {' and '.join(names)}; a file holds one of {' and '.join(DTYPES)}. "
            f"Cast the potential with .float() or .double() first."
        )
    return names[0]


def write(path: str | os.PathLike[str], value: dict[str, Any]) -> None:
    """Write tensors and plain values to `path`: the file is there whole, or not at all."""
    target = Path(path)
    buffer = io.BytesIO()
    torch.save(value, buffer)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise UserError(f"{target}: cannot be written ({error.strerror}).") from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # temporary files are private by default
        os.replace(temporary, target)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise UserError(f"{target}: cannot be written ({error.strerror}).") from None


def save(path: str | os.PathLike[str], potential: Model, metadata: Mapping[str, Any] | None = None) -> None:
    """Write a potential to one file. `metadata` is plain values; it defaults to the potential's own."""
    write(path, content(potential, metadata))


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a file of ours, upgraded to the present version. UserError for any other file."""
    file = Path(path)
    if not file.is_file():
        near = [p.name for p in file.parent.glob("*")] if file.parent.is_dir() else []
        kind = "is a folder" if file.is_dir() else "does not exist"
        raise UserError(f"{file}: {kind}; expected a .mlpot file.{suggestion(file.name, near)}")
    value, broken = None, None
    try:
        if whole := zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:  # torch does not look at the checksums
                broken = archive.testzip()
            value = None if broken else torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:
        raise UserError(
            f"{file}: it holds Python objects besides tensors and plain values. Loading them could run code, "
            f"so the file is refused."
        ) from None
    except Exception as error:  # what a damaged archive raises has no common base
        raise UserError(f"{file}: damaged ({(str(error) or type(error).__name__).splitlines()[0]}).") from None
    if not whole:
        raise UserError(f"{file}: not a checkpoint of mlpot, or cut short ({file.stat().st_size} bytes).")
    if broken:
        raise UserError(f"{file}: damaged (the checksum of {broken} is wrong).")
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        raise UserError(f"{file}: a torch file, but not a checkpoint of mlpot (no format mark).")
    version = value.get("version")
    oldest = min([*UPGRADES, VERSION])
    if not isinstance(version, int) or not oldest <= version <= VERSION:
        raise UserError(
            f"{file}: checkpoint version {version}, written by mlpot {value.get('written_by')}; this mlpot "
            f"{__version__} reads versions {oldest} to {VERSION}. Update mlpot where the file is newer."
        )
    while version < VERSION:
        value, version = UPGRADES[version](value), version + 1
    return value


def restore(value: Mapping[str, Any], where: str) -> Model:
    """The potential of a checkpoint's content, parameters and all."""
    missing = sorted({"potential", "dtype", "state_dict", "metadata"} - set(value))
    if missing:
        raise UserError(f"{where}: the checkpoint lacks {', '.join(missing)}; the file is damaged or was edited.")
    if value["dtype"] not in DTYPES:
        raise unknown("dtype", value["dtype"], DTYPES, where)
    try:
        with torch.random.fork_rng(devices=[]):  # fresh parameters are drawn, only to be replaced
            potential = rebuild(value["potential"], where).to(DTYPES[value["dtype"]])
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{where}: damaged or edited; the model it describes cannot be built ({error!r}).") from None
    try:
        potential.load_state_dict(value["state_dict"], strict=True)
    except RuntimeError as error:
        detail = "; ".join(line.strip() for line in str(error).splitlines()[1:3])
        raise UserError(f"{where}: its parameters do not fit its model: {detail}") from None
    potential.metadata = dict(value["metadata"])
    return potential.eval()


def load(path: str | os.PathLike[str]) -> Model:
    """The potential in a file written by `save`, on the CPU, in the dtype it was saved in; `metadata` beside it.

    Raises UserError for a file that is missing, damaged, of a later version, or that holds code.
    """
    return restore(read(path), str(path))
