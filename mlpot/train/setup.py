"""From settings to what the loop needs: data, split, reference energies, an untrained potential, sensible defaults."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError

from mlpot import models
from mlpot.compose import ReferenceEnergies, Scaled, Sum
from mlpot.data import references as refs
from mlpot.data.dataset import Dataset, Subset
from mlpot.data.frame import Frame
from mlpot.data.opening import open_dataset
from mlpot.data.options import ReadOptions
from mlpot.data.split import Split, is_isolated_atom, load_split, size_of, split
from mlpot.data.store import is_store
from mlpot.device import threads_for
from mlpot.errors import PhysicsWarning, UserError
from mlpot.model import Model
from mlpot.neighbors import neighbor_list
from mlpot.potential import Potential
from mlpot.structure import SYMBOLS
from mlpot.target import Target
from mlpot.train.config import Config, DataConfig, LossConfig, ModelConfig
from mlpot.train.energies import EnergyObjective
from mlpot.train.objective import Objective
from mlpot.train.properties import PropertyObjective
from mlpot.train.setup_properties import property_model, targets_of
from mlpot.train.start import fine_tuned

DEFAULT_BUDGET = 15 * 60.0  # seconds
VALID_FRACTION, VALID_MOST = 0.1, 500
PROPERTY_RATE = 1e-3
NEIGHBOR_FRAMES = 50  # frames whose neighbours are counted


@dataclass(frozen=True)
class Prepared:
    """A run before its first step. `notes` say what was found, assumed and chosen, one line each."""

    config: Config
    train: Dataset
    valid: Dataset | None
    test: Dataset | None
    split: Split | None
    references: refs.References | None
    potential: Model
    objective: Objective
    notes: tuple[str, ...]


def prepare(config: Config) -> Prepared:
    """Open, split and look at the data, and build the potential. Same settings and seed give the same result."""
    notes: list[str] = []
    data = config.data
    options = ReadOptions(
        keys=data.keys,
        units=data.units,
        theory=data.theory,
        embed=data.embed,
        uncharacterized=data.uncharacterized,
    )
    whole = _open(data.train, options)
    train, valid, chosen = _split(config, whole, options)
    test = _open(data.test, options) if isinstance(data.test, str) else None
    if chosen is not None and len(chosen.test):
        test = Subset(whole, chosen.test)
    notes += [f"{whole.path}: {len(whole)} frames, {whole.source}", *whole.notes]
    notes += [_described("training", train)]
    notes += (
        [_described("validation", valid)] if valid is not None else ["validation: none, the last parameters are kept"]
    )
    if test is not None:
        notes.append(_described(f"test ({test.path})", test))
    frames = refs.sample(train)
    _same_elements(train, {"validation": valid, "test": test})
    targets = targets_of(config, train)
    references = None if targets or config.model.start else _references(data, train, frames, options)
    if references is not None:
        shown = ", ".join(f"{SYMBOLS[z]} {e:.4f}" for z, e in references.energies.items())
        notes.append(f"reference energies ({references.origin}), eV: {shown}")
    config, chosen_notes = with_defaults(config, train, targets)
    if config.model.start is None:
        config, model_notes = from_data(config, train, frames)
        chosen_notes += model_notes
    objective: Objective
    potential: Model
    if targets:
        potential, told = property_model(config, targets, train, frames)
        objective = PropertyObjective(config.properties, targets)
    elif config.model.start is not None:
        potential, told = fine_tuned(config, train, frames)
        objective = EnergyObjective(config, train)
    else:
        potential, scale = _potential(config, train, frames, references)
        told = [f"scale of the network's energies: {scale:.4g} eV (from the spread of the labels)"]
        objective = EnergyObjective(config, train)
    return Prepared(
        config, train, valid, test, chosen, references, potential, objective, (*notes, *chosen_notes, *told)
    )


def _split(config: Config, whole: Dataset, options: ReadOptions) -> tuple[Dataset, Dataset | None, Split | None]:
    data = config.data
    n_test = 0 if data.test is None or isinstance(data.test, str) else size_of(data.test, len(whole), "test")
    if data.split_file is not None:
        chosen = load_split(data.split_file, whole)
    elif isinstance(data.valid, str):
        if data.train_size is None and not n_test:
            return whole, _open(data.valid, options), None
        chosen = split(whole, data.train_size, 0, n_test, seed=config.seed, method=data.split)
        return Subset(whole, chosen.train), _open(data.valid, options), chosen
    else:
        wanted = data.valid
        if wanted is None:  # a tenth, of what is trained on if that is less than the whole
            n = min(len(whole) - n_test, round((data.train_size or len(whole)) * (1 + VALID_FRACTION)))
            wanted = min(VALID_MOST, size_of(VALID_FRACTION, n, "valid")) if n > 4 else 0
        chosen = split(whole, data.train_size, wanted, n_test, seed=config.seed, method=data.split)
    valid = Subset(whole, chosen.valid) if len(chosen.valid) else None
    return Subset(whole, chosen.train), valid, chosen


def _open(path: str, options: ReadOptions) -> Dataset:
    """A file with the user's keys and units; a store beside it knows its own."""
    return open_dataset(path, ReadOptions() if Path(path).is_file() and is_store(Path(path)) else options)


