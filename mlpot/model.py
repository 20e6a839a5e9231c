"""What every model has: a cutoff, the elements it knows, and the check of a graph before it is answered."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.structure import MAX_NUMBER, SYMBOLS, symbols_of


class Features(NamedTuple):
    """What a network knows of each atom before anything is read out of it.

    | field   | shape             | under rotation and reflection |
    |---------|-------------------|-------------------------------|
    | scalars | (N, C)            | do not change                 |
    | vectors | (3, N, V) or None | turn along (x, y, z)          |
    """

    scalars: Tensor
    vectors: Tensor | None = None


class Model(nn.Module):
    """The common part of potentials and of models of properties.

    | name             | type               | meaning                                                            |
    |------------------|--------------------|--------------------------------------------------------------------|
    | cutoff           | float, Å           | the graph must hold every pair nearer than this                    |
    | elements         | tuple[int] or None | atomic numbers it may be used for; None where any will do          |
    | structure_inputs | tuple[str]         | of "charge" and "spin", those that enter the answer                |
    | needs            | set[str]           | of "positions" and "bonds", those that a graph must have           |
    | config           | pydantic model     | what rebuilds it, without its parameters                           |
    | metadata         | dict               | where it comes from: data, hashes, errors, versions                |
    """

    cutoff: float
    structure_inputs: tuple[str, ...] = ()
    needs: frozenset[str] = frozenset({"positions"})
    config: Any
    _known: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.elements: tuple[int, ...] | None = None
        self.metadata: dict[str, Any] = {}
        self.register_buffer("_known", None, persistent=False)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype the model computes in: that of its first floating-point parameter or buffer."""
        tensors = itertools.chain(self.parameters(), self.buffers())
        return next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), torch.float64)

    def restrict_to(self, elements: Sequence[int] | None) -> None:
        """Let the model be used for these atomic numbers only (those it was trained on); None lifts the limit."""
        self.elements = None if elements is None else tuple(sorted(int(z) for z in set(elements)))
        if self.elements is None:
            self._known = None
            return
        known = torch.zeros(MAX_NUMBER + 1, dtype=torch.bool)
        known[list(self.elements)] = True
        tensors = itertools.chain(self.parameters(), self.buffers())
        self._known = known.to(next((tensor.device for tensor in tensors), torch.device("cpu")))

    def check(self, graph: AtomsGraph) -> None:
        """Raise UserError for a graph that the model would answer wrongly.

        Unknown elements, too short a cutoff, a molecule without coordinates, or one without bonds, where it needs them.
        """
        if "bonds" in self.needs and graph.bonds is None:
            raise UserError(
                "the model reads bonds, but these structures have none: give SMILES or rdkit molecules, "
                "or let rdkit find bonds (mlpot.convert.rdkit.with_bonds)."
            )
        if "positions" not in self.needs:
            self._check_elements(graph)
            return
        if not graph.has_positions:
            raise UserError(
                "the model reads positions, but a molecule has none (it comes from a SMILES): embed it in 3D first, "
                "e.g. with embed=true where a table is read."
            )
        if graph.cutoff < self.cutoff - 1e-9:
            raise UserError(
                f"the graph holds pairs up to {graph.cutoff} Å, but the model needs {self.cutoff} Å: "
                f"build it with cutoff={self.cutoff}."
            )
        self._check_elements(graph)

    def _check_elements(self, graph: AtomsGraph) -> None:
        if self._known is not None and not bool(self._known[graph.numbers].all()):
            outside = graph.numbers[~self._known[graph.numbers]].cpu().numpy()
            raise UserError(
                f"the model was not trained on {', '.join(symbols_of(outside))}; "
                f"it knows {', '.join(SYMBOLS[z] for z in self.elements or ())}."
            )
