"""What to say of labels that a file holds under names that nobody gave."""

from __future__ import annotations

import re
from collections.abc import Mapping

from mlpot.data.options import ReadOptions
from mlpot.data.sources._labels import DEFAULT_KEYS, UNIT_KEY
from mlpot.errors import UserError, suggestion

_LIKE = {
    "energy": r"energ|(?:^|_)(?:E|U0)(?:$|_)",
    "forces": r"forc|gradient",
    "stress": r"stress",
    "virial": r"virial",
}
# Settings of the program and partial or per-atom quantities, which are no labels.
_UNLIKE = re.compile(
    r"tol|cut|unit|kinetic|energies|stresses|calculate|correction|std|error|time|homo|lumo|zero_point|zpve",
    re.IGNORECASE,
)


def likely(label: str, keys: Mapping[str, int]) -> list[str]:
    """Names that look like a label, the likeliest (most frames, then shortest) first."""
    found = [
        key
        for key in keys
        if re.search(_LIKE[label], key, re.IGNORECASE) and not UNIT_KEY.match(key) and not _UNLIKE.search(key)
    ]
    return sorted(found, key=lambda key: (-keys[key], "free" in key.lower(), "0" not in key, len(key)))


def explain_missing(of_frame: Mapping[str, int], of_atoms: Mapping[str, int], options: ReadOptions) -> str:
    """What a file without labels holds instead (name and number of frames), and options that would name its labels."""
    guesses: list[str] = []
    for label in _LIKE:
        near = likely(label, of_atoms if label == "forces" else of_frame)
        if near and not (label == "virial" and guesses and guesses[-1].startswith("keys.stress")):
            guesses.append(f"keys.{label}={near[0]}")
    parts = []
    for kind, found in (("values of a frame", of_frame), ("values of its atoms", of_atoms)):
        listed = [f"{key} ({n})" for key, n in found.items()]
        more = f" and {len(listed) - 40} more" if len(listed) > 40 else ""
        parts.append(f"{kind}: {', '.join(listed[:40]) or 'none'}{more}")
    hint = f" If these are the labels, add: {' '.join(guesses)}" if guesses else ""
    asked = f" (You named {', '.join(f'keys.{k}={v}' for k, v in options.keys.items())}.)" if options.keys else ""
    return f"It holds (number of frames with each) {'; '.join(parts)}.{hint}{asked}"


def refuse_absent_keys(
    where: str,
    options: ReadOptions,
    counts: Mapping[str, int],
    of_frame: Mapping[str, int],
    of_atoms: Mapping[str, int],
) -> None:
    """UserError for a name the user gave that no frame carries, or that lies where it cannot be the label."""
    for label, key in options.keys.items():
        ours, others = (of_atoms, of_frame) if label == "forces" else (of_frame, of_atoms)
        if key in ours:
            if label in counts and not counts[label]:
                raise UserError(f'{where}: "{key}" is there, but none of the frames read has it as a number.')
            continue
        if key in others:
            place = "of the frame, not of its atoms" if label == "forces" else "of atoms, not of the frame"
            raise UserError(f'{where}: keys.{label}={key}: "{key}" is a value {place}.{suggestion(key, ours)}')
        raise UserError(f'{where}: keys.{label}={key}: no frame has "{key}".{suggestion(key, ours)}')


def unread_labels(
    options: ReadOptions, counts: Mapping[str, int], of_frame: Mapping[str, int], of_atoms: Mapping[str, int]
) -> list[str]:
    """A warning where forces or energies seem to be there but were not read."""
    texts = []
    for label, keys in (("energy", of_frame), ("forces", of_atoms)):
        near = [key for key in likely(label, keys) if key != DEFAULT_KEYS[label]]
        if not counts[label] and near and label not in options.keys:
            texts.append(
                f'no {label} {"is" if label == "energy" else "are"} read, but there is "{near[0]}" '
                f"({keys[near[0]]} frames). "
                f"If that is the label, add: keys.{label}={near[0]}"
            )
    return texts
