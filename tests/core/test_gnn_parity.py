"""With equal weights, the layers of the classic graph networks give torch_geometric's numbers on the same edges."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from ase.build import molecule
from torch import Tensor, nn

from mlpot import models
from mlpot.convert.smiles import from_smiles
from mlpot.graph import AtomsGraph
from mlpot.models._graph_network import GraphNetwork
from mlpot.nn.depth import JUMPS, RESIDUALS, GraphNorm
from mlpot.nn.edges import MessageEdges
from mlpot.nn.linear import glorot

pyg = pytest.importorskip("torch_geometric.nn")

Layer = Callable[[Tensor, MessageEdges], Tensor]
SMILES = ["CCO", "c1ccccc1C(=O)N", "C", "CC(C)Cc1ccc(cc1)[C@@H](C)C(=O)O", "[Na+].[Cl-]"]
CHANNELS, HEADS, LAYERS = 12, 3, 3
CASES = ["gat", "gatv2", "gcn", "gcn learned", "transformer", "mpnn", "ggnn", "ggnn learned"]


def graph_of(edges: str) -> AtomsGraph:
    if edges == "bonds":
        return AtomsGraph.from_structure([from_smiles(smiles) for smiles in SMILES], 5.0)
    return AtomsGraph.from_ase([molecule(name) for name in ("CH3CH2OH", "H2O", "C6H6", "O")], 3.0)


def build(case: str, edges: str = "radius", **settings: object) -> GraphNetwork:
    """Small and random in every parameter, in float64."""
    torch.manual_seed(5)
    common = {"channels": CHANNELS, "n_layers": LAYERS, "cutoff": 3.0, "edges": edges, **settings}
    own: dict[str, dict[str, object]] = {
        "gat": {"variant": "gat", "slope": "leaky_relu", "heads": HEADS},
        "gatv2": {"variant": "gatv2", "slope": "leaky_relu", "heads": HEADS},
        "transformer": {"heads": HEADS},
        "gcn learned": {"edge_weights": "learned"},
        "ggnn learned": {"edge_weights": "learned"},
    }
    name = {"gatv2": "gat"}.get(case, case.split()[0])
    model = models.build(name, **common, **own.get(case, {})).double()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    assert isinstance(model, GraphNetwork)
    return model


def fill(layer: nn.Module, weights: dict[str, Tensor]) -> nn.Module:
    layer = layer.double()
    layer.load_state_dict(weights, strict=True)
    return layer


def linear_weights(name: str, layer: nn.Module) -> dict[str, Tensor]:
    return {f"{name}.{key}": value for key, value in layer.state_dict().items()}


def gat_layers(model: GraphNetwork) -> list[Layer]:
    found = []
    for layer in model.layers:
        width = layer.value.out_features // HEADS
        peer = fill(
            pyg.GATConv(CHANNELS, width, HEADS, concat=not layer.last, edge_dim=layer.edge.in_features, fill_value=0.0),
            {
                **linear_weights("lin", layer.value),
                "att_src": layer.sends[None],
                "att_dst": layer.receives[None],
                # The vector of each head is taken apart again into a product: its first channel sees it all.
                "att_edge": torch.eye(width, dtype=torch.float64)[:1].expand(1, HEADS, width),
                "lin_edge.weight": torch.cat(
                    [
                        layer.edge.weight[:, None],
                        glorot(1, 1).new_zeros(HEADS, width - 1, layer.edge.in_features, dtype=torch.float64),
                    ],
                    1,
                ).flatten(0, 1),
                "bias": layer.bias,
            },
        )
        found.append(lambda x, edges, peer=peer: peer(x, edges.edge_index, edges.attributes))
    return found


def gatv2_layers(model: GraphNetwork) -> list[Layer]:
    found = []
    for layer in model.layers:
        width = layer.value.out_features // HEADS
        peer = fill(
            pyg.GATv2Conv(CHANNELS, width, HEADS, not layer.last, edge_dim=layer.edge.in_features, fill_value=0.0),
            {
                **linear_weights("lin_l", layer.value),
                **linear_weights("lin_r", layer.receives),
                **linear_weights("lin_edge", layer.edge),
                "att": layer.logit[None],
                "bias": layer.bias,
            },
        )
        found.append(lambda x, edges, peer=peer: peer(x, edges.edge_index, edges.attributes))
    return found


def with_loops(edges: MessageEdges) -> tuple[Tensor, Tensor]:
    """For layers that add none: an edge of zeros from every atom to itself."""
    atoms = torch.arange(edges.n_atoms).expand(2, -1)
    zeros = edges.attributes.new_zeros(edges.n_atoms, edges.attributes.shape[1])
    return torch.cat([edges.edge_index, atoms], 1), torch.cat([edges.attributes, zeros])


def transformer_layers(model: GraphNetwork) -> list[Layer]:
    found = []
    for layer in model.layers:
        width = layer.value.out_features // HEADS
        peer = fill(
            pyg.TransformerConv(CHANNELS, width, HEADS, not layer.last, edge_dim=layer.edge.in_features),
            {
                **linear_weights("lin_query", layer.query),
                **linear_weights("lin_value", layer.value),
                **linear_weights("lin_key", layer.key),
                "lin_key.bias": torch.randn(HEADS * width),  # whatever it is
                **linear_weights("lin_edge", layer.edge),
                **linear_weights("lin_skip", layer.skip),
            },
        )
        found.append(lambda x, edges, peer=peer: peer(x, *with_loops(edges)))
    return found


def gcn_layers(model: GraphNetwork) -> list[Layer]:
    found = []
    for layer in model.layers:
        peer = fill(pyg.GCNConv(CHANNELS, CHANNELS), {"lin.weight": layer.weight, "bias": layer.bias})
        found.append(lambda x, edges, peer=peer: peer(x, edges.edge_index, model.weights(edges)[:, 0]))
    return found


def ggnn_layers(model: GraphNetwork) -> list[Layer]:
    found = []
    for layer in model.layers:
        peer = fill(
            pyg.GatedGraphConv(CHANNELS, 1), {"weight": layer.weight.T[None], **linear_weights("rnn", model.gru)}
        )
        found.append(lambda x, edges, peer=peer: peer(x, edges.edge_index, model.weights(edges)[:, 0]))
    return found


class EdgeNetwork(nn.Module):
    """A(e) of an edge, row by row, times its envelope, which comes as the last column."""

    def __init__(self, model: GraphNetwork) -> None:
        super().__init__()
        self.model = model

    def forward(self, columns: Tensor) -> Tensor:
        hidden = self.model.hidden(columns[:, :-1])
        matrices = self.model.matrices.flatten(1)
        return (hidden @ matrices[:-1] + matrices[-1]) * columns[:, -1:]


def mpnn_layers(model: GraphNetwork) -> list[Layer]:
    # NNConv resets its network's parameters, so that it is given a network without any first.
    peer = pyg.NNConv(CHANNELS, CHANNELS, nn.Identity(), aggr="add", root_weight=False, bias=False)
    peer.nn = EdgeNetwork(model)

    def layer(x: Tensor, edges: MessageEdges) -> Tensor:
        return model.gru(peer(x, edges.edge_index, torch.cat([edges.attributes, edges.envelope], 1)), x)

    return [layer] * LAYERS


PEERS: dict[str, Callable[[GraphNetwork], list[Layer]]] = {
    "gat": gat_layers,
    "gatv2": gatv2_layers,
    "gcn": gcn_layers,
    "transformer": transformer_layers,
    "ggnn": ggnn_layers,
    "mpnn": mpnn_layers,
}


def peer_features(model: GraphNetwork, case: str, graph: AtomsGraph, edges: MessageEdges) -> Tensor:
    """The network written down with torch_geometric's layers."""
    x = model.stack.start(graph)
    for k, layer in enumerate(PEERS[case.split()[0]](model)):
        update = layer(x, edges)
        update = model.stack.activation(update) if k < LAYERS - 1 else update
        x = x + update if model.config.residual == "plain" else update
    return x


