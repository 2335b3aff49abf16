# Targets set up .venv if it is missing or older than pyproject.toml and constraints.txt: the package for `make demo`, and
# the developers' tools too for all other targets.
# Another interpreter: make setup PYTHON=python3.12. Options of pytest: make test ARGS="-k kerple -x".
# Eight tests at a time: make test JOBS=8 (0: one process, for a debugger).

PYTHON ?= python3
ARGS ?=
JOBS ?= 2
CASES ?= 4000
SEED ?= $(shell date +%s)
ROUNDS ?= 20
N ?= 50
BIN := .venv/bin
READY := .venv/.ready
DEV := .venv/.dev
DOCS := .venv/.docs

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-all docs wheel fuzz sanitize crash mutants lint audit format clean

help:  ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(DEV)  ## create .venv with everything, in the tested versions

demo: $(READY)  ## train seven encodings short, test them long (minutes; into runs/compare)
	$(BIN)/dape compare

test: $(DEV)  ## fast tests, 6 minutes on two cores
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

test-slow: $(DEV)  ## slow and torch.compile tests, which make test leaves out
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m "(slow or compile) and not gpu" $(ARGS)

test-all: test test-slow  ## fast, slow and torch.compile tests

docs: $(DOCS)  ## the documentation as a site, in build/site; warnings are errors
	$(BIN)/python docs/site.py
	$(BIN)/zensical build --strict

wheel: $(DEV)  ## sdist, and from it the wheel with compiled kernels, which is tried in an empty environment
	rm -rf dist build/kernels build/sdist build/wheel
	$(BIN)/python packaging/kernels.py build/kernels
	$(BIN)/python -m hatchling build -d dist -t sdist
	mkdir -p build/sdist && tar -xzf dist/dape-*.tar.gz -C build/sdist --strip-components 1
	cd build/sdist && DAPE_KERNELS_FROM=$(CURDIR)/build/kernels $(CURDIR)/$(BIN)/python -m hatchling build -d $(CURDIR)/dist -t wheel
	$(BIN)/python -m venv build/wheel
	build/wheel/bin/python -m pip install -q -c constraints.txt torch
	build/wheel/bin/python -m pip install -q -c constraints.txt "$$(ls dist/*.whl)[report]"
	build/wheel/bin/python tests/wheel.py

fuzz: $(DEV)  ## random calls, damaged files and command lines; CASES=20000 for a long run, SEED=1 to repeat one
	@echo "The same cases again: make fuzz CASES=$(CASES) SEED=$(SEED)"
	FUZZ_CASES=$(CASES) $(BIN)/python -m pytest tests/fuzz -m "" -n $(JOBS) --hypothesis-seed=$(SEED) --hypothesis-show-statistics $(ARGS)

sanitize: $(DEV)  ## the C++ kernel under g++'s address, undefined-behaviour and thread sanitizers
	$(BIN)/python -m pytest -n 0 -m slow -s tests/ops/attention/test_sanitizers.py $(ARGS)

crash: $(DEV)  ## kill every long command at random moments and compare what it ends with; ROUNDS=100
	$(BIN)/python -m tests.crash --rounds $(ROUNDS)

mutants: $(DEV)  ## change one thing at a time and see whether a test fails; N=150 of each package
	OMP_NUM_THREADS=1 $(BIN)/python -m tests.mutation -n $(N) $(ARGS)

lint: $(DEV)  ## formatting, lint, types and imports between packages
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports

audit: $(DEV)  ## installed versions against constraints.txt, and known vulnerabilities if they can be looked up
	$(BIN)/python -m tests.audit

format: $(DEV)  ## let ruff rewrite the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:  ## remove .venv and caches
	rm -rf .venv build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch, the one large download, comes first and alone: the other packages are then resolved against its pinned build.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "dape needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>/dev/null || echo missing)." >&2; \
	  echo "Name another interpreter: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@echo "Setting up .venv (the first time this downloads torch; minutes)"
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -c constraints.txt torch
	$(BIN)/python -m pip install -q -c constraints.txt -e .
	@touch $@

$(DEV): $(READY)
	@echo "Installing what tests and tools need (once; minutes)"
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[dev]"
	@touch $@

$(DOCS): $(DEV)
	$(BIN)/python -m pip install -q -c constraints.txt -e ".[docs]"
	@touch $@
