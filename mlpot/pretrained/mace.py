"""Models of mace-torch (torch.save of the whole module) as MACE, with the same numbers."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlpot import models
from mlpot.compose import ReferenceEnergies, Scaled, Sum
from mlpot.errors import UserError
from mlpot.inert import Inert, read
from mlpot.models.mace import MACE, Block
from mlpot.nn.scaled import SILU_SCALE, Mix
from mlpot.nn.symmetric import symmetric_basis
from mlpot.potential import Potential

FORMAT = "model of mace-torch"
_MODELS = ("ScaleShiftMACE", "MACE")
# name of an interaction: (with a term of the atom's own, divided by a density)
_INTERACTIONS = {
    "RealAgnosticInteractionBlock": (False, False),
    "RealAgnosticResidualInteractionBlock": (True, False),
    "RealAgnosticDensityInteractionBlock": (False, True),
    "RealAgnosticDensityResidualInteractionBlock": (True, True),
}
# attributes that change what is computed, and the only value that is read here
_PLAIN = {"apply_cutoff": True, "use_so3": False, "use_agnostic_product": False, "use_last_readout_only": False}


def recognises(path: Path) -> bool:
    """Whether the pickle in a file of torch.save names a class of mace."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(b"mace.modules" in archive.read(n)[:4096] for n in archive.namelist() if n.endswith("data.pkl"))
    except (OSError, zipfile.BadZipFile):
        return False


def load(path: Path) -> Potential:
    """E = Σ E0 + shift + scale · (MACE + ZBL where there is one). Nothing in the file is run.

    Raises UserError for a file that is damaged, and for what is not read: other classes, several heads, other radial
    bases, by name.
    """
    try:
        return _converted(read(str(path)), str(path))
    except (KeyError, AttributeError, TypeError, ValueError, IndexError, RuntimeError) as error:
        raise UserError(f"{path}: not laid out as a {FORMAT} is ({type(error).__name__}: {error}).") from None


def _name(value: Any) -> str:
    return value.kind.rpartition(".")[2] if isinstance(value, Inert) else type(value).__name__


def _require(path: str, value: Any, known: tuple[str, ...], what: str) -> None:
    if _name(value) not in known:
        raise UserError(f"{path}: {what} {_name(value)} is not read; known: {', '.join(known)}.")


def _converted(root: Any, path: str) -> Potential:
    _require(path, root, _MODELS, "class")
    heads = root.get("heads") or ["Default"]
    if len(heads) > 1:
        raise UserError(
            f"{path}: it has several heads ({', '.join(map(str, heads))}); only files of one head are read."
        )
    for name, value in _PLAIN.items():
        if (found := root.get(name)) is not None and bool(found) != value:
            raise UserError(f"{path}: {name}={found} is not read, only {value}.")
    for name in ("joint_embedding", "edge_irreps"):
        if root.get(name) is not None:
            raise UserError(f"{path}: models with {name} are not read.")
    settings = _settings(root, path)
    network = models.build("mace", **settings)
    assert isinstance(network, MACE)
    energies = root.at("atomic_energies_fn.atomic_energies").reshape(-1)
    network.to(energies.dtype)
    _fill(network, root)
    parts: list[Potential] = [network]
    if (repulsion := root.get("pair_repulsion_fn")) is not None:
        values = {name: float(repulsion.at(key)) for name, key in (("exponent", "a_exp"), ("prefactor", "a_prefactor"))}
        parts.append(models.build("zbl_covalent", cutoff=network.cutoff, order=int(repulsion.at("p")), **values))
    block = root.get("scale_shift")
    scale, shift = (1.0, 0.0) if block is None else (float(block.at(key)) for key in ("scale", "shift"))
    table = {z: e + shift for z, e in zip(network.config.species, energies.tolist(), strict=True)}
    potential = Sum([Scaled([Sum(parts)], scale=scale), ReferenceEnergies(energies=table)])
    potential.metadata = {"source": Path(path).name, "format": FORMAT}
    return potential.eval()


def _settings(root: Inert, path: str) -> dict[str, Any]:
    blocks = list(root.at("interactions").children())
    for block in blocks:
        _require(path, block, tuple(_INTERACTIONS), "interaction")
    kinds = [_INTERACTIONS[_name(block)] for block in blocks]
    if not all(residual for residual, _ in kinds[1:]) or len({density for _, density in kinds}) > 1:
        raise UserError(f"{path}: this mixture of interactions is not read: {', '.join(map(_name, blocks))}.")
    averages = {float(block.at("avg_num_neighbors")) for block in blocks}
    if len(averages) > 1:
        raise UserError(f"{path}: its blocks have different numbers of neighbours, {sorted(averages)}; not read.")
    species = tuple(int(z) for z in root.at("atomic_numbers"))
    channels = root.at("node_embedding.linear.weight").numel() // len(species)
    contraction = root.at("products.0.symmetric_contractions.contractions.0")
    correlation = max(nu for nu in range(1, 5) if contraction.get(f"U_matrix_{nu}") is not None)
    radial = root.at("radial_embedding")
    _require(path, radial.at("bessel_fn"), ("BesselBasis",), "radial basis")
    frequencies, cutoff = radial.at("bessel_fn.bessel_weights").double(), float(root.at("r_max"))
    if not torch.allclose(frequencies, torch.arange(1, len(frequencies) + 1).double() * (torch.pi / cutoff), rtol=1e-5):
        raise UserError(f"{path}: the frequencies of its Bessel functions were trained, which is not read.")
    last = list(root.at("readouts").children())[-1]
    _require(path, last, ("NonLinearReadoutBlock",), "last readout")
    _check_activation(path, last.at("non_linearity.acts.0"))
    layers = list(blocks[0].at("conv_tp_weights").children())
    return {
        "cutoff": cutoff,
        "channels": channels,
        "l_hidden": _degrees(blocks[1].at("linear_up.weight"), channels, path) if len(blocks) > 1 else 0,
        "l_max": round(contraction.at("U_matrix_1").shape[-2] ** 0.5) - 1,
        "correlation": correlation,
        "n_interactions": len(blocks),
        "n_basis": len(frequencies),
        "envelope": int(radial.at("cutoff_fn.p")),
        "radial_channels": tuple(layer.at("weight").shape[1] for layer in layers[:-1]),
        "readout_channels": last.at("linear_1.weight").numel() // channels,
        "first_residual": kinds[0][0],
        "density": kinds[0][1],
        "distance_transform": _transform(radial.get("distance_transform"), path),
        "average_neighbors": averages.pop(),
        "elements": species,
    }