class Given(nn.Module):
    """Edges that are there already."""

    def __init__(self, edges: MessageEdges) -> None:
        super().__init__()
        self.edges = edges

    def forward(self, graph: AtomsGraph, dtype: torch.dtype) -> MessageEdges:
        return self.edges


@pytest.mark.parametrize("edges", ["radius", "bonds"])
@pytest.mark.parametrize("case", CASES)
def test_networks_are_torch_geometrics(case: str, edges: str) -> None:
    model, graph = build(case, edges), graph_of(edges)
    found = model.stack.edges(graph, torch.float64)
    if case in ("gat", "gatv2", "transformer"):
        # torch_geometric's softmax knows no envelope.
        found = found._replace(envelope=torch.ones_like(found.envelope))
        model.stack.edges = Given(found)
    expected = peer_features(model, case, graph, found)
    assert float(expected.detach().abs().max()) > 0.1
    torch.testing.assert_close(model.features(graph).scalars, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("case", ["gat", "gatv2", "transformer"])
def test_attention_weights_are_torch_geometrics(case: str) -> None:
    model, graph = build(case, "bonds", n_layers=1), graph_of("bonds")
    edges = model.stack.edges(graph, torch.float64)
    x = model.stack.start(graph)
    peer = PEERS[case](model)[0].__defaults__[0]
    given = with_loops(edges) if case == "transformer" else (edges.edge_index, edges.attributes)
    _, (index, expected) = peer(x, *given, return_attention_weights=True)
    ((found_index, weights),) = model.attention(graph)
    assert torch.equal(found_index, index)
    torch.testing.assert_close(weights, expected, rtol=0, atol=1e-10)
    sums = torch.zeros(graph.n_atoms, HEADS, dtype=torch.float64).index_add(0, found_index[1], weights)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize(("ours", "theirs"), [("concat", "cat"), ("max", "max"), ("lstm", "lstm")])
def test_jumping_knowledge_is_torch_geometrics(ours: str, theirs: str) -> None:
    torch.manual_seed(2)
    jump = JUMPS[ours](6, 3).double()
    peer = pyg.JumpingKnowledge(theirs, 6, 3).double()
    if ours == "lstm":
        state = {f"lstm.{key}_l0": value for key, value in jump.ahead.state_dict().items()}
        state |= {f"lstm.{key}_l0_reverse": value for key, value in jump.back.state_dict().items()}
        peer = fill(peer, {**state, "att.weight": jump.score.weight, "att.bias": torch.ones(1)})
    layers = [torch.randn(5, 6, dtype=torch.float64) for _ in range(3)]
    torch.testing.assert_close(jump(layers), peer(layers), rtol=0, atol=1e-12)
    assert jump(layers).shape == (5, jump.out_channels)


def test_graph_norm_is_torch_geometrics() -> None:
    torch.manual_seed(2)
    norm = GraphNorm(6).double()
    for parameter in norm.parameters():
        parameter.data += torch.randn_like(parameter)
    peer = fill(pyg.GraphNorm(6), norm.state_dict())
    x, batch = torch.randn(7, 6, dtype=torch.float64), torch.tensor([0, 0, 0, 1, 2, 2, 2])
    torch.testing.assert_close(norm(x, batch, 3), peer(x, batch, 3), rtol=0, atol=1e-12)


def test_the_gated_residual_is_torch_geometrics() -> None:
    """TransformerConv's β, with a skip connection that changes nothing."""
    torch.manual_seed(2)
    peer, gate = pyg.TransformerConv(6, 6, beta=True).double(), RESIDUALS["gated"](6).double()
    peer.lin_skip.weight.data, peer.lin_skip.bias.data = torch.eye(6, dtype=torch.float64), torch.zeros(6).double()
    gate.gate.weight.data = peer.lin_beta.weight.data
    x, index = torch.randn(4, 6, dtype=torch.float64), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])
    expected = peer(x, index)
    peer.lin_beta, peer.root_weight = None, False
    torch.testing.assert_close(gate(x, peer(x, index)), expected, rtol=0, atol=1e-12)
