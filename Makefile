# make          set up .venv with the versions of constraints.txt
# make demo     train on the data that comes along, run dynamics, write demo/report.html
# make test     lint, types and the test suite
# make test-all the same with the long tests
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
DONE = $(VENV)/.done

.PHONY: all demo test test-all lint format clean

all: $(DONE)

# torch comes first and alone: where a CPU build is what is found, the others must not ask for another one.
$(DONE): pyproject.toml constraints.txt
	$(PYTHON) -c "import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else f'Python 3.11 to 3.13 is needed; this is {v.major}.{v.minor}. Say make PYTHON=python3.12')"
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(DONE)

demo: $(DONE)
	$(BIN)/mlpot demo --out demo

lint: $(DONE)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(DONE)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-all: lint
	$(BIN)/python -m pytest

clean:
	rm -rf $(VENV) demo runs build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis
