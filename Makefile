# Each target sets up what it needs: Python with pip and venv is enough, 3.11.4 or later, and for tests 3.11.5: pins want it.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
TOOLS  := $(VENV)/.tools
# two threaded torch processes on two cores crawl; tests run one process per core instead
export OMP_NUM_THREADS ?= 1
# without bytecode every process compiles the package, and each worker rewrites all tests, anew
unexport PYTHONDONTWRITEBYTECODE

# bytecode is compiled where a module is imported: most of what is installed never is
PIP = $(BIN)/python -m pip install -q --no-compile --disable-pip-version-check
INSTALL = $(PIP) -c constraints.txt -e

.PHONY: demo test suite style types shapes lint mutants campaign bench gpu slow family site cpu-torch clean

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) .
	touch $@

# all that is pinned, by two processes; what another platform lacks is left to the third
$(TOOLS): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	-grep == constraints.txt | xargs -P 2 -n 30 $(PIP) --no-deps
	$(INSTALL) ".[dev]"
	touch $(READY) $@

# PyPI's PyTorch for Linux brings CUDA, gigabytes; uv knows where the other builds are
cpu-torch:                ## before the others, on Linux without a GPU: the CPU build of PyTorch
	$(PYTHON) -m venv $(VENV)
	$(PIP) uv
	$(BIN)/uv pip install -q -p $(VENV) --torch-backend cpu $$(grep ^torch== constraints.txt)

demo: $(READY)            ## audit the embedded model family
	env -u OMP_NUM_THREADS $(BIN)/lensaudit demo

test: style               ## style, import directions, types and the test suite
	$(MAKE) -j2 types suite

suite: $(TOOLS)
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

style: $(TOOLS)
	$(BIN)/ruff format --check -q .
	$(BIN)/ruff check -q .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python tests/report/lint_page.py

types: $(TOOLS)
	$(BIN)/pyright --pythonpath $(BIN)/python

lint: style types         ## what pre-commit runs: style, import directions, types

slow: $(TOOLS)            ## the long tests: gigabytes and minutes
	$(BIN)/pytest -m slow --jaxtyping-packages=lensaudit,beartype.beartype

shapes: $(TOOLS)          ## the test suite with types and shapes checked in every call
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder --jaxtyping-packages=lensaudit,beartype.beartype

mutants: $(TOOLS)         ## break one line at a time: does a test notice? half an hour
	$(BIN)/python tests/mutants/run.py --jobs 2

campaign: $(TOOLS)        ## commands in combinations that no test combines; SEED=2 asks others; an hour
	$(BIN)/python tests/campaign/run.py --seed $(or $(SEED),1) --write

bench: $(TOOLS)           ## speed against the one-pass-per-layer method
	$(BIN)/python -m benchmarks.sweep

gpu: $(TOOLS)             ## on a CUDA device: the processor's numbers? how fast? ten minutes
	$(BIN)/python -m benchmarks.gpu

family: $(READY)          ## train the embedded family again, into build/family
	$(BIN)/python -m tools.demo_family.family --out build/family

site: $(TOOLS)            ## the documentation as a site, with every command and name, into build/site; `make test` builds it too
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache
