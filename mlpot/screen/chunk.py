"""The work on a chunk of lines: standardise, give coordinates where the model reads them, predict, describe."""

from __future__ import annotations

import json
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mlpot.data.reading import file_hash
from mlpot.errors import UserError
from mlpot.potential import Potential, as_potential
from mlpot.pretrained import load
from mlpot.property_model import PropertyModel, predict_properties
from mlpot.screen.batch import graph_of
from mlpot.screen.input import format_modules
from mlpot.screen.lines import Line
from mlpot.screen.molecule import Refused, Standardiser, Treatment, structure
from mlpot.simulate.relax_batch import relax_batch
from mlpot.structure import Structure, symbols_of
from mlpot.target import Target

BATCH_ATOMS = 4000
Row = dict[str, Any]


RELAXED = ("relax_converged", "relax_steps", "relax_energy", "relax_max_force")


class Relaxation(NamedTuple):
    """Conformers are relaxed by a potential before anything is predicted."""

    potential: str  # a file
    fmax: float = 0.05  # eV/Å
    steps: int = 200


class Settings(NamedTuple):
    """What every worker must know. `hashes` are those of the files, which must be the same wherever a worker runs."""

    format: str
    models: tuple[str, ...]  # files; the mean and spread of several are given
    hashes: tuple[str, ...]
    descriptors: tuple[str, ...] = ()
    treatment: Treatment = Treatment()
    relaxation: Relaxation | None = None

    @classmethod
    def of(cls, format: str, models: Sequence[str], **others: Any) -> Settings:
        """With the hashes of the files as they are now."""
        relaxation = others.get("relaxation")
        files = (*models, *([relaxation.potential] if relaxation else []))
        return cls(format, tuple(models), tuple(_hash(name) for name in files), **others)


def _hash(name: str) -> str:
    path = Path(name)
    if path.is_dir():  # a model of another package that is a folder
        return " ".join(file_hash(file) for file in sorted(path.iterdir()) if file.is_file())
    return file_hash(path) if path.is_file() else ""


class Job(NamedTuple):
    """A chunk: its number, its lines, and where its rows go."""

    number: int
    lines: list[Line]
    path: str

    def done(self) -> bool:
        """Whether its rows are there."""
        return Path(self.path).exists()


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


