"""Mistakes a user can mend, told in one message: what, where, and what to do."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """A mistake in the user's input. The command line prints it alone and exits with code 2."""


class PhysicsWarning(UserWarning):
    """Input that is readable but physically doubtful; the message carries the numbers."""


def suggestion(name: str, choices: Iterable[str]) -> str:
    """The tail of an error message: the nearest valid choice and all of them."""
    names = sorted(str(choice) for choice in choices)
    lowered = {choice.lower(): choice for choice in names}
    close = difflib.get_close_matches(str(name).lower(), lowered, n=1, cutoff=0.5)
    hint = f' Did you mean "{lowered[close[0]]}"?' if close else ""
    return f"{hint} Known: {', '.join(names)}." if names else hint


def unknown(kind: str, name: object, choices: Iterable[str], where: str = "") -> UserError:
    """The error for a name that is not among the valid ones, e.g. ``unknown("model", "schent", names)``."""
    place = f"{where}: " if where else ""
    return UserError(f'{place}unknown {kind} "{name}".{suggestion(str(name), choices)}')