def _transform(transform: Any, path: str) -> str:
    if transform is None:
        return "none"
    _require(path, transform, ("AgnesiTransform",), "distance transform")
    values = [float(transform.at(key)) for key in "qpa"]
    if any(abs(a - b) > 1e-5 for a, b in zip(values, (0.9183, 4.5791, 1.0805), strict=True)):
        raise UserError(f"{path}: the constants of its Agnesi transform were trained, which is not read.")
    return "agnesi"


def _check_activation(path: str, activation: Any) -> None:
    if _name(activation.get("f")) != "silu" and "silu" not in str(activation.get("f")):
        raise UserError(f"{path}: activation {_name(activation.get('f'))} of the readout is not read; known: silu.")
    if abs(float(activation.get("cst", SILU_SCALE)) - SILU_SCALE) > 1e-9:
        raise UserError(f"{path}: its activations are scaled by {activation.get('cst')}, not by {SILU_SCALE}.")


def _degrees(weight: Tensor, channels: int, path: str) -> int:
    n, rest = divmod(weight.numel(), channels**2)
    if rest or not 1 <= n <= 3:
        raise UserError(f"{path}: features other than C scalars, C vectors, C tensors of degree 2 are not read.")
    return n - 1


def _fill(network: MACE, root: Inert) -> None:
    """Copy the parameters; each has its normalisation from e3nn, so the numbers stay as they are."""
    given = dict(parameters(network, root))
    missing = set(dict(network.named_parameters())) - set(given)
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(given[name].reshape(parameter.shape))


def parameters(network: MACE, root: Inert, products: bool = True) -> Iterator[tuple[str, Tensor]]:
    """Our names and their weights, in our order of elements; `products` takes in those of the contractions."""
    n, channels = network.embedding.shape
    yield "embedding", root.at("node_embedding.linear.weight")
    for k, block in enumerate(network.blocks):
        theirs, ours = root.at(f"interactions.{k}"), f"blocks.{k}"
        for degree, weight in enumerate(theirs.at("linear_up.weight").view(-1, channels, channels)):
            yield f"{ours}.interaction.up.{degree}.weight", weight
        for layer, network_layer in enumerate(theirs.at("conv_tp_weights").children()):
            yield f"{ours}.interaction.radial.layers.{layer}.weight", network_layer.at("weight")
        assert isinstance(block, Block)
        mixes = [mix.weight.numel() for mix in block.interaction.mix if isinstance(mix, Mix)]
        for degree, weight in enumerate(theirs.at("linear.weight").split(mixes)):
            yield f"{ours}.interaction.mix.{degree}.weight", weight
        if (density := theirs.get("density_fn")) is not None:
            yield f"{ours}.interaction.density.weight", density.at("layer0.weight")
        for degree, weight in enumerate(theirs.at("skip_tp.weight").view(-1, channels, n, channels)):
            yield f"{ours}.own.{degree}.weight", weight.transpose(0, 1)
        product = root.at(f"products.{k}")
        for degree, weight in enumerate(product.at("linear.weight").view(-1, channels, channels)):
            yield f"{ours}.product.mix.{degree}.weight", weight
        contractions = product.at("symmetric_contractions.contractions").children() if products else ()
        for degree, contraction in enumerate(contractions):
            weight = _reduced(contraction, network.config.l_max, degree, network.config.correlation)
            yield f"{ours}.product.contractions.{degree}.weight", weight
        readout = root.at(f"readouts.{k}")
        layers = ("linear",) if readout.get("linear") is not None else ("linear_1", "linear_2")
        for layer, name in enumerate(layers):
            yield f"{ours}.readout.layers.{layer}.weight", readout.at(f"{name}.weight")


def _reduced(contraction: Inert, l_max: int, degree: int, correlation: int) -> Tensor:
    """Weights (species, η, C) of the same polynomials in our basis. theirs: weights_max, then weights.0, .1 ..."""
    parts = []
    for order in range(1, correlation + 1):
        weight = contraction.at("weights_max" if order == correlation else f"weights.{correlation - 1 - order}")
        basis = torch.from_numpy(symmetric_basis(l_max, degree, order)).flatten(1)  # (η, components)
        couplings = contraction.at(f"U_matrix_{order}").double()
        couplings = couplings.reshape(-1, couplings.shape[-1])  # (components, paths)
        if weight.shape[1] != couplings.shape[1]:  # an order without couplings has no weights
            weight = weight.new_zeros(weight.shape[0], couplings.shape[1], contraction.at("weights_max").shape[2])
        parts.append(torch.einsum("ex,xp,zpc->zec", basis, couplings, weight.double()))
    return torch.cat(parts, 1)