class Clock:
    """Seconds by stage: each lap goes to the stage that it ends."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        """What has passed since the last lap was spent on `stage`."""
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now


class Worker:
    """Loads the models once and works on chunk after chunk."""

    def __init__(self, settings: Settings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        self._format = format_modules()[settings.format]
        self.models: list[PropertyModel] = []
        for path in settings.models:
            model = load(path)
            if not isinstance(model, PropertyModel):
                raise UserError(f"{path}: it predicts energies, not properties; screening needs a model of properties.")
            self.models.append(model.eval().requires_grad_(False))
        self.targets = self.models[0].targets
        for path, model in zip(settings.models[1:], self.models[1:], strict=True):
            if model.targets != self.targets:
                raise UserError(
                    f"{path}: its targets ({_told(model.targets)}) differ from those of {settings.models[0]} "
                    f"({_told(self.targets)})."
                )
        self.coordinates = any("positions" in model.needs for model in self.models)
        self._standardise = Standardiser(settings.treatment)
        self._describe = {name: f for name, f in descriptors().items() if name in settings.descriptors}
        self._potential = self._relaxing(settings.relaxation) if settings.relaxation else None
        known = [model.elements for model in (*self.models, self._potential) if model and model.elements is not None]
        self.elements = sorted(set.intersection(*(set(elements) for elements in known))) if known else None

    def _relaxing(self, relaxation: Relaxation) -> Potential:
        if not self.coordinates:
            raise UserError(
                f"{self.settings.models[0]}: it reads bonds alone, so that relaxing changes nothing; leave out --relax."
            )
        return as_potential(load(relaxation.potential).eval().requires_grad_(False), relaxation.potential)

    def columns(self) -> list[str]:
        """Names of the numbers that it gives: predictions, their spreads, relaxation, descriptors."""
        predicted = [name for target in self.targets for name in column_names(target)]
        spreads = [f"{name}_std" for name in predicted] if len(self.models) > 1 else []
        relaxed = RELAXED if self._potential is not None else ()
        return [*predicted, *spreads, *relaxed, *self._describe]

    def __call__(self, job: Job) -> dict[str, float]:
        """Work on a chunk and write its rows, whole or not at all. Seconds by stage."""
        clock = Clock()
        rows = []
        ready: list[tuple[Row, Structure]] = []
        for line in job.lines:
            row: Row = {"line": line.number, "id": line.id, "smiles": "", "status": "ok", "reason": ""}
            rows.append(row)
            try:
                ready.append((row, self._prepared(line, row, clock)))
            except Refused as refused:
                row |= {"status": refused.code, "reason": refused.reason}
            except Exception as error:  # whatever the libraries raise, the other lines must not suffer
                row |= {"status": "failed", "reason": f"{type(error).__name__}: {str(error)[:200]}"}
        if self._potential is not None:
            ready = [pair for batch in _batches(ready) for pair in self._relaxed(batch)]
            clock.lap("relax")
        for batch in _batches(ready):
            self._predict(batch)
        if self.coordinates:
            for row, one in ready:
                row["geometry"] = packed(one)
        clock.lap("predict")
        write_rows(Path(job.path), rows)
        clock.lap("write")
        return clock.seconds

    def _prepared(self, line: Line, row: Row, clock: Clock) -> Structure:
        """What the models read of a line; the row is filled with what is found on the way."""
        row["smiles"] = line.text[:500] if "\n" not in line.text else ""
        molecule = self._format.molecule(line.text, self._standardise, self.coordinates)
        row |= {"standardised": molecule.smiles, "changes": molecule.changes}
        if molecule.written is not None:
            row["smiles"] = molecule.written
        clock.lap("standardise")
        # The seed follows from the molecule, so that it does not matter in which chunk it is.
        seed = int.from_bytes(molecule.smiles.encode()[-4:], "big") % 100_000
        found, row["coordinates"] = structure(molecule, self.coordinates, seed)
        clock.lap("coordinates and bonds")
        strange = sorted(set(found.numbers.tolist()) - set(self.elements)) if self.elements is not None else []
        if strange:
            raise Refused("unknown element", f"the model was not trained on {', '.join(symbols_of(strange))}")
        if molecule.mol is not None:
            row |= {name: float(f(molecule.mol)) for name, f in self._describe.items()}
        clock.lap("describe")
        return found

    def _relaxed(self, batch: Sequence[tuple[Row, Structure]]) -> list[tuple[Row, Structure]]:
        """The structures downhill of where they were; what cannot be relaxed says so and is left out."""
        assert self._potential is not None
        assert self.settings.relaxation is not None
        _, fmax, steps = self.settings.relaxation
        try:
            found = relax_batch(self._potential, [one for _, one in batch], fmax=fmax, steps=steps)
        except (UserError, RuntimeError) as error:
            if len(batch) > 1:
                return [pair for one in batch for pair in self._relaxed([one])]
            batch[0][0].update(status="not relaxed", reason=str(error).splitlines()[0][:300])
            return []
        kept = []
        for (row, _), result in zip(batch, found, strict=True):
            if not np.isfinite(result.energy):
                row.update(status="not relaxed", reason="energy or forces became infinite on the way")
                continue
            values = (float(result.converged), float(result.steps), result.energy, result.max_force)
            row.update(zip(RELAXED, values, strict=True))
            kept.append((row, result.structure))
        return kept

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
            answers.append(predict_properties(model, graph_of(structures, model.cutoff)))
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


def _told(targets: Sequence[Target]) -> str:
    return ", ".join(f"{target.name} in {target.unit}" if target.unit else target.name for target in targets)


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


def packed(structure: Structure) -> dict[str, Any]:
    """A structure as JSON holds it, positions to 1e-4 Å; the inverse of `unpacked`."""
    found: dict[str, Any] = {"numbers": structure.numbers.tolist(), "positions": structure.positions.round(4).tolist()}
    if structure.pbc.any():
        found |= {"cell": structure.cell.tolist(), "pbc": structure.pbc.tolist()}
    return found


def unpacked(values: Mapping[str, Any]) -> Structure:
    """The structure that `packed` wrote."""
    return Structure.of(values["numbers"], values["positions"], values.get("cell"), values.get("pbc", False))


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows as JSON, one a line; the file is there whole, or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.new")  # workers may be on several machines
    try:
        temporary.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_rows(path: Path) -> list[Row]:
    """The rows of a chunk; UserError for a damaged file."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n")[:-1]]
    except ValueError:
        raise UserError(f"{path}: the file is damaged; remove it, and its chunk is worked on again.") from None


@lru_cache(maxsize=1)
def worker_of(settings: Settings) -> Worker:
    """The worker of this process; UserError where a file is not the one that the screening began with."""
    for name, wanted in zip((*settings.models, *_potentials(settings)), settings.hashes, strict=True):
        if wanted != _hash(name):
            raise UserError(f"{name}: it is not there, or not the same, where a worker runs.")
    return Worker(settings)


def _potentials(settings: Settings) -> list[str]:
    return [settings.relaxation.potential] if settings.relaxation else []


def work(settings: Settings, job: Job) -> dict[str, float]:
    """Have the process's worker work on a chunk, unless one that died afterwards has written it already."""
    return {} if job.done() else worker_of(settings)(job)
