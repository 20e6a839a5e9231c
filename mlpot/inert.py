"""Pickles of whole torch modules, read without importing or running anything that they name.

Every class and function in the file becomes an `Inert` record of its name, arguments and state. Tensors are rebuilt
from the bytes beside the pickle; nothing else is.
"""

from __future__ import annotations

import collections
import math
import pickle
import zipfile
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import torch
from torch import Tensor

from mlpot.errors import UserError

_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Inert:
    """An object of a class, or the result of a function, that was named in the file: what was known of it."""

    kind = ""

    args: tuple[Any, ...]
    state: dict[Any, Any]
    items: list[Any]

    def __new__(cls, *args: Any, **_: Any) -> Inert:
        """Called by the pickle, with or without __init__ after it."""
        made = super().__new__(cls)
        made.args, made.state, made.items = args, {}, []
        return made

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {"": state}

    def __setitem__(self, key: Any, value: Any) -> None:
        self.state[key] = value

    def append(self, value: Any) -> None:
        """Called by the pickle for lists of the file's own."""
        self.items.append(value)

    def extend(self, values: Any) -> None:
        """Called by the pickle for lists of the file's own."""
        self.items.extend(values)

    def get(self, name: str, default: Any = None) -> Any:
        """A plain attribute, parameter, buffer or submodule of a torch module."""
        for section in ("_parameters", "_buffers", "_modules"):
            inside = self.state.get(section)
            if inside is not None and name in inside:
                return inside[name]
        return self.state.get(name, default)

    def at(self, path: str) -> Any:
        """`get` along a dotted path; KeyError with the path where something is missing."""
        value: Any = self
        for name in path.split("."):
            found = value.get(name, None) if isinstance(value, Inert) else None
            if found is None:
                raise KeyError(path)
            value = found
        return value

    def children(self) -> Iterator[Any]:
        """The submodules, in order."""
        yield from (self.state.get("_modules") or {}).values()


class _Reader(pickle.Unpickler):
    """Finds no class but stand-ins."""

    def __init__(self, stream: BinaryIO, storage: Callable[[str, torch.dtype], Tensor]) -> None:
        super().__init__(stream, encoding="utf-8")
        self._storage = storage
        self._kinds: dict[str, Any] = {
            "collections.OrderedDict": collections.OrderedDict,
            "builtins.set": set,
            "__builtin__.set": set,
            "_codecs.encode": _encoded,
            "torch._utils._rebuild_tensor_v2": _tensor,
            "torch._utils._rebuild_parameter": _parameter,
        }

    def find_class(self, module: str, name: str) -> Any:
        kind = f"{module}.{name}"
        if kind not in self._kinds:
            self._kinds[kind] = type(name.rpartition(".")[2], (Inert,), {"kind": kind})
        return self._kinds[kind]

    def persistent_load(self, pid: Any) -> Any:
        _, storage, key, _, size = pid
        name = storage.kind.rpartition(".")[2]
        if name not in _DTYPES:
            raise pickle.UnpicklingError(f"storage of unknown type {storage.kind}")
        flat = self._storage(str(key), _DTYPES[name])
        if flat.numel() < size:
            raise pickle.UnpicklingError(f"storage {key} is cut short")
        return flat


def _encoded(text: str, _: str = "latin1") -> bytes:
    return text.encode("latin1")


def _tensor(flat: Tensor, offset: int, size: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Tensor:
    if math.prod(size) and offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True)) >= flat.numel():
        raise pickle.UnpicklingError("a tensor reaches beyond its storage")
    return flat.as_strided(size, stride, offset).clone()


def _parameter(data: Tensor, *_: Any) -> Tensor:
    return data


def read(path: str) -> Any:
    """The object that a file of torch.save holds, with `Inert` records for all but plain values and tensors.

    Raises UserError for a file that is damaged or of another kind.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
            if broken:
                raise UserError(f"{path}: damaged (the checksum of {broken} is wrong).")
            root = next(name.removesuffix("data.pkl") for name in archive.namelist() if name.endswith("/data.pkl"))

            def storage(key: str, dtype: torch.dtype) -> Tensor:
                data = archive.read(f"{root}data/{key}")
                return torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)

            with archive.open(f"{root}data.pkl") as stream:
                return _Reader(stream, storage).load()  # type: ignore[arg-type]
    except (zipfile.BadZipFile, StopIteration, OSError, EOFError) as error:
        raise UserError(f"{path}: not a file of torch.save, or damaged ({error or 'no data.pkl in it'}).") from None
    except UserError:
        raise
    except Exception as error:  # a damaged pickle may raise anything
        raise UserError(f"{path}: damaged ({str(error) or type(error).__name__}).") from None
