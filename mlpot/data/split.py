"""Splits into training, validation and test frames: disjoint, drawn by seed from the whole set, kept in a file."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mlpot import __version__
from mlpot.data.dataset import Dataset
from mlpot.data.scaffold import by_scaffold, smiles_of
from mlpot.errors import UserError, unknown

METHODS = ("random", "blocks", "scaffold")


@dataclass(frozen=True)
class Split:
    """Rows of a data set for each purpose; `sha` and `n_frames` name the data set they belong to."""

    train: NDArray[np.int64]
    valid: NDArray[np.int64]
    test: NDArray[np.int64]
    sha: str
    n_frames: int
    seed: int
    method: str

    @property
    def hash(self) -> str:
        """Hash of the rows, hex: two runs with the same one saw the same frames."""
        digest = hashlib.sha256(self.sha.encode())
        for rows in (self.train, self.valid, self.test):
            digest.update(rows.tobytes() + b"|")
        return digest.hexdigest()


def is_isolated_atom(config_type: str) -> bool:
    """Whether a config type marks a free atom: IsolatedAtom, isolated_atom ..."""
    return config_type.lower().replace("_", "").replace("-", "") == "isolatedatom"


def size_of(wanted: float | int | None, n: int, what: str) -> int:
    """A count as it is, a fraction of n rounded (at least 1); UserError for what n frames cannot give."""
    if wanted is None or wanted == 0:
        return 0
    count = max(1, round(wanted * n)) if isinstance(wanted, float) and wanted < 1 else int(wanted)
    if count < 0 or count > n:
        raise UserError(f"{what} asks for {wanted} frames; the set has {n}.")
    return count


def split(
    dataset: Dataset,
    train: float | int | None = None,
    valid: float | int | None = 0.1,
    test: float | int | None = 0,
    seed: int = 0,
    method: str = "random",
    gap: int = 0,
) -> Split:
    """Sizes as counts or fractions; `train=None` takes all that is left.

    "random" draws from the whole set. "blocks" cuts it into twenty stretches of time and deals whole stretches, for
    trajectories whose neighbouring frames are nearly the same; training (and test) frames fewer than `gap` frames
    away from a frame of validation (and test) are then left out. "scaffold" keeps molecules of one ring scaffold
    together (see `mlpot.data.scaffold`). Frames of config type IsolatedAtom always go to training.
    """
    if method not in METHODS:
        raise unknown("split method", method, METHODS)
    if gap < 0 or (gap and method != "blocks"):
        raise UserError(f'gap is {gap}; it is a number of frames, for the split method "blocks" alone.')
    n = len(dataset)
    types = dataset.config_types()
    isolated = np.array([row for row, name in enumerate(types) if is_isolated_atom(name)], dtype=np.int64)
    rows = np.setdiff1d(np.arange(n), isolated)
    n_valid, n_test = size_of(valid, len(rows), "valid"), size_of(test, len(rows), "test")
    left = len(rows) - n_valid - n_test
    n_train = left if train is None else size_of(train, len(rows), "train")
    if n_train > left or n_train < 1:
        raise UserError(
            f"the split asks for {n_train} training, {n_valid} validation and {n_test} test frames; "
            f"{dataset.path or 'the set'} has {len(rows)}."
        )
    if method == "scaffold":
        of_train, of_valid, of_test = by_scaffold(smiles_of(dataset), (n_train, n_valid, n_test), seed)
        return Split(of_train, of_valid, of_test, dataset.sha, n, seed, method)
    generator = np.random.default_rng(seed)
    if method == "random":
        order = generator.permutation(rows)
    else:
        blocks = np.array_split(rows, min(20, len(rows)))
        order = np.concatenate([blocks[k] for k in generator.permutation(len(blocks))])
    chosen_valid, chosen_test, chosen_train = np.split(order[: n_valid + n_test + n_train], [n_valid, n_valid + n_test])
    if gap:
        chosen_test = _away(chosen_test, chosen_valid, gap)
        chosen_train = _away(chosen_train, np.concatenate([chosen_valid, chosen_test]), gap)
        if not len(chosen_train):
            raise UserError(f"a gap of {gap} frames leaves no training frames of {len(rows)}; use a smaller one.")
    chosen_train = np.concatenate([isolated, chosen_train])
    return Split(np.sort(chosen_train), np.sort(chosen_valid), np.sort(chosen_test), dataset.sha, n, seed, method)


def _away(rows: NDArray[np.int64], others: NDArray[np.int64], gap: int) -> NDArray[np.int64]:
    """The rows with no other within `gap` frames."""
    if not len(others):
        return rows
    ordered = np.sort(others)
    after = np.searchsorted(ordered, rows)
    above = np.abs(ordered[np.minimum(after, len(ordered) - 1)] - rows)
    below = np.abs(rows - ordered[np.maximum(after - 1, 0)])
    return rows[np.minimum(above, below) >= gap]


def save_split(path: str | os.PathLike[str], chosen: Split) -> None:
    """Write a split as JSON, whole or not at all."""
    target = Path(path)
    value = {
        "format": "mlpot split",
        "written_by": __version__,
        "sha": chosen.sha,
        "n_frames": chosen.n_frames,
        "seed": chosen.seed,
        "method": chosen.method,
        "hash": chosen.hash,
        **{name: getattr(chosen, name).tolist() for name in ("train", "valid", "test")},
    }
    temporary = target.with_name(f".{target.name}.new")
    temporary.write_text(json.dumps(value), encoding="utf-8")
    os.replace(temporary, target)


def load_split(path: str | os.PathLike[str], dataset: Dataset) -> Split:
    """A split written by `save_split`; UserError where it belongs to other data: its rows would be other frames."""
    try:
        value = json.loads(Path(path).read_text(encoding="utf-8"))
        train, valid, test = (np.array(value[name], dtype=np.int64) for name in ("train", "valid", "test"))
        sha, method = str(value["sha"]), str(value["method"])
        chosen = Split(train, valid, test, sha, int(value["n_frames"]), int(value["seed"]), method)
    except FileNotFoundError:
        raise UserError(f"{path}: there is no such split file.") from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise UserError(f"{path}: not a split file of mlpot ({type(error).__name__}: {error}).") from None
    if chosen.sha != dataset.sha or chosen.n_frames != len(dataset):
        raise UserError(
            f"{path}: made for a set of {chosen.n_frames} frames (sha {chosen.sha[:12]}); {dataset.path} has "
            f"{len(dataset)} (sha {dataset.sha[:12]}). The rows would be other frames: make a new split."
        )
    if chosen.hash != value.get("hash"):
        raise UserError(f"{path}: the rows do not match the hash written with them; the file is damaged.")
    return chosen
