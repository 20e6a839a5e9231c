"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real published data beside the repository (or at $MLPOT_SHARED)."""
    folder = Path(os.environ.get("MLPOT_SHARED", REPOSITORY.parent / "shared"))
    if not (folder / "data").is_dir():
        pytest.skip(f"needs the shared data folder, looked for at {folder} (set MLPOT_SHARED)")
    return folder


@pytest.fixture(scope="session")
def repository() -> Path:
    return REPOSITORY
