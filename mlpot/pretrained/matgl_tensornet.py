"""Folders of matgl that hold a TensorNet of its versions 1 to 3 (model.json, state.pt), with the same numbers.

matgl 4 reads the pair of embeddings in the other order; what it writes has a version of its own and is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlpot import models
from mlpot.compose import ReferenceEnergies, Scaled, Sum
from mlpot.errors import UserError
from mlpot.inert import read
from mlpot.models.tensornet import TensorNet
from mlpot.potential import Potential
from mlpot.structure import SYMBOLS

FORMAT = "TensorNet of matgl"
VERSION = 1
# settings that change what is computed, and the only value that is read here
_NETWORK = {
    "rbf_type": "SphericalBessel",
    "use_smooth": True,
    "activation_type": "swish",
    "equivariance_invariance_group": "O(3)",
    "include_state": False,
    "is_intensive": False,
    "task_type": "regression",
    "ntargets": 1,
}


def recognises(path: Path) -> bool:
    """Whether it is a folder, or the model.json in one, whose model.json names matgl's TensorNet."""
    try:
        return bool(_settings(path)["@class"] == "TensorNet")
    except (OSError, ValueError, KeyError, TypeError):
        return False


def load(path: Path) -> Potential:
    """E = Σ E0 + std · TensorNet. Nothing in the files is run.

    Raises UserError for a folder that is damaged, and for what is not read, by name.
    """
    try:
        return _converted(path)
    except (KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(f"{path}: not laid out as a {FORMAT} is ({type(error).__name__}: {error}).") from None


def _folder(path: Path) -> Path:
    return path.parent if path.name == "model.json" else path


def _outer(path: Path) -> dict[str, Any]:
    return json.loads((_folder(path) / "model.json").read_text())["kwargs"]


def _settings(path: Path) -> dict[str, Any]:
    return _outer(path)["model"]


def _converted(path: Path) -> Potential:
    outer, settings = _outer(path), _settings(path)
    arguments = settings["init_args"]
    if settings["@model_version"] != VERSION:
        raise UserError(
            f"{path}: version {settings['@model_version']} of matgl's TensorNet is not read, only {VERSION}."
        )
    for name, value in _NETWORK.items():
        if arguments[name] != value:
            raise UserError(f"{path}: {name}={arguments[name]} is not read, only {value}.")
    if outer.get("calc_repuls"):
        raise UserError(f"{path}: calc_repuls={outer['calc_repuls']} is not read.")
    state = read(str(_folder(path) / "state.pt"))
    if float(state["data_mean"]) != 0.0:
        raise UserError(f"{path}: data_mean={float(state['data_mean'])} is not read, only 0.")
    elements = [SYMBOLS.index(symbol) for symbol in arguments["element_types"]]
    network = models.build(
        "tensornet",
        cutoff=arguments["cutoff"],
        channels=arguments["units"],
        n_interactions=arguments["nblocks"],
        n_basis=arguments["max_n"],
        basis="smooth_sinc",
        self_message=False,
        readout="gated",
    )
    assert isinstance(network, TensorNet)
    _fill(network, state, elements)
    energies = state["element_refs.property_offset"].tolist()
    potential = Sum(
        [
            Scaled([network], scale=float(state["data_std"])),
            ReferenceEnergies(energies=dict(zip(elements, energies, strict=True))),
        ]
    )
    potential.metadata = {"source": _folder(path).name, "format": FORMAT}
    return potential.eval()


def _fill(network: TensorNet, state: dict[str, Tensor], elements: list[int]) -> None:
    given = dict(_parameters(network, state, elements))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if given[name].shape != parameter.shape:
                raise ValueError(f"{name} is {tuple(given[name].shape)}, not {tuple(parameter.shape)}")
            parameter.copy_(given[name])


def _parameters(network: TensorNet, state: dict[str, Tensor], elements: list[int]) -> Iterator[tuple[str, Tensor]]:
    """Our names and their weights; what is three linear layers there is often one stack here."""
    channels = network.config.channels

    def layer(ours: str, theirs: str) -> Iterator[tuple[str, Tensor]]:
        for kind in ("weight", "bias"):
            yield f"{ours}.{kind}", state[f"model.{theirs}.{kind}"]

    def mix(ours: str, theirs: str, first: int = 0) -> Iterator[tuple[str, Tensor]]:
        layers = [state[f"model.{theirs}.{k}.weight"].T for k in range(first, first + 3)]
        yield f"{ours}.weight", torch.stack(layers)

    def three_in_one(ours: str, theirs: str) -> Iterator[tuple[str, Tensor]]:
        weight, bias = (state[f"model.{theirs}.{kind}"] for kind in ("weight", "bias"))
        yield f"{ours}.weight", weight.view(channels, 3, -1).permute(1, 2, 0)
        yield f"{ours}.bias", bias.view(channels, 3).T[:, None]

    theirs = "tensor_embedding"
    table = torch.zeros_like(network.embedding.embedding.weight)
    table[elements] = state[f"model.{theirs}.emb.weight"]
    yield "embedding.embedding.weight", table
    other, own = state[f"model.{theirs}.emb2.weight"].split(channels, 1)
    yield "embedding.own.weight", own
    yield "embedding.own.bias", state[f"model.{theirs}.emb2.bias"]
    yield "embedding.other.weight", other
    for kind in ("weight", "bias"):
        rows = torch.stack([state[f"model.{theirs}.distance_proj{k}.{kind}"] for k in (1, 2, 3)])
        yield f"embedding.filters.{kind}", rows.mT if kind == "weight" else rows[:, None]
    yield from mix("embedding.mix", f"{theirs}.linears_tensor")
    yield from layer("embedding.scales.0", f"{theirs}.init_norm")
    yield from layer("embedding.scales.1", f"{theirs}.linears_scalar.0")
    yield from three_in_one("embedding.scales.3", f"{theirs}.linears_scalar.1")
    for k in range(network.config.n_interactions):
        ours, theirs = f"interactions.{k}", f"layers.{k}"
        yield from layer(f"{ours}.filters.0", f"{theirs}.linears_scalar.0")
        yield from layer(f"{ours}.filters.2", f"{theirs}.linears_scalar.1")
        yield from three_in_one(f"{ours}.filters.4", f"{theirs}.linears_scalar.2")
        yield from mix(f"{ours}.inward", f"{theirs}.linears_tensor")
        yield from mix(f"{ours}.outward", f"{theirs}.linears_tensor", 3)
    yield from layer("invariants.0", "out_norm")
    yield from layer("invariants.1", "linear")
    for ours, theirs in (("value", "layers"), ("gate", "gates")):
        for k in (0, 2, 4, 6):
            yield from layer(f"readout.{ours}.{k}", f"final_layer.gated.{theirs}.{k}")
