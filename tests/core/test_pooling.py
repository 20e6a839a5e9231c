"""Readouts: torch_geometric's numbers, and the laws of sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric import nn as pyg

from mlpot.nn.pooling import READOUTS, Attention, Set2Set, softmax

SIZES = [3, 1, 5]


def atoms(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    batch = torch.repeat_interleave(torch.arange(3), torch.tensor(SIZES))
    return torch.randn(9, 4, dtype=dtype), batch


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_torch_geometric(dtype: torch.dtype) -> None:
    x, batch = atoms(dtype)
    for name, theirs in (
        ("sum", pyg.SumAggregation()),
        ("mean", pyg.MeanAggregation()),
        ("max", pyg.MaxAggregation()),
    ):
        torch.testing.assert_close(READOUTS[name](4)(x, batch, 3), theirs(x, batch, dim_size=3))
    ours = Set2Set(4).to(dtype)
    set2set = pyg.aggr.Set2Set(4, Set2Set.STEPS).to(dtype)
    set2set.lstm.load_state_dict(ours.lstm.state_dict())
    torch.testing.assert_close(ours(x, batch, 3), set2set(x, batch, dim_size=3))
    attention = Attention(4).to(dtype)
    gated = pyg.aggr.AttentionalAggregation(attention.gate)
    torch.testing.assert_close(attention(x, batch, 3), gated(x, batch, dim_size=3))


@pytest.mark.parametrize("name", READOUTS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_the_order_of_atoms_does_not_matter(name: str, seed: int) -> None:
    x, batch = atoms()
    torch.manual_seed(1)
    readout = READOUTS[name](4).double()
    random = torch.Generator().manual_seed(seed)
    order = torch.cat([torch.randperm(n, generator=random) + sum(SIZES[:k]) for k, n in enumerate(SIZES)])
    torch.testing.assert_close(readout(x[order], batch, 3), readout(x, batch, 3))


@pytest.mark.parametrize("name", READOUTS)
def test_a_batch_is_its_structures(name: str) -> None:
    x, batch = atoms()
    readout = READOUTS[name](4).double()
    together = readout(x, batch, 3)
    assert together.shape == (3, readout.out_channels)
    for number in range(3):
        alone = readout(x[batch == number], torch.zeros(SIZES[number], dtype=torch.int64), 1)
        torch.testing.assert_close(alone[0], together[number])


@pytest.mark.parametrize("name", READOUTS)
def test_gradients_are_right_and_reach_every_parameter(name: str) -> None:
    x, batch = atoms()
    readout = READOUTS[name](4).double()
    assert torch.autograd.gradcheck(lambda y: readout(y, batch, 3), x.requires_grad_(True))
    readout(x, batch, 3).square().sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in readout.parameters())


def test_softmax_of_large_numbers_is_finite() -> None:
    _, batch = atoms()
    weights = softmax(torch.linspace(-900.0, 900.0, 9, dtype=torch.float64), batch, 3)
    sums = torch.zeros(3, dtype=torch.float64).index_add(0, batch, weights)
    torch.testing.assert_close(sums, torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("name", READOUTS)
def test_a_structure_without_atoms_gives_zeros_or_what_a_query_alone_gives(name: str) -> None:
    x, batch = atoms()
    readout = READOUTS[name](4).double()
    with_gap = readout(x, batch + (batch > 0), 4)
    torch.testing.assert_close(with_gap[[0, 2, 3]], readout(x, batch, 3))
    assert bool(torch.isfinite(with_gap).all())
