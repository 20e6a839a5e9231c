"""A trajectory that plays in 3D inside the page, drawn by 3Dmol.js, which is written into the page once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlpot.report.geometry import presented, radii
from mlpot.report.html import Markup, Page, asset, escape, number, packed
from mlpot.report.inputs import Array
from mlpot.structure import SYMBOLS

RESOLUTION = 0.001  # Å
MOST_NUMBERS = 300_000  # coordinates in a page; at 2 bytes each 0.8 MB of text


@dataclass(frozen=True)
class Trajectory:
    """Frames to play: numbers (n,), positions (F, n, 3) in Å, times_fs (F,); cell (3, 3) or (F, 3, 3) where periodic.

    bonds: "frame" finds them anew in every frame (reactions), "first" keeps those of the first frame.
    align: take drift and rotation out of a run in free space, and make molecules whole in a periodic one.
    """

    numbers: NDArray[np.int64]
    positions: Array
    times_fs: Array
    cell: Array | None = None
    pbc: Sequence[bool] = (False, False, False)
    bonds: str = "frame"
    align: bool = True


def add_player(page: Page, trajectory: Trajectory, label: str, most_frames: int = 1000) -> Markup:
    """The player's HTML for a trajectory; its scripts go to the end of `page`.

    Frames are thinned evenly to `most_frames`, and further so that large systems stay under about 1 MB.
    """
    page.scripts.setdefault("3Dmol.js", asset("vendor/3Dmol-min.js"))
    page.scripts.setdefault("player.js", asset("assets/player.js"))
    n = len(trajectory.numbers)
    kept = min(len(trajectory.positions), most_frames, max(2, MOST_NUMBERS // (3 * n)))
    stride = -(-len(trajectory.positions) // kept)
    chosen = slice(None, None, stride)
    cell = (
        None
        if trajectory.cell is None or not np.any(trajectory.cell)
        else np.asarray(trajectory.cell, dtype=np.float64)
    )
    if cell is not None and cell.ndim == 3:
        cell = cell[chosen]
    positions = np.asarray(trajectory.positions, dtype=np.float64)[chosen]
    if trajectory.align:
        positions = presented(positions, trajectory.numbers, cell, trajectory.pbc)
    data = _data(trajectory, positions, np.asarray(trajectory.times_fs, dtype=np.float64)[chosen], cell)
    return _markup(data, label, len(positions))


def _data(trajectory: Trajectory, positions: Array, times: Array, cell: Array | None) -> str:
    offset = positions.mean(axis=(0, 1))
    steps = np.round((positions - offset) / RESOLUTION)
    kind = "int16" if np.abs(steps).max(initial=0) < 2**15 else "int32"
    boxes = [] if cell is None else np.round(np.reshape(cell, (-1, 9)), 4).tolist()
    origin = (-offset).round(4).tolist()
    values = {
        "symbols": [SYMBOLS[z] for z in trajectory.numbers],
        "radii": np.round(radii(trajectory.numbers), 3).tolist(),
        "kind": kind,
        "resolution": RESOLUTION,
        "positions": packed(steps.astype(f"<{kind[0]}{int(kind[3:]) // 8}").tobytes()),
        "times": np.round(times, 3).tolist(),
        "cells": boxes,
        "origin": origin,
        "bonds": trajectory.bonds,
    }
    return json.dumps(values, separators=(",", ":")).replace("<", "\\u003c")


def _markup(data: str, label: str, frames: int) -> Markup:
    name = escape(label)
    speeds = "".join(
        f'<option value="{speed}"{" selected" if speed == 1 else ""}>{number(speed, 2)}×</option>'
        for speed in (0.25, 0.5, 1, 2, 4)
    )
    return Markup(
        f'<div class="player" data-state="waiting"><script type="application/json">{data}</script>'
        f'<div class="stage" role="img" aria-label="{name}">'
        '<p class="missing">The moving picture needs JavaScript and WebGL, which this browser does not offer here. '
        "All figures of this report are complete without it.</p></div>"
        f'<div class="controls" hidden><button type="button">Play</button>'
        f'<input type="range" min="0" max="{frames - 1}" value="0" aria-label="Frame of {name}">'
        f'<label>Speed <select aria-label="Speed of {name}">{speeds}</select></label><output>–</output></div></div>'
    )
