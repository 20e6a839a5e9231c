"""torch_geometric's DimeNet++ on graphs of its own binaries' kind, and its weights in ours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.special import spherical_jn
from torch import Tensor

from mlpot import models
from mlpot.models.dimenet import DimeNet

SETTINGS = {
    "cutoff": 3.1,
    "channels": 20,
    "n_interactions": 2,
    "n_basis": 4,
    "n_spherical": 5,
    "triplet_channels": 12,
    "basis_channels": 4,
    "output_channels": 24,
    "envelope": 4,
    "n_before_skip": 2,
    "n_after_skip": 1,
    "n_output_layers": 2,
}
THEIRS = {
    "cutoff": "cutoff",
    "channels": "hidden_channels",
    "n_interactions": "num_blocks",
    "n_basis": "num_radial",
    "n_spherical": "num_spherical",
    "triplet_channels": "int_emb_size",
    "basis_channels": "basis_emb_size",
    "output_channels": "out_emb_channels",
    "envelope": "envelope_exponent",
    "n_before_skip": "num_before_skip",
    "n_after_skip": "num_after_skip",
    "n_output_layers": "num_output_layers",
}


def radius_graph(positions: Tensor, r: float, batch: Tensor, max_num_neighbors: int) -> Tensor:
    """All pairs, without the limit on their number."""
    near = torch.cdist(positions.detach(), positions.detach()) < r
    near &= (batch[:, None] == batch) & ~torch.eye(len(positions), dtype=torch.bool)
    return near.nonzero().T.flip(0)  # source, target


def triplets(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, ...]:
    """As torch_geometric's, which needs torch_sparse for it: i, j of edges; i, j, k, kj, ji of triplets."""
    source, target = edge_index
    ji, kj = ((source[:, None] == target) & (target[:, None] != source)).nonzero().T
    return target, source, target[ji], source[ji], source[kj], kj, ji


def exact_zeros(n: int, k: int) -> np.ndarray:
    """Zeros of the spherical Bessel functions in float64, by bisection of sign changes on a fine grid."""
    grid = np.linspace(1e-3, np.pi * (k + n), 20_000)
    rows = []
    for order in range(n):
        values = spherical_jn(order, grid)
        where = np.nonzero(values[:-1] * values[1:] < 0)[0][:k]
        low, high = grid[where], grid[where + 1]
        for _ in range(60):
            middle = 0.5 * (low + high)
            same = np.sign(spherical_jn(order, middle)) == np.sign(spherical_jn(order, low))
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        rows.append(0.5 * (low + high))
    return np.stack(rows)


def peer_of(monkeypatch: pytest.MonkeyPatch, settings: dict[str, float], *, exact: bool = True) -> torch.nn.Module:
    """Random in every parameter, in float64. It rounds the zeros to float32, unless `exact`.

    Its edges and triplets are searched for here, as the binaries that it takes them from are not at hand.
    """
    from torch_geometric.nn.models import dimenet, dimenet_utils

    monkeypatch.setattr(dimenet, "radius_graph", radius_graph)
    monkeypatch.setattr(dimenet, "triplets", triplets)
    if exact:
        monkeypatch.setattr(dimenet_utils, "Jn_zeros", exact_zeros)
    torch.manual_seed(4)
    peer = dimenet.DimeNetPlusPlus(
        out_channels=1,
        output_initializer="glorot_orthogonal",
        **{THEIRS[key]: value for key, value in settings.items()},
    ).double()
    with torch.no_grad():
        for parameter in peer.parameters():
            parameter += 0.05 * torch.randn_like(parameter)
    return peer


def ours_of(peer: torch.nn.Module, settings: dict[str, float]) -> DimeNet:
    """Our model with the peer's weights."""
    model = models.build("dimenet", **settings).double()
    assert isinstance(model, DimeNet)
    state = {name_of(key): value for key, value in peer.state_dict().items()}
    atoms = model.embedding.atom.weight.detach().clone()
    atoms[:95] = state["embedding.atom.weight"]  # as many elements as it has
    model.load_state_dict({**state, "embedding.atom.weight": atoms}, strict=True)
    return model


RENAMED = {
    "rbf.freq": "frequencies",
    "emb.emb.": "embedding.atom.",
    "emb.lin_rbf.": "embedding.rbf.",
    "emb.lin.": "embedding.mix.",
    "interaction_blocks.": "interactions.",
    "output_blocks.": "outputs.",
    "lin_rbf1.": "rbf.first.",
    "lin_rbf2.": "rbf.second.",
    "lin_sbf1.": "sbf.first.",
    "lin_sbf2.": "sbf.second.",
    "lin_rbf.": "rbf.",
    "lin_kj.": "kj.",
    "lin_ji.": "ji.",
    "lin_down.": "down.",
    "lin_up.": "up.",
    "layers_before_skip.": "before_skip.",
    "layers_after_skip.": "after_skip.",
    "lin1.": "first.",
    "lin2.": "second.",
    "lins.": "layers.",
}


def name_of(theirs: str) -> str:
    """Our name of one of its parameters."""
    for old, new in RENAMED.items():
        theirs = theirs.replace(old, new)
    if theirs.startswith("outputs.") and theirs.endswith(".lin.weight"):
        return theirs.replace("outputs.", "readout.").replace(".lin.", ".")
    return theirs.replace(".lin.", ".mix.")
