# Each target sets up what it needs: Python 3.11 or later, with pip and venv, is enough.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
# two threaded torch processes on two cores crawl; tests run one process per core instead
export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint bench slow family docs clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

demo: $(READY)            ## audit the embedded model family
	$(BIN)/lensaudit demo

test: $(READY)            ## style, import directions and the test suite
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n 2

lint: $(READY)            ## what pre-commit runs: style, import directions, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pyright --pythonpath $(BIN)/python

slow: $(READY)            ## the long tests: gigabytes and minutes
	$(BIN)/pytest -m slow

bench: $(READY)           ## speed against the one-pass-per-layer method
	$(BIN)/python -m benchmarks.sweep

family: $(READY)          ## train the embedded family again, into build/family
	$(BIN)/python -m lensaudit.unlearn.family --out build/family

docs: $(READY)            ## write docs/reference/ again
	$(BIN)/python docs/make_reference.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
