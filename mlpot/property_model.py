"""Models of molecular properties: named targets, read out of the features of any network here that has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from mlpot.errors import UserError, unknown
from mlpot.graph import AtomsGraph
from mlpot.model import Model
from mlpot.nn.heads import POOLS, Coarse, Inputs, head
from mlpot.potential import Potential
from mlpot.structure import MAX_NUMBER
from mlpot.target import Target

GEOMETRIC = {"vector", "magnitude", "tensor", "extent"}  # kinds that need positions of a free molecule


class Scale(BaseModel):
    """Where the labels of a target lie: label ≈ shift + Σ_i references[Z_i] + scale · (the network's answer)."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    scale: float = Field(1.0, gt=0)
    shift: float = 0.0
    references: dict[Annotated[int, Field(ge=1, le=MAX_NUMBER)], float] = {}


class PropertyConfig(BaseModel):
    """Targets, how features are pooled, and the scales of the labels by name of the target."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    targets: tuple[Target, ...] = Field(min_length=1)
    readout: str = Field("mean", description="pooling of the atoms for intensive targets and classes")
    dropout: float = Field(0.0, ge=0, lt=1, description="part of the features left out of a head, in training")
    scales: dict[str, Scale] = {}

    @field_validator("targets")
    @classmethod
    def _distinct(cls, targets: tuple[Target, ...]) -> tuple[Target, ...]:
        names = [target.name for target in targets]
        if len(set(names)) < len(names):
            raise ValueError(f"each target once, not {names}")
        return targets

    @field_validator("readout")
    @classmethod
    def _known(cls, readout: str) -> str:
        if readout not in POOLS:
            raise ValueError(str(unknown("readout", readout, POOLS)))
        return readout


class PropertyModel(Model):
    """Heads on the features of a backbone: one for each target, by its kind (see `mlpot.nn.heads`).

    | name     | type              | meaning                                              |
    |----------|-------------------|------------------------------------------------------|
    | targets  | tuple of `Target` | what it predicts, with units                         |
    | parts    | [backbone]        | a potential with `features`; its energy is not used  |

    `forward` gives the heads' own numbers, which a loss compares with scaled labels; `predict_properties` gives values
    in the targets' units and probabilities of classes.
    """

    Config = PropertyConfig

    def __init__(self, backbone: Potential, config: PropertyConfig) -> None:
        super().__init__()
        self.config, self.targets = config, config.targets
        self.parts = nn.ModuleList([backbone])
        self.cutoff, self.needs, self.structure_inputs = backbone.cutoff, backbone.needs, backbone.structure_inputs
        if not backbone.channels:
            raise UserError(f"{type(backbone).__name__} has no features that properties could be read out of.")
        for target in self.targets:
            if target.kind in GEOMETRIC and "positions" not in self.needs:
                raise UserError(
                    f"target {target.name} is of kind {target.kind}, which follows from positions; "
                    f"{type(backbone).__name__} with these settings reads bonds alone."
                )
        for name, parameter in backbone.named_parameters():
            if "readout" in name.split("."):
                parameter.requires_grad_(False)  # it serves the energy alone
        bonds = "positions" not in self.needs
        channels = backbone.channels, backbone.vector_channels
        inputs = Inputs(*channels, self.cutoff, bonds, config.readout, config.dropout)
        self.heads = nn.ModuleList(head(target, inputs) for target in self.targets)
        self._references = [_table(self.scale(target)) for target in self.targets]
        self.restrict_to(backbone.elements)

    @classmethod
    def assemble(cls, parts: Sequence[Model], config: BaseModel) -> PropertyModel:
        """From parts and settings, as a checkpoint holds them."""
        (backbone,) = parts
        assert isinstance(backbone, Potential)
        assert isinstance(config, PropertyConfig)
        return cls(backbone, config)

    @property
    def backbone(self) -> Potential:
        """The network below the heads."""
        return self.parts[0]  # type: ignore[return-value]

    def scale(self, target: Target) -> Scale:
        """Where the labels of a target lie."""
        return self.config.scales.get(target.name, Scale())

    def check(self, graph: AtomsGraph) -> None:
        """As `Model.check`; UserError, too, for a dipole or the like of a periodic structure."""
        super().check(graph)
        wanted = [target.name for target in self.targets if target.kind in GEOMETRIC]
        if wanted and bool(graph.pbc.any()):
            raise UserError(
                f"{', '.join(wanted)} of a periodic structure depends on where its cell is cut, and is not defined; "
                f"give molecules without periodicity."
            )

    def forward(self, graph: AtomsGraph) -> dict[str, Tensor]:
        """The heads' answers by target, (S,), (S, 3), (S, 3, 3) or logits (S,), (S, classes), in the model's dtype."""
        return self.with_losses(graph)[0]

    def with_losses(self, graph: AtomsGraph) -> tuple[dict[str, Tensor], Tensor]:
        """`forward`'s answers, and the losses of the heads themselves (DiffPool's), (); zero where they have none."""
        features = self.backbone.features(graph)
        answers, losses = {}, features.scalars.new_zeros(())
        for target, own in zip(self.targets, self.heads, strict=True):
            if isinstance(own, Coarse):
                answers[target.name], loss = own.with_losses(features, graph)
                losses = losses + loss
            else:
                answers[target.name] = own(features, graph)
        return answers, losses

    def offset(self, target: Target, graph: AtomsGraph) -> Tensor:
        """shift + Σ_i references[Z_i], (S,) float64."""
        table = self._references[self.targets.index(target)].to(graph.device)
        sums = table.new_zeros(graph.n_structures).index_add(0, graph.batch, table[graph.numbers])
        return sums + self.scale(target).shift

    def values(self, raw: Mapping[str, Tensor], graph: AtomsGraph) -> dict[str, Tensor]:
        """Of `forward`'s answers: float64 values in the targets' units, probabilities of classes."""
        found = {}
        for target in self.targets:
            answer = raw[target.name].to(torch.float64)
            if target.kind == "binary":
                found[target.name] = torch.sigmoid(answer)
            elif target.kind == "classes":
                found[target.name] = torch.softmax(answer, dim=-1)
            else:
                scaled = self.scale(target).scale * answer
                found[target.name] = scaled if target.shape else scaled + self.offset(target, graph)
        return found


def _table(scale: Scale) -> Tensor:
    table = torch.zeros(MAX_NUMBER + 1, dtype=torch.float64)
    for number, value in scale.references.items():
        table[number] = value
    return table


@torch.no_grad()
def predict_properties(model: PropertyModel, graph: AtomsGraph) -> dict[str, Tensor]:
    """Each target of every structure, float64 in the target's unit: (S,), (S, 3), (S, 3, 3); probabilities for classes.

    Raises UserError for elements the model was not trained on, for structures without the positions or bonds that it
    reads, and for a potential in place of a model of properties.
    """
    if not isinstance(model, PropertyModel):
        raise UserError(f"{type(model).__name__} predicts energies, not properties: ask with mlpot.predict.")
    model.check(graph)
    return model.values(model(graph), graph)


def build(backbone: str, targets: Sequence[Target | Mapping[str, Any]], **settings: Any) -> PropertyModel:
    """An untrained model: ``build("painn", [{"name": "mu", "kind": "magnitude", "unit": "e Å"}], cutoff=5.0)``.

    `settings` are the backbone's, besides `readout`, `dropout` and `scales`.
    """
    from pydantic import ValidationError

    from mlpot import models

    own = {key: settings.pop(key) for key in ("readout", "dropout", "scales") if key in settings}
    try:
        config = PropertyConfig(targets=tuple(Target.model_validate(t) for t in targets), **own)
    except ValidationError as error:
        raise UserError(models.explain(error, PropertyConfig, "properties")) from None
    return PropertyModel(models.build(backbone, **settings), config)
