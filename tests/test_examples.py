"""The examples run as their first lines say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ARGUMENTS = {"train_and_use.py": ["3"], "screen_lattice_constants.py": []}


def test_every_example_is_run(repository: Path) -> None:
    assert {path.name for path in (repository / "examples").glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_example(repository: Path, name: str) -> None:
    command = [sys.executable, str(repository / "examples" / name), *ARGUMENTS[name]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    last = result.stdout.strip().splitlines()[-1]
    assert "eV" in last
    assert "nan" not in last
