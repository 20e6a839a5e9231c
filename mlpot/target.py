"""Target: a molecular property that is predicted, its unit and what kind of quantity it is."""

from __future__ import annotations

from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal["extensive", "intensive", "vector", "magnitude", "tensor", "extent", "binary", "classes"]
KINDS: tuple[str, ...] = get_args(Kind)
_SHAPES: dict[str, tuple[int, ...]] = {"vector": (3,), "tensor": (3, 3)}


class Target(BaseModel):
    """A property of a whole structure.

    | kind      | label          | meaning, and how it follows from the atoms                                 |
    |-----------|----------------|----------------------------------------------------------------------------|
    | extensive | ()             | grows with the size: a sum over atoms (energies, isotropic polarizability)  |
    | intensive | ()             | does not: read out of the pooled features (gap, solubility, melting point)  |
    | vector    | (3,)           | a dipole moment: Σ q_i (r_i - r_0) and the atoms' own dipoles               |
    | magnitude | ()             | the length of such a vector, where the data gives no more                   |
    | tensor    | (3, 3)         | symmetric, such as the polarizability                                       |
    | extent    | ()             | electronic spatial extent ⟨R²⟩: Σ q_i |r_i - r_0|²                          |
    | binary    | () 0 or 1      | yes or no; predicted is the probability of 1                                |
    | classes   | () 0, 1, ...   | one of `classes`; predicted is the probability of each                      |

    `unit` is that of labels and predictions; "" for pure numbers.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(min_length=1)
    unit: str = ""
    kind: Kind = "intensive"
    classes: int = Field(0, ge=0, description="number of classes, for kind classes")
    description: str = ""

    @model_validator(mode="after")
    def _number_of_classes(self) -> Target:
        if self.kind == "classes" and self.classes < 2:
            raise ValueError(f"target {self.name}: kind classes needs classes=2 or more, not {self.classes}")
        if self.kind != "classes" and self.classes:
            raise ValueError(f"target {self.name}: classes={self.classes} means nothing for kind {self.kind}")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one label."""
        return _SHAPES.get(self.kind, ())

    @property
    def is_class(self) -> bool:
        """Whether the label is a class rather than a number."""
        return self.kind in ("binary", "classes")
