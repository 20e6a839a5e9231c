"""What each atom contributes to a number, (n,) in its unit, by several methods. None of them is the truth: see each."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray

from mlpot.errors import UserError
from mlpot.explain.subject import Subject, without
from mlpot.models._graph_network import Attention, AttentionNetwork
from mlpot.potential import Potential

Array = NDArray[np.float64]
STEPS = 50  # of the path of integrated gradients


def occlusion(subject: Subject) -> Array:
    """f(molecule) - f(molecule without the atom and its bonds).

    Asks the model itself, but of molecules that it has never seen the like of. Contributions of atoms that only work
    together are counted for each of them.
    """
    n = len(subject.structure)
    if n < 2:
        raise UserError("occlusion takes atoms away one by one; a molecule of one atom has nothing left then.")
    whole = subject.values([subject.structure])[0]
    return whole - subject.values([without(subject.structure, [atom]) for atom in range(n)])


def gradient_times_input(subject: Subject) -> Array:
    """Σ_c x_ic ∂f/∂x_ic over an atom's first features x_i: what f would change by, were it a straight line."""
    with subject.embedded() as kept:
        value = subject.value(subject.graph(subject.structure))
        (gradient,) = torch.autograd.grad(value.sum(), kept)
    return (kept[0] * gradient).sum(1).to(torch.float64).detach().numpy()


def integrated_gradients(subject: Subject) -> Array:
    """∫₀¹ Σ_c x_ic ∂f/∂x_ic(α x) dα (Sundararajan et al., arXiv:1703.01365), by Gauss-Legendre of STEPS points.

    They add up to f(x) - f(0), where all first features are zero: a molecule of nothing in particular.
    """
    places, weights = np.polynomial.legendre.leggauss(STEPS)
    total: Array = np.zeros(len(subject.structure))
    for place, weight in zip(0.5 * (places + 1.0), 0.5 * weights, strict=True):
        with subject.embedded(float(place)) as kept:
            value = subject.value(subject.graph(subject.structure))
            (gradient,) = torch.autograd.grad(value.sum(), kept)
        total += weight * (kept[0] / place * gradient).sum(1).to(torch.float64).detach().numpy()
    return total


def atom_energies(subject: Subject) -> Array:
    """The energy of each atom above the free atom, eV, as the potential adds them up.

    How a sum is shared out among the atoms is the model's own choice.
    """
    if not isinstance(subject.model, Potential):
        raise UserError("energies of atoms are what potentials have; this model predicts properties.")
    with torch.no_grad():
        return subject.atom_energies(subject.graph(subject.structure)).numpy()


def traced(subject: Subject) -> list[Attention]:
    """The attention of every layer; UserError for a network without any."""
    network = subject.network
    if not isinstance(network, AttentionNetwork):
        raise UserError(f"{type(network).__name__} has no attention to look at; gat and transformer have.")
    return network.traced(subject.graph(subject.structure))[1]


def matrices(layers: list[Attention]) -> Array:
    """Attention as matrices (L, H, n, n): row i says how much atom i takes from each atom."""
    found = []
    for edge_index, weights, own in layers:
        n, heads = own.shape
        matrix = torch.zeros(heads, n, n, dtype=torch.float64)
        source, target = edge_index
        matrix.index_put_((torch.arange(heads)[:, None], target, source), weights.T.to(torch.float64), accumulate=True)
        matrix += torch.diag_embed(own.T.to(torch.float64))
        found.append(matrix.detach().numpy())
    return np.stack(found)


def rollout(attention: Array) -> Array:
    """Π_l (½ mean over heads A_l + ½ 1), (L, H, n, n) -> (n, n) (Abnar, Zuidema, arXiv:2005.00928).

    The ½ 1 stands for the residuals.
    """
    n = attention.shape[-1]
    flow = np.eye(n)
    for layer in attention.mean(axis=1):
        flow = (0.5 * layer + 0.5 * np.eye(n)) @ flow
    return flow


def attention_rollout(subject: Subject) -> Array:
    """How much of each atom arrives in all atoms by rollout, with a mean of 1.

    It says where information could come from, not what it does to the answer: it is the same for every target.
    """
    with torch.no_grad():
        return rollout(matrices(traced(subject))).mean(axis=0) * len(subject.structure)


def weighted_attention(subject: Subject) -> Array:
    """Rollout of the positive parts of A ∘ ∂f/∂A (Chefer et al., arXiv:2103.15679): attention that this answer uses."""
    network = subject.network
    if not isinstance(network, AttentionNetwork):
        raise UserError(f"{type(network).__name__} has no attention to look at; gat and transformer have.")
    kept: list[Attention] = []
    original = network.features

    def features(graph: object) -> object:
        found, layers = network.traced(graph)  # type: ignore[arg-type]
        kept.extend(layers)
        return found

    try:
        network.features = features  # type: ignore[method-assign, assignment]
        for parameter in network.parameters():
            parameter.requires_grad_(True)
        value = subject.value(subject.graph(subject.structure))
        wanted = [tensor for layer in kept for tensor in (layer.weights, layer.own)]
        gradients = torch.autograd.grad(value.sum(), wanted, allow_unused=True)
    finally:
        network.features = original  # type: ignore[method-assign]
        for parameter in network.parameters():
            parameter.requires_grad_(False)
    filled = [torch.zeros_like(w) if g is None else g for w, g in zip(wanted, gradients, strict=True)]
    relevant = [
        Attention(layer.edge_index, (layer.weights * to_weights).clamp(min=0), (layer.own * to_own).clamp(min=0))
        for layer, to_weights, to_own in zip(kept, filled[::2], filled[1::2], strict=True)
    ]
    flow = np.eye(len(subject.structure))
    for layer in matrices(relevant).mean(axis=1):
        flow = flow + layer @ flow
    return (flow - np.eye(len(flow))).mean(axis=0)


METHODS: dict[str, Callable[[Subject], Array]] = {
    "occlusion": occlusion,
    "gradient": gradient_times_input,
    "integrated": integrated_gradients,
    "energies": atom_energies,
    "attention": attention_rollout,
    "weighted-attention": weighted_attention,
}
