"""mlpot screen: a row for each line, whatever stands on it and whoever is killed on the way."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mlpot.cli import app
from mlpot.convert.conformers import conformer_of
from mlpot.errors import UserError
from mlpot.graph import AtomsGraph
from mlpot.property_model import predict_properties
from mlpot.screen.expressions import Expression
from mlpot.screen.input import Input
from mlpot.screen.molecule import Refused, Standardiser, from_smiles
from mlpot.screen.result import diverse


def screened(model: Path, source: Path, *words: str) -> tuple[dict[str, Any], list[dict[str, str]]]:
    out = source.with_suffix(".out.csv")
    arguments = ["screen", str(model), str(source), "-o", str(out), "--processes", "1", "--json", *words]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    with out.open(newline="") as file:
        return json.loads(result.stdout.splitlines()[-1]), list(csv.DictReader(file))


LINES = """CCO ethanol
OCC twice
CC(=O)[O-].[Na+] acetate

C1CC(no x
[Fe] iron
CCCl chloroethane
*C dummy
C[N+](C)(C)C cation
"""


def test_a_row_for_each_line_with_a_reason(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "molecules.smi"
    source.write_text(LINES + "C" * 20000 + " long\n" + "CC\0C odd\n")
    answer, rows = screened(model, source)
    assert [int(row["line"]) for row in rows] == list(range(1, 12))
    status = [row["status"] for row in rows]
    assert status[:9] == [
        *("ok", "ok", "ok", "empty", "not a molecule", "metal", "unknown element", "dummy atom", "ok")
    ]
    assert status[9:] == ["too long", "not a molecule"]
    assert all(bool(row["reason"]) == (row["status"] != "ok") for row in rows)
    assert rows[1]["duplicate_of"] == "1"
    assert float(rows[1]["gap"]) == pytest.approx(float(rows[0]["gap"]), abs=1e-6)
    assert rows[2]["standardised"] == "CC(=O)O"
    assert rows[2]["changes"] == "largest fragment kept; neutralised"
    assert answer["status"]["ok"] == 4
    assert answer["duplicates"] == 1
    text = (tmp_path / "molecules.out.csv.html").read_text()
    assert "<svg" in text
    assert "src=" not in text


def test_values_are_those_of_the_model(model: Path, tmp_path: Path) -> None:
    import mlpot
    from mlpot.convert.rdkit import structure

    source = tmp_path / "one.csv"
    source.write_text("name,SMILES\nethanol,CCO\n")
    _, rows = screened(model, source, "--filter", "MW < 50 and not toxic > 1")
    assert rows[0]["id"] == "ethanol"
    assert float(rows[0]["MW"]) == pytest.approx(46.069)
    seed = int.from_bytes(b"CCO", "big") % 100_000
    molecule = structure(conformer_of(from_smiles("CCO", Standardiser()).mol, "CCO", seed))
    loaded = mlpot.load(model)
    expected = predict_properties(loaded, AtomsGraph.from_structure(molecule, loaded.cutoff))  # type: ignore[arg-type]
    assert float(rows[0]["gap"]) == pytest.approx(float(expected["gap"]), abs=1e-6)
    assert rows[0]["passes"] == "1"


def test_the_best_are_ranked(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "chain.smi"
    source.write_text("".join(f"{'C' * n}O\n" for n in range(1, 9)))
    answer, rows = screened(model, source, "--rank", "heavy_atoms", "--top", "3", "--filter", "heavy_atoms <= 6")
    assert [row["smiles"] for row in answer["top"]] == ["CCCCCO", "CCCCO", "CCCO"]
    assert answer["passed"] == 5
    answer, _ = screened(model, source, "--rank", "gap", "--ascending", "--top", "2", "--restart")
    assert [row["gap"] for row in answer["top"]] == sorted(float(row["gap"]) for row in rows)[:2]


def test_the_same_command_goes_on_and_another_is_refused(model: Path, tmp_path: Path) -> None:
    source = tmp_path / "list.smi"
    source.write_text("CCO\nCC\n")
    _, rows = screened(model, source)
    part = tmp_path / "list.out.csv.parts" / "000000.jsonl"
    written = part.stat().st_mtime_ns
    _, again = screened(model, source)
    assert again == rows
    assert part.stat().st_mtime_ns == written
    source.write_text("CCO\nCC\nCCC\n")
    with pytest.raises(UserError, match="holds the work on another input"):
        screened(model, source)
    _, fresh = screened(model, source, "--restart")
    assert len(fresh) == 3


def command(model: Path, source: Path, out: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "mlpot", "screen", str(model), str(source), "-o", str(out), "--processes", "2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def children(pid: int) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and b"resource_tracker" not in (path.parent / "cmdline").read_bytes():
            found.append(int(path.parent.name))
    return found


def until(condition: Any, seconds: float = 90.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
def test_no_molecule_is_lost_when_a_worker_or_the_whole_is_killed(model: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "many.smi", tmp_path / "many.csv"
    source.write_text("".join(f"{'C' * (1 + k % 9)}{'O' if k % 2 else 'N'} m{k}\n" for k in range(2600)))
    parts = tmp_path / "many.csv.parts"
    running = command(model, source, out)
    until(lambda: list(parts.glob("*.jsonl")))
    running.kill()
    for child in children(running.pid):
        os.kill(child, signal.SIGKILL)
    running.wait()
    kept = {path.name: path.stat().st_mtime_ns for path in parts.glob("*.jsonl")}
    assert kept
    assert not out.exists()
    running = command(model, source, out)
    until(lambda: len(children(running.pid)) >= 2)
    os.kill(children(running.pid)[0], signal.SIGKILL)
    text, _ = running.communicate(timeout=180)
    assert running.returncode == 0, text
    for name, written in kept.items():
        assert (parts / name).stat().st_mtime_ns == written
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"m{k}" for k in range(2600)]
    assert {row["status"] for row in rows} == {"ok"}


# ------------------------------------------------------------------------------------------------------ the parts


@pytest.mark.parametrize(
    ("text", "row", "holds"),
    [
        ("gap < 3 and MW < 500", {"gap": 2.0, "MW": 100.0}, True),
        ("gap < 3 and not MW < 500", {"gap": 2.0, "MW": 100.0}, False),
        ("0 < gap <= 2", {"gap": 2.0}, True),
        ("gap / MW > 1 or gap == 2", {"gap": 2.0, "MW": 0.0}, False),  # a division by zero meets nothing
        ("`boiling point` - 1 > -2 * 3", {"boiling point": 1.0}, True),
        ("gap > 1", {}, False),
        ("gap > 1", {"gap": float("nan")}, False),
        ("name == 'a b'", {"name": "a b"}, True),
    ],
)
def test_filters(text: str, row: dict[str, Any], holds: bool) -> None:
    assert Expression(text).holds(row) is holds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('x')", "Call at place 0 is not allowed"),
        ("gap.real > 1", "Attribute"),
        ("gap ** 9999999", "BinOp"),
        ("[x for x in y]", "ListComp"),
        ("gap <", "not an expression"),
        ("`gap > 1", "backquote is not closed"),
        ("(" * 300 + "gap" + ")" * 300, "not an expression"),
    ],
)
def test_filters_are_no_code(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Expression(text)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "molecule,y\nC,1\n", "no column is named SMILES"),
        ("a.smi", "", "the file is empty"),
        ("a.csv", "smiles\n", "holds no molecules"),
        ("a.pdf", "C\n", "expected molecules: extxyz"),
    ],
)
def test_inputs_that_are_none(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        Input(tmp_path / name)


def test_names_of_columns(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("mol\tkey\nCC\tx\n")
    line = next(iter(Input(tmp_path / "a.tsv", "mol", "key")))
    assert (line.number, line.id, line.text) == (2, "x", "CC")
    with pytest.raises(UserError, match='there is no column "moll"'):
        Input(tmp_path / "a.tsv", "moll")


def test_ten_megabytes_of_one_line_do_not_stop_the_rest(tmp_path: Path) -> None:
    (tmp_path / "a.smi").write_text("CC\n" + "C" * 10_000_000 + "\nCCC\n")
    lines = list(Input(tmp_path / "a.smi"))
    assert [line.number for line in lines] == [1, 2, 3]
    assert len(lines[1].text) < 50_000
    assert lines[2].text == "CCC"
    with pytest.raises(Refused, match="at most"):
        from_smiles(lines[1].text, Standardiser())


def test_picks_are_far_apart() -> None:
    rows = [{"standardised": s} for s in ("CCCCCC", "CCCCCCC", "CCCCCCCC", "c1ccncc1", "O=C(O)c1ccccc1")]
    picked = [row["standardised"] for row in diverse(rows, 3)]
    assert picked[0] == "CCCCCC"
    assert set(picked[1:]) == {"c1ccncc1", "O=C(O)c1ccccc1"}