def _described(name: str, dataset: Dataset) -> str:
    counts = dataset.counts()
    n = dataset.n_atoms()
    labels = ", ".join(f"{label} {count}" for label, count in counts.items())
    return f"{name}: {len(dataset)} frames of {n.min()} to {n.max()} atoms; frames with {labels}"


def _same_elements(train: Dataset, others: Mapping[str, Dataset | None]) -> None:
    for name, other in others.items():
        new = set(other.elements) - set(train.elements) if other is not None else set()
        # A file of a few isolated atoms may hold elements that the set itself does not.
        if new:
            raise UserError(
                f"the {name} frames hold {', '.join(SYMBOLS[z] for z in sorted(new))}, which no training frame holds; "
                f"a model cannot be asked about elements it never saw."
            )


def _references(data: DataConfig, train: Dataset, frames: list[Frame], options: ReadOptions) -> refs.References | None:
    wanted = data.reference_energies
    if not train.counts()["energy"] or wanted == "none":
        return None
    if isinstance(wanted, Mapping):
        found = refs.from_mapping(wanted, train.elements)
    elif wanted in ("auto", "isolated_atoms"):
        singles = [train[row] for row, name in enumerate(train.config_types()) if is_isolated_atom(name)]
        isolated = refs.from_isolated_atoms(singles, train.elements)
        if isolated is None and wanted == "isolated_atoms":
            raise UserError(
                "data.reference_energies=isolated_atoms, but the training frames lack a free atom "
                f"(config_type=IsolatedAtom) of each of {', '.join(SYMBOLS[z] for z in train.elements)}."
            )
        found = isolated or refs.least_squares(frames)
    elif wanted == "least_squares":
        found = refs.least_squares(frames)
    else:
        found = _from_file(wanted, train, options)
    refs.check_scale(frames, found)
    return found


def _from_file(path: str, train: Dataset, options: ReadOptions) -> refs.References:
    """Energies of free atoms from a file of single atoms, such as isolated_atoms.xyz."""
    atoms = _open(path, options)
    energies = {}
    for index in range(len(atoms)):
        frame = atoms[index]
        if len(frame.structure) != 1 or frame.energy is None:
            raise UserError(f"{path}: frame {index} is not a single atom with an energy, as reference_energies needs.")
        energies[SYMBOLS[int(frame.structure.numbers[0])]] = frame.energy
    found = refs.from_mapping(energies, train.elements)
    kept = {z: found.energies[z] for z in train.elements}
    return refs.References(kept, f"free atoms in {path}", len(kept), len(kept))


def with_defaults(config: Config, train: Dataset, targets: Sequence[Target] = ()) -> tuple[Config, list[str]]:
    """The settings with every choice made that was left open, and a line for each choice."""
    changes: dict[str, object] = {}
    notes = []
    settings = config.training
    if settings.epochs is None and settings.budget is None:
        changes["budget"] = DEFAULT_BUDGET
        notes.append(f"budget: {DEFAULT_BUDGET / 60:g} min (change with budget=2h, or epochs=500)")
    if settings.batch_size is None and settings.batch_atoms is None and settings.batch_edges is None:
        mean = float(train.n_atoms().mean())
        # Some ninety atoms a step keep a small machine busy; few frames want many small steps.
        size = max(1, min(32, 32 if targets else round(90 / mean), math.ceil(len(train) / (20 if targets else 4))))
        changes["batch_size"] = size
        notes.append(f"batch_size: {size} frames")
    elif settings.batch_size is not None and settings.batch_size > len(train):
        changes["batch_size"] = len(train)
        notes.append(f"batch_size: {len(train)}, all the training frames ({settings.batch_size} were asked for)")
    if targets and "learning_rate" not in settings.model_fields_set:
        changes["learning_rate"] = PROPERTY_RATE
        notes.append(f"learning_rate: {PROPERTY_RATE}, for properties")
    training = settings.model_copy(update=changes)
    terms, more = (config.loss, []) if targets else _present_terms(config.loss, train)
    threads = config.threads
    if threads is None and config.device == "cpu" and training.batch_edges is None:
        atoms = training.batch_atoms or (training.batch_size or 1) * float(train.n_atoms().mean())
        threads = threads_for(atoms)
        notes.append(f"threads: {threads}, for batches of some {atoms:.0f} atoms")
    return config.model_copy(update={"training": training, "loss": terms, "threads": threads}), [*notes, *more]


