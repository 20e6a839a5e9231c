"""The work on a chunk of lines: standardise, give coordinates where the model reads them, predict, describe."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mlpot.errors import UserError
from mlpot.graph import AtomsGraph, collate
from mlpot.pretrained import load
from mlpot.property_model import PropertyModel, predict_properties
from mlpot.screen.lines import Line
from mlpot.screen.molecule import Molecule, Refused, standardised, structure
from mlpot.structure import Structure, symbols_of
from mlpot.target import Target

BATCH_ATOMS = 4000
Row = dict[str, Any]


class Settings(NamedTuple):
    """What every worker must know."""

    models: tuple[str, ...]  # files; the mean and spread of several are given
    descriptors: tuple[str, ...] = ()


class Job(NamedTuple):
    """A chunk: its number, its lines, and where its rows go."""

    number: int
    lines: list[Line]
    path: str


def descriptors() -> dict[str, Callable[[Any], float]]:
    """What rdkit says of a molecule, by name; worked out where a filter, a rank or the user names it."""
    from rdkit.Chem import QED, rdMolDescriptors

    return {
        "MW": lambda mol: rdMolDescriptors._CalcMolWt(mol),
        "logP": lambda mol: rdMolDescriptors.CalcCrippenDescriptors(mol)[0],
        "TPSA": rdMolDescriptors.CalcTPSA,
        "HBD": rdMolDescriptors.CalcNumHBD,
        "HBA": rdMolDescriptors.CalcNumHBA,
        "rings": rdMolDescriptors.CalcNumRings,
        "rotatable_bonds": rdMolDescriptors.CalcNumRotatableBonds,
        "heavy_atoms": lambda mol: float(mol.GetNumHeavyAtoms()),
        "QED": QED.qed,
    }


class Worker:
    """Loads the models once and works on chunk after chunk."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self.models: list[PropertyModel] = []
        for path in settings.models:
            model = load(path)
            if not isinstance(model, PropertyModel):
                raise UserError(f"{path}: it predicts energies, not properties; screening needs a model of properties.")
            self.models.append(model.eval().requires_grad_(False))
        self.targets = self.models[0].targets
        for path, model in zip(settings.models[1:], self.models[1:], strict=True):
            if model.targets != self.targets:
                raise UserError(f"{path}: its targets differ from those of {settings.models[0]}.")
        self.coordinates = any("positions" in model.needs for model in self.models)
        self._describe = {name: f for name, f in descriptors().items() if name in settings.descriptors}

    def __call__(self, job: Job) -> dict[str, float]:
        """Work on a chunk and write its rows, whole or not at all. Seconds by stage."""
        seconds = dict.fromkeys(("standardise", "coordinates and bonds", "predict"), 0.0)
        rows: list[Row] = []
        ready: list[tuple[Row, Structure]] = []
        for line in job.lines:
            row: Row = {"line": line.number, "id": line.id, "smiles": line.smiles[:500], "status": "ok", "reason": ""}
            rows.append(row)
            try:
                start = time.perf_counter()
                molecule = standardised(line.smiles)
                row |= {"standardised": molecule.smiles, "changes": molecule.changes}
                middle = time.perf_counter()
                seconds["standardise"] += middle - start
                found = self._structure(molecule)
                row |= {name: float(f(molecule.mol)) for name, f in self._describe.items()}
                ready.append((row, found))
                seconds["coordinates and bonds"] += time.perf_counter() - middle
            except Refused as refused:
                row |= {"status": refused.code, "reason": refused.reason}
        start = time.perf_counter()
        for batch in _batches(ready):
            self._predict(batch)
        seconds["predict"] += time.perf_counter() - start
        write_rows(Path(job.path), rows)
        return seconds

    def _structure(self, molecule: Molecule) -> Structure:
        # The seed follows from the molecule, so that it does not matter in which chunk it is.
        seed = int.from_bytes(molecule.smiles.encode()[-4:], "big") % 100_000
        found = structure(molecule, self.coordinates, seed)
        known = self.models[0].elements
        strange = sorted(set(found.numbers.tolist()) - set(known)) if known is not None else []
        if strange:
            raise Refused("unknown element", f"the model was not trained on {', '.join(symbols_of(strange))}")
        return found

    def _predict(self, batch: Sequence[tuple[Row, Structure]]) -> None:
        try:
            columns = self._values([structure for _, structure in batch])
        except (UserError, RuntimeError) as error:
            if len(batch) == 1:
                batch[0][0].update(status="not predicted", reason=str(error).splitlines()[0][:300])
                return
            for one in batch:  # the others must not suffer
                self._predict([one])
            return
        for place, (row, _) in enumerate(batch):
            values = {name: float(column[place]) for name, column in columns.items()}
            if not all(np.isfinite(value) for value in values.values()):
                row.update(status="not predicted", reason="the prediction is not a finite number")
            else:
                row.update(values)

    def _values(self, structures: Sequence[Structure]) -> dict[str, Any]:
        answers = []
        for model in self.models:
            graph = collate([AtomsGraph.from_structure(one, model.cutoff) for one in structures])
            answers.append(predict_properties(model, graph))
        columns = {}
        for target in self.targets:
            stacked = np.stack([answer[target.name].numpy() for answer in answers]).reshape(
                len(answers), len(structures), -1
            )
            for place, name in enumerate(column_names(target)):
                columns[name] = stacked[:, :, place].mean(0)
                if len(answers) > 1:
                    columns[f"{name}_std"] = stacked[:, :, place].std(0)
        return columns


def column_names(target: Target) -> list[str]:
    """The columns of a target: its name, with x, y, z or the class where it has several numbers."""
    if target.kind == "classes":
        return [f"{target.name}_{number}" for number in range(target.classes)]
    axes = [""] if not target.shape else list("xyz")
    ends = axes if len(target.shape) < 2 else [a + b for a in axes for b in axes]
    return [f"{target.name}_{end}" if end else target.name for end in ends]


def _batches(ready: Sequence[tuple[Row, Structure]]) -> list[list[tuple[Row, Structure]]]:
    """Molecules of about one size together, up to some thousand atoms."""
    batches: list[list[tuple[Row, Structure]]] = []
    filled = BATCH_ATOMS
    for one in sorted(ready, key=lambda pair: len(pair[1])):
        if filled + len(one[1]) > BATCH_ATOMS:
            batches.append([])
            filled = 0
        batches[-1].append(one)
        filled += len(one[1])
    return batches


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as JSON, one a line; the file is there whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    os.replace(temporary, path)


def read_rows(path: Path) -> list[Row]:
    """The rows of a chunk."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


_WORKER: dict[int, Worker] = {}  # the one of this process


def start(settings: Settings) -> None:
    """Make the worker of a process."""
    _WORKER[os.getpid()] = Worker(settings)


def work(job: Job) -> dict[str, float]:
    """Have the process's worker work on a chunk."""
    return _WORKER[os.getpid()](job)
