"""Attention: torch's and torch_geometric's numbers, the laws of sets, and smoothness at the cutoff."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from mlpot.errors import UserError
from mlpot.nn.attention import (
    Additive,
    Attended,
    MultiHead,
    Multiplicative,
    edge_softmax,
    join_heads,
    scaled_dot_product,
    split_heads,
)
from mlpot.nn.radial import cosine_cutoff

C, H = 8, 2
FORMS: dict[str, Callable[[], nn.Module]] = {
    "multi-head": lambda: MultiHead(C, H),
    "additive": lambda: Additive(C, H),
    "multiplicative": lambda: Multiplicative(C, H),
}


def form(name: str) -> Callable[..., Attended]:
    """One of the forms with weights of its own, or the plain product with heads split and joined around it."""
    if name == "dot":

        def dot(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Attended:
            inside = None if mask is None else mask.unsqueeze(-3)
            output, weights = scaled_dot_product(*(split_heads(x, H) for x in (query, key, value)), inside)
            return Attended(join_heads(output), weights)

        return dot
    torch.manual_seed(0)
    return FORMS[name]().double()


NAMES = ["dot", *FORMS]


def some(n_queries: int, n_keys: int, seed: int, *leading: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)

    def normal(n: int) -> Tensor:
        return torch.randn(*leading, n, C, generator=random, dtype=torch.float64)

    mask = torch.rand(*leading, n_queries, n_keys, generator=random) < 0.6
    return normal(n_queries), normal(n_keys), normal(n_keys), mask


SIZES = {"n_queries": st.integers(1, 4), "n_keys": st.integers(1, 5), "seed": st.integers(0, 2**20)}


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_queries_may_be_permuted_and_keys_with_their_values(name: str, n_queries: int, n_keys: int, seed: int) -> None:
    query, key, value, mask = some(n_queries, n_keys, seed)
    attention, random = form(name), torch.Generator().manual_seed(seed)
    found = attention(query, key, value, mask)
    q, k = torch.randperm(n_queries, generator=random), torch.randperm(n_keys, generator=random)
    moved = attention(query[q], key[k], value[k], mask[q][:, k])
    torch.testing.assert_close(moved.output, found.output[q])
    torch.testing.assert_close(moved.weights, found.weights[:, q][:, :, k])
    assert found.weights.shape == (H, n_queries, n_keys)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None)
@given(**SIZES)
def test_masked_keys_do_not_matter_and_weights_add_up(name: str, n_queries: int, n_keys: int, seed: int) -> None:
    query, key, value, mask = some(n_queries, n_keys, seed)
    attention = form(name)
    found = attention(query, key, value, mask)
    hidden = ~mask.any(0)  # from all queries
    far = torch.where(hidden[:, None], 1e3, 0.0)
    again = attention(query, key + far, value + far, mask)
    torch.testing.assert_close(again.output, found.output)
    allowed = key[~hidden], value[~hidden], mask[:, ~hidden]
    torch.testing.assert_close(attention(query, *allowed).output, found.output)
    torch.testing.assert_close(found.weights.sum(-1), mask.any(-1).double().expand(H, -1))
    assert bool((found.weights[:, ~mask] == 0).all())


@pytest.mark.parametrize("name", NAMES)
def test_a_row_wholly_masked_gives_zeros_and_finite_gradients(name: str) -> None:
    query, key, value, mask = some(3, 4, 0)
    mask[1] = False
    attention = form(name)
    inputs = [x.requires_grad_() for x in (query, key, value)]
    found = attention(*inputs, mask)
    alone = attention.out.bias if isinstance(attention, MultiHead) else torch.zeros(C, dtype=torch.float64)
    torch.testing.assert_close(found.output[1], alone)
    assert bool((found.weights[:, 1] == 0).all())
    for gradient in torch.autograd.grad(found.output.square().sum(), inputs):
        assert bool(torch.isfinite(gradient).all())
    none = attention(query, key[:0], value[:0])  # no keys at all
    torch.testing.assert_close(none.output, alone.expand(3, -1))


@pytest.mark.parametrize("name", NAMES)
def test_batches_are_their_members(name: str) -> None:
    query, key, value, mask = some(3, 4, 1, 2, 3)
    attention = form(name)
    found = attention(query, key, value, mask)
    assert found.weights.shape == (2, 3, H, 3, 4)
    one = attention(query[1, 2], key[1, 2], value[1, 2], mask[1, 2])
    torch.testing.assert_close(found.output[1, 2], one.output)
    torch.testing.assert_close(found.weights[1, 2], one.weights)


@pytest.mark.parametrize("name", NAMES)
def test_gradients(name: str) -> None:
    query, key, value, mask = some(2, 3, 2)
    attention = form(name)
    inputs = tuple(x.requires_grad_() for x in (query, key, value))
    assert torch.autograd.gradcheck(lambda *x: attention(*x, mask), inputs)
    assert torch.autograd.gradgradcheck(lambda *x: attention(*x, mask), inputs)
    if isinstance(attention, nn.Module):
        attention(*inputs).output.square().sum().backward()
        for parameter_name, parameter in attention.named_parameters():
            if name == "multi-head" and parameter_name == "key.bias":
                continue  # the same for all keys, so that no softmax sees it
            assert parameter.grad is not None
            assert bool(parameter.grad.abs().max() > 1e-6), parameter_name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dot_products_are_torchs(dtype: torch.dtype) -> None:
    query, key, value, mask = (x if x.dtype == torch.bool else x.to(dtype) for x in some(5, 6, 3, 2))
    mask[..., 0] = True  # torch's own answer to a row without keys is not ours
    found = scaled_dot_product(query, key, value, mask)
    torch.testing.assert_close(found.output, F.scaled_dot_product_attention(query, key, value, mask))
    torch.testing.assert_close(
        scaled_dot_product(query, key, value).output, F.scaled_dot_product_attention(query, key, value)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multi_head_is_torchs(dtype: torch.dtype) -> None:
    query, key, value, mask = (x if x.dtype == torch.bool else x.to(dtype) for x in some(5, 6, 3, 2))
    mask = mask[0]
    mask[:, 0] = True
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(C, H, batch_first=True).to(dtype)
    nn.init.normal_(theirs.in_proj_bias)
    ours = MultiHead(C, H).to(dtype)
    state = {"out.weight": theirs.out_proj.weight, "out.bias": theirs.out_proj.bias}
    for kind in ("weight", "bias"):
        parts = getattr(theirs, f"in_proj_{kind}").chunk(3)
        state.update({f"{name}.{kind}": part for name, part in zip(("query", "key", "value"), parts, strict=True)})
    ours.load_state_dict(state, strict=True)
    output, weights = theirs(query, key, value, attn_mask=~mask, average_attn_weights=False)
    found = ours(query, key, value, mask)
    torch.testing.assert_close(found.output, output)
    torch.testing.assert_close(found.weights, weights)


def test_scores_are_their_formulas() -> None:
    query, key, _, _ = some(2, 3, 4)
    additive, multiplicative = Additive(C, H).double(), Multiplicative(C, H).double()
    for h, (q, k) in [(h, (q, k)) for h in range(H) for q in range(2) for k in range(3)]:
        own = slice(h * C // H, (h + 1) * C // H)
        hidden = torch.tanh(additive.query(query[q]) + additive.key(key[k]))[own]
        torch.testing.assert_close(additive.scores(query, key)[h, q, k], additive.v[h] @ hidden)
        expected = query[q] @ multiplicative.weight[h] @ key[k]
        torch.testing.assert_close(multiplicative.scores(query, key)[h, q, k], expected)


@pytest.mark.parametrize("form", [MultiHead, Additive, Multiplicative])
def test_heads_that_do_not_divide_the_channels(form: type[MultiHead]) -> None:
    with pytest.raises(UserError, match=r"heads = 7 does not divide channels = 64; the nearest that does is 8"):
        form(64, 7)
    with pytest.raises(UserError, match=r"heads = 0 .* channels = 64; the nearest that does is 1"):
        form(64, 0)


TARGET = torch.tensor([0, 0, 1, 3, 3, 3])
N = 4  # atom 2 has no edges


def edges(dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    random = torch.Generator().manual_seed(seed)
    logits, own = (torch.randn(n, H, generator=random, dtype=dtype) for n in (6, N))
    return logits, own, torch.rand(6, 1, generator=random, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_an_envelope_the_softmax_is_torch_geometrics_with_self_loops(dtype: torch.dtype) -> None:
    softmax = pytest.importorskip("torch_geometric.utils").softmax
    logits, own, _ = edges(dtype)
    looped = torch.cat([TARGET, torch.arange(N)])
    expected = softmax(torch.cat([logits, own]), looped, num_nodes=N)
    found = edge_softmax(logits, None, TARGET, N, own)
    torch.testing.assert_close(torch.cat(found), expected)
    # Without a logit of its own an atom counts as one of logit 0.
    expected = softmax(torch.cat([logits, torch.zeros_like(own)]), looped, num_nodes=N)[:6]
    torch.testing.assert_close(edge_softmax(logits, None, TARGET, N), expected)
    # Among neighbours alone it is the plain softmax.
    among = found.weights / (1.0 - found.own)[TARGET]
    torch.testing.assert_close(among, softmax(logits, TARGET, num_nodes=N))


def test_the_envelope_enters_as_the_formula_says() -> None:
    logits, own, envelope = edges()
    total = own.exp().index_add(0, TARGET, envelope * logits.exp())
    found = edge_softmax(logits, envelope, TARGET, N, own)
    torch.testing.assert_close(found.weights, envelope * logits.exp() / total[TARGET])
    torch.testing.assert_close(found.own, own.exp() / total)
    one = torch.ones_like(own).index_add(0, TARGET, envelope * logits.exp())
    torch.testing.assert_close(edge_softmax(logits, envelope, TARGET, N), envelope * logits.exp() / one[TARGET])


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**20))
def test_the_order_of_edges_and_the_numbers_of_atoms_do_not_matter(seed: int) -> None:
    logits, own, envelope = edges(seed=seed)
    random = torch.Generator().manual_seed(seed)
    order, atoms = torch.randperm(6, generator=random), torch.randperm(N, generator=random)
    place = torch.argsort(atoms)  # of each atom after the move
    found = edge_softmax(logits, envelope, TARGET, N, own)
    moved = edge_softmax(logits[order], envelope[order], place[TARGET[order]], N, own[atoms])
    torch.testing.assert_close(moved.weights, found.weights[order])
    torch.testing.assert_close(moved.own, found.own[atoms])
    torch.testing.assert_close(found.own.index_add(0, TARGET, found.weights), torch.ones_like(own))


def test_the_edge_softmax_can_be_differentiated_twice() -> None:
    logits, own, envelope = (x.requires_grad_() for x in edges())
    for arguments in ((logits, envelope, own), (logits, envelope)):

        def call(logits: Tensor, envelope: Tensor, *own: Tensor) -> tuple[Tensor, ...] | Tensor:
            return edge_softmax(logits, envelope, TARGET, N, *own)

        assert torch.autograd.gradcheck(call, arguments)
        assert torch.autograd.gradgradcheck(call, arguments)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("far", [1e4, -1e4])
def test_large_logits_neither_overflow_nor_do_those_beyond_the_cutoff_matter(far: float, dtype: torch.dtype) -> None:
    logits, own, envelope = edges(dtype)
    expected = edge_softmax(logits, envelope, TARGET, N, own)
    shifted = edge_softmax(logits + far, envelope, TARGET, N, own + far)
    torch.testing.assert_close(shifted, expected, rtol=0, atol=1e-2 if dtype == torch.float32 else 1e-11)
    envelope[[1, 2]] = 0.0  # the second of atom 0, the only one of atom 1
    beyond = torch.zeros_like(logits)
    beyond[[1, 2]] = far
    inputs = [(logits + beyond).requires_grad_(), envelope.requires_grad_(), own.requires_grad_()]
    found = edge_softmax(inputs[0], inputs[1], TARGET, N, inputs[2])
    torch.testing.assert_close(found, edge_softmax(logits, envelope, TARGET, N, own))
    gradients = torch.autograd.grad(found.weights.square().sum() + found.own.square().sum(), inputs)
    assert all(bool(torch.isfinite(gradient).all()) for gradient in gradients)
    # As if these edges were not there.
    there = [0, 3, 4, 5]
    torch.testing.assert_close(
        found.weights[there], edge_softmax(logits[there], envelope[there], TARGET[there], N, own).weights
    )


def test_no_edges() -> None:
    none = torch.zeros(0, H, dtype=torch.float64)
    found = edge_softmax(none, none[:, :1], TARGET[:0], N, torch.randn(N, H, dtype=torch.float64))
    assert found.weights.shape == (0, H)
    torch.testing.assert_close(found.own, torch.ones(N, H, dtype=torch.float64))
    assert edge_softmax(none, None, TARGET[:0], N).shape == (0, H)


CUTOFF = 3.0


def plain(logits: Tensor, envelope: Tensor, target: Tensor) -> Tensor:
    return pytest.importorskip("torch_geometric.utils").softmax(logits, target, num_nodes=1)


def enveloped(logits: Tensor, envelope: Tensor, target: Tensor) -> Tensor:
    """With the envelope in it, but no term of the atom itself."""
    near = envelope * logits.exp()
    return near / near.sum(0)


def smooth(logits: Tensor, envelope: Tensor, target: Tensor) -> Tensor:
    return edge_softmax(logits, envelope, target, 1)


def with_own(logits: Tensor, envelope: Tensor, target: Tensor) -> Tensor:
    return edge_softmax(logits, envelope, target, 1, torch.full((1, H), 0.4, dtype=logits.dtype)).weights


def message(softmax: Callable[[Tensor, Tensor, Tensor], Tensor], far: float, others: list[float]) -> Tensor:
    """Σ_j α_ij v_j with a neighbour at a distance `far` and others; those beyond the cutoff are no edges."""
    distances = torch.tensor([far, *others], dtype=torch.float64)
    distances = distances[distances < CUTOFF][:, None]
    logits = torch.cat([torch.sin(distances), distances.square() / 4], 1)
    target = torch.zeros(len(distances), dtype=torch.int64)
    return (softmax(logits, cosine_cutoff(distances, CUTOFF), target) * (2.0 + torch.cos(distances))).sum(0)


def jumps(softmax: Callable[[Tensor, Tensor, Tensor], Tensor], others: list[float]) -> tuple[float, float]:
    """How much the message and its slope change where the neighbour crosses the cutoff."""
    h = 1e-5
    before, just, gone = (message(softmax, CUTOFF + d, others) for d in (-2 * h, -h, h))
    slope, after = (just - before) / h, (message(softmax, CUTOFF + 2 * h, others) - gone) / h
    return float((gone - just).abs().max()), float((after - slope).abs().max())


@pytest.mark.parametrize("others", [[], [1.5], [1.0, 2.2, 2.9]], ids=["lone", "one other", "three others"])
@pytest.mark.parametrize("softmax", [smooth, with_own])
def test_an_atom_that_crosses_the_cutoff_changes_nothing_abruptly(
    softmax: Callable[[Tensor, Tensor, Tensor], Tensor], others: list[float]
) -> None:
    value, slope = jumps(softmax, others)
    assert value < 1e-9
    assert slope < 1e-3


def test_other_softmaxes_jump_at_the_cutoff() -> None:
    for others in ([], [1.5], [1.0, 2.2, 2.9]):
        assert jumps(plain, others)[0] > 0.1
    assert jumps(enveloped, [])[0] > 0.9  # the last neighbour, whose envelope cancels
    assert jumps(enveloped, [1.5])[0] < 1e-9  # where others are left it is smooth
