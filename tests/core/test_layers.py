"""The house rules, read off the source: imports point downward, files are small, nothing heavy loads early."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mlpot

PACKAGE = Path(mlpot.__file__).parent
ORDER = (
    ("errors", "units", "target", "structure", "device", "allocator", "inert"),
    ("neighbors",),
    ("convert", "bonds"),
    ("graph",),
    ("nn", "model"),
    ("potential",),
    ("models", "recording"),
    ("compose", "property_model"),
    ("data",),
    ("checkpoint",),
    ("pretrained",),
    ("train",),
    ("calculator",),
    ("simulate",),
    ("compare", "screen", "explain"),
    ("report", "bench"),
    ("testing", "demonstration"),
    ("commands",),
    ("cli", "__main__"),
)
LAYER = {name: level for level, names in enumerate(ORDER) for name in names}
FILES = sorted(path for path in PACKAGE.rglob("*.py"))
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES
}


def imports(module, path):
    """Every module of ours that a file imports, wherever in it; (module, line)."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            base = node.module
            names = [f"{base}.{alias.name}" if f"{base}.{alias.name}" in MODULES else base for alias in node.names]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            argument = node.args[0]
            names = [argument.value] if isinstance(argument, ast.Constant) else []
        found += [(name, node.lineno) for name in names if name.split(".")[0] == "mlpot" and name != module]
    return found


# The package itself is the shop window: it names what it shows, and loads it when asked.
SOURCES = {module: imports(module, path) for module, path in MODULES.items() if module != "mlpot"}


def layer(module):
    return LAYER[module.split(".")[1]]


def test_every_module_has_a_layer():
    assert {module.split(".")[1] for module in SOURCES} <= set(LAYER)


def test_imports_point_downward():
    upward = [
        f"{module}:{line} imports {name}"
        for module, found in SOURCES.items()
        for name, line in found
        if name != "mlpot" and layer(name) > layer(module)
    ]
    assert not upward, "\n".join(upward)


def test_the_root_is_imported_for_its_version_only():
    for module, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module == "mlpot":
                names = {alias.name for alias in node.names if f"mlpot.{alias.name}" not in MODULES}
                assert names <= {"__version__"}, f"{module}:{node.lineno} imports {names} from mlpot"


def test_there_are_no_cycles():
    """A package depends on its submodules where it imports them; a submodule needs its package's file too."""
    done, path = set(), []

    def visit(module):
        if module in path:
            raise AssertionError(" -> ".join([*path[path.index(module) :], module]))
        if module in done:
            return
        path.append(module)
        for name, _ in SOURCES.get(module, []):
            visit(name)
        path.pop()
        done.add(module)

    for module in SOURCES:
        visit(module)


def test_the_rules_catch_what_they_should(tmp_path):
    """The reader of imports sees those inside functions, aliases and import_module."""
    file = tmp_path / "bad.py"
    file.write_text(
        "import mlpot.cli as c\n"
        "def f():\n    from mlpot.train import loop\n    from mlpot import checkpoint\n"
        "    importlib.import_module('mlpot.report')\n"
    )
    assert [name for name, _ in imports("mlpot.units", file)] == [
        "mlpot.cli",
        "mlpot.train.loop",
        "mlpot.checkpoint",
        "mlpot.report",
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_are_small(path):
    assert len(path.read_text().splitlines()) <= 400


def test_no_path_of_a_machine_and_no_pickle_in_the_source():
    paths = re.compile(r"""["'`(\s](/(home|work|root|Users|tmp|mnt)/|[A-Z]:\\)""")
    for path in [*FILES, *Path(__file__).parent.parent.rglob("*.py")]:
        text = path.read_text()
        if path != Path(__file__):
            found = paths.search(text)
            assert found is None, f"{path}: {found and found.group()}"
    for path in FILES:
        text = path.read_text()
        assert not re.search(
            r"pickle\.loads?\(|allow_pickle=True|weights_only=False|(?<![.\w])(eval|exec)\(|yaml\.load\(", text
        ), path


def test_no_default_dtype_or_warning_filter_is_set_for_everyone():
    for path in FILES:
        text = path.read_text()
        assert "set_default_dtype" not in text, path
        assert "set_default_device" not in text, path
        assert not re.search(r"^warnings\.(simple)?filter", text, re.MULTILINE), path


def fresh(code):
    """What a fresh interpreter prints, as JSON."""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(out.stdout)


HEAVY = ("torch", "numpy", "ase", "scipy", "h5py", "matplotlib", "pydantic")


def test_importing_the_package_loads_nothing_heavy():
    loaded = fresh("import mlpot, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert not set(HEAVY) & set(loaded)


def test_the_command_line_loads_nothing_heavy():
    loaded = fresh("import mlpot.cli, sys, json; print(json.dumps(sorted(sys.modules)))")
    assert not {"torch", "ase", "scipy", "h5py", "matplotlib"} & set(loaded)


def test_public_names_are_those_agreed():
    agreed = {"AtomsGraph", "Potential", "predict", "Prediction", "load", "save", "Calculator"}
    assert set(mlpot.__all__) == agreed
    assert len(mlpot.__all__) == len(agreed)
    code = (
        "import mlpot, json; names = [getattr(mlpot, n).__name__ for n in mlpot.__all__]; "
        "mlpot.models.names(); mlpot.testing.check_potential; print(json.dumps(names))"
    )
    assert set(fresh(code)) == agreed


def test_importing_every_module_has_no_side_effects():
    code = f"""
import importlib, json, os, sys, torch
def state():
    torch_state = [str(torch.get_default_dtype()), torch.get_num_threads(), torch.get_rng_state().tolist()]
    return [*torch_state, os.getcwd(), dict(os.environ)]
before, quiet, sys.stdout = state(), sys.stdout, sys.stderr
for module in {[module for module in MODULES if module != "mlpot.__main__"]!r}:
    importlib.import_module(module)
sys.stdout = quiet
print(json.dumps([number for number, (a, b) in enumerate(zip(before, state())) if a != b]))
"""
    assert fresh(code) == []
