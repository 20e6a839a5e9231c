"""A prediction written down once as a list of tensor operations, and played again for other positions.

For a molecule of a few atoms most of the time goes to Python, to autograd's bookkeeping and to work that depends on the
weights or on the edges alone. A recording keeps what depends on positions and cell: energies, and their gradients as
plain operations. It holds for one list of edges.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from mlpot.graph import AtomsGraph
from mlpot.potential import Potential, Prediction, predict

# Operations without side effects that torch offers under the same name and with the same arguments: called by that name
# they take half the time that they take as torch.ops.aten's.
# fmt: off
QUICK = frozenset((
    "mul", "add", "sub", "div", "neg", "mm", "bmm", "addmm", "baddbmm", "addbmm", "cat", "stack", "embedding",
    "_embedding_bag_forward_only", "index_select", "sum", "mean", "transpose", "t", "permute", "unsqueeze", "squeeze",
    "select", "where", "clone", "index_add", "scatter_add", "gather", "sigmoid", "tanh", "exp", "log", "sqrt",
    "rsqrt", "pow", "cos", "sin", "square", "abs", "reciprocal", "addcmul", "zeros_like", "ones_like", "rsub", "relu",
    "lt", "gt", "le", "ge", "eq", "ne", "logical_and", "split_with_sizes", "maximum", "minimum", "clamp", "_softmax",
    "log1p",
))
# fmt: on
METHODS = {"view": "view", "_unsafe_view": "view", "expand": "expand", "new_zeros": "new_zeros"}
MOST_EDGES = 3000  # beyond, arithmetic takes far longer than what a recording saves
AFTER = 10  # predictions with the same edges, before it pays to record one
STEP = 0.05  # Å, by which atoms are moved to see that a recording answers as its model does


_BY_VALUE = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}


class NotRecordableError(Exception):
    """What a recording cannot hold: an operation that depends on a value, or one in place on part of a constant."""


class _Recorder(TorchDispatchMode):
    """Writes down every operation that something in `inputs` enters; all others are done once, and are constants."""

    def __init__(self, inputs: Sequence[Tensor]) -> None:
        super().__init__()
        self.graph, self.constants = fx.Graph(), nn.Module()
        self._nodes: dict[int, fx.Node] = {}
        self._fixed: dict[int, fx.Node] = {}
        self._alive: list[Tensor] = []  # so that no id comes up twice
        self._parts: set[int] = set()
        for number, tensor in enumerate(inputs):
            self._know(tensor, self.graph.placeholder(f"input_{number}"))

    def node(self, value: Any) -> Any:
        """What stands for a value in the list: a node for a tensor, the value itself for anything else."""
        if not isinstance(value, Tensor):
            return value
        if id(value) in self._nodes:
            return self._nodes[id(value)]
        if id(value) not in self._fixed:
            self._fixed[id(value)] = self._constant(value)
            self._alive.append(value)
        return self._fixed[id(value)]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, Tensor)]
        if not any(id(tensor) in self._nodes for tensor in tensors):
            done = func(*args, **kwargs)
            if "unsafe_split" in func._schema.name:  # parts that nobody sees as parts of the whole any more
                self._parts.update(id(part) for part in done)
                self._alive.extend(done)
            return done
        masks = any(tensor.dtype == torch.bool for tensor in tensors) and "index" in func._schema.name
        if masks or (_BY_VALUE & set(func.tags) and "index" not in func._schema.name):
            raise NotRecordableError(f"{func} of what depends on positions")
        if func._schema.is_mutable:
            self._keep_written(func, args, kwargs)
        written: Any = pytree.tree_map(self.node, (args, kwargs))
        out = func(*args, **kwargs)
        if func is torch.ops.aten.detach.default or _same_view(func, args, out):
            self._know(out, self._nodes[id(args[0])])
            return out
        node = self._called(func, tuple(written[0]), written[1], out)
        if isinstance(out, Tensor):
            self._know(out, node)
        else:
            for place, part in enumerate(out or ()):
                if isinstance(part, Tensor):
                    self._know(part, self.graph.call_function(operator.getitem, (node, place)))
        return out

    def _called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> fx.Node:
        """The operation, in the form that takes the least time to call."""
        name = func._schema.name.removeprefix("aten::")
        if name in METHODS:
            return self.graph.call_method(METHODS[name], args, kwargs)
        if name == "slice" and len(args) > 3 and (len(args) == 4 or args[4] == 1):
            tensor, axis, start = args[:3]
            return self.graph.call_method("narrow", (tensor, axis, start or 0, out.shape[axis]))
        if name == "split":
            return self.graph.call_method(
                "split_with_sizes", (args[0], [p.shape[_axis(args)] for p in out], _axis(args))
            )
        if name in QUICK and not func._schema.is_mutable:
            return self.graph.call_function(getattr(torch, name), args, kwargs)
        return self.graph.call_function(func, args, kwargs)

    def _know(self, tensor: Tensor, node: fx.Node) -> None:
        self._nodes[id(tensor)] = node
        self._alive.append(tensor)

    def _constant(self, value: Tensor) -> fx.Node:
        name = f"constant_{len(self._fixed)}_{len(self._alive)}"
        self.constants.register_buffer(name, value.detach())
        return self.graph.get_attr(name)

    def _keep_written(self, func: Any, args: Any, kwargs: Any) -> None:
        """A constant that is written to is copied each time, as it was before."""
        named = dict(zip((argument.name for argument in func._schema.arguments), args, strict=False)) | kwargs
        for argument in func._schema.arguments:
            value = named.get(argument.name)
            if argument.alias_info is None or not argument.alias_info.is_write or not isinstance(value, Tensor):
                continue
            if id(value) in self._nodes:
                continue
            whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
            if not whole and id(value) not in self._parts:
                raise NotRecordableError(f"{func} writes to part of a constant")
            copy = self._constant(value.clone())
            self._know(value, self.graph.call_function(torch.ops.aten.clone.default, (copy,)))


def _same_view(func: Any, args: Any, out: Any) -> bool:
    if func not in (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default, torch.ops.aten.expand.default):
        return False
    return out.shape == args[0].shape and out.stride() == args[0].stride()


def _axis(args: Sequence[Any]) -> int:
    return args[2] if len(args) > 2 else 0


def record(function: Callable[..., Sequence[Tensor]], *inputs: Tensor) -> fx.GraphModule:
    """The tensor operations of a function as a module: call it with other tensors of the same shapes.

    Raises NotRecordableError where what is done depends on values.
    """
    given = [tensor.detach().clone() for tensor in inputs]
    recorder = _Recorder(given)
    with recorder:
        results = function(*given)
    recorder.graph.output(tuple(recorder.node(result) for result in results))
    recorder.graph.eliminate_dead_code()
    return fx.GraphModule(recorder.constants, recorder.graph)


class Recording:
    """`predict` for a model, for the atoms and edges of a graph, as a recording of positions and cell.

    Raises NotRecordableError where the model cannot be recorded, or where its recording does not answer as it does.
    """

    def __init__(self, model: Potential, graph: AtomsGraph, *, forces: bool, stress: bool) -> None:
        model.check(graph)
        self._n_structures, self._batch = graph.n_structures, graph.batch
        self._has = forces, stress

        def answer(positions: Tensor, cell: Tensor) -> list[Tensor]:
            out = predict(model, graph.moved(positions, cell), forces=forces, stress=stress)
            return [tensor for tensor in (out.energy, out.atom_energies, out.forces, out.stress) if tensor is not None]

        self._play = record(answer, graph.positions, graph.cell)
        elsewhere = graph.positions + STEP * torch.sin(torch.arange(3.0 * graph.n_atoms)).view(-1, 3)
        expected = answer(elsewhere, graph.cell)
        limit = 1e-10 if model.dtype == torch.float64 else 1e-4
        for _ in range(2):  # twice, since the first time must not change the second
            for ours, theirs in zip(self._play(elsewhere, graph.cell), expected, strict=True):
                scale = float(theirs.nan_to_num().abs().max()) + 1.0
                if not torch.allclose(ours, theirs, rtol=0, atol=limit * scale, equal_nan=True):
                    raise NotRecordableError("the recording does not answer as the model does")

    def __call__(self, graph: AtomsGraph) -> Prediction:
        """The prediction for the same atoms and edges at other positions, or in another cell."""
        with torch.no_grad():
            energy, atom_energies, *rest = self._play(graph.positions, graph.cell)
        forces, stress = self._has
        return Prediction(energy, atom_energies, rest[0] if forces else None, rest[-1] if stress else None)


class Player:
    """`predict`, by a recording where the same few edges come again and again, as they do for a molecule in motion."""

    def __init__(self, model: Potential) -> None:
        self.model = model
        self.recordable = True
        self._edges: Tensor | None = None
        self._times = 0
        self._recordings: dict[bool, Recording] = {}

    def __call__(self, graph: AtomsGraph, *, forces: bool, stress: bool) -> Prediction:
        """The prediction for a graph; those `moved` from the same one share its edges."""
        if graph.edge_index is not self._edges:
            self._edges, self._times, self._recordings = graph.edge_index, 0, {}
        few = graph.n_edges <= MOST_EDGES and graph.device.type == "cpu"
        if not (self.recordable and few and forces):
            return predict(self.model, graph, forces=forces, stress=stress)
        self._times += 1
        if stress not in self._recordings:
            if self._times <= AFTER:
                return predict(self.model, graph, forces=forces, stress=stress)
            try:
                self._recordings[stress] = Recording(self.model, graph, forces=forces, stress=stress)
            except NotRecordableError:
                self.recordable = False
                return predict(self.model, graph, forces=forces, stress=stress)
        return self._recordings[stress](graph)