def _present_terms(terms: LossConfig, train: Dataset) -> tuple[LossConfig, list[str]]:
    """The loss with weight 0 for labels that no frame carries; UserError where a weight was asked for by name."""
    changes, notes = {}, []
    for label, count in train.counts().items():
        term = getattr(terms, label)
        if count or term.weight == 0:
            continue
        if "weight" in term.model_fields_set:
            raise UserError(
                f"loss.{label}.weight is {term.weight}, but no training frame has {label}"
                f"{' with a cell that is periodic in three directions' if label == 'stress' else ''}. "
                f"Set it to 0, or name the label with data.keys.{label}=."
            )
        changes[label] = term.model_copy(update={"weight": 0.0})
        notes.append(f"loss: no training frame has {label}, so its term is left out")
    return terms.model_copy(update=changes), notes


def from_data(config: Config, train: Dataset, frames: list[Frame]) -> tuple[Config, list[str]]:
    """The settings with what a model wants to know of its data: `elements` and `average_neighbors`, if it has them."""
    schema, settings = models.config_class(config.model.name), config.model.settings
    try:
        checked = schema(**settings)
    except ValidationError as error:
        raise UserError(models.explain(error, schema, f"model {config.model.name}")) from None
    found: dict[str, object] = {}
    if "elements" in schema.model_fields and settings.get("elements") is None:
        found["elements"] = list(train.elements)
    if "average_neighbors" in schema.model_fields and "average_neighbors" not in settings:
        cutoff = float(checked.cutoff)  # type: ignore[attr-defined]
        some = [frame for frame in frames if frame.structure.has_positions]
        some = some[:: max(1, len(some) // NEIGHBOR_FRAMES)]
    if "average_neighbors" in schema.model_fields and "average_neighbors" not in settings and some:
        n_edges = sum(neighbor_list(frame.structure, cutoff)[0].shape[1] for frame in some)
        found["average_neighbors"] = round(max(1.0, n_edges / sum(len(frame.structure) for frame in some)), 3)
    notes = []
    if "average_neighbors" in found:
        notes.append(f"average_neighbors: {found['average_neighbors']} within {cutoff:g} Å")
    model = ModelConfig(**{**config.model.model_dump(), **found})
    return config.model_copy(update={"model": model}), notes


def _potential(
    config: Config, train: Dataset, frames: list[Frame], references: refs.References | None
) -> tuple[Potential, float]:
    torch.manual_seed(config.seed)
    network = models.build(config.model.name, **config.model.settings)
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(f"model {config.model.name} has no parameters to train.")
    scale = _scale(frames, references)
    parts: list[Potential] = [Scaled([network], scale=scale)]
    if references is not None:
        parts.append(ReferenceEnergies(energies=references.energies))
    if config.model.zbl:
        parts.append(models.build("zbl"))
    potential = Sum(parts)
    potential.restrict_to(train.elements)
    return potential.to(torch.float64 if config.dtype == "float64" else torch.float32), scale


def _scale(frames: list[Frame], references: refs.References | None) -> float:
    """Root mean square of the force components, or spread of the energy per atom where there are no forces."""
    forces = [np.square(frame.forces).mean() for frame in frames if frame.forces is not None]
    if forces and (spread := math.sqrt(float(np.mean(forces)))) > 1e-6:
        return spread
    energies = [
        (frame.energy - (references.of(frame.structure.numbers) if references else 0.0)) / len(frame.structure)
        for frame in frames
        if frame.energy is not None
    ]
    spread = float(np.std(energies)) if len(energies) > 1 else 0.0
    if spread < 1e-6:
        warnings.warn(
            "the labels hardly vary (no forces, and energies per atom that are equal): there is little to learn.",
            PhysicsWarning,
            stacklevel=2,
        )
    return spread if spread > 1e-6 else 1.0
