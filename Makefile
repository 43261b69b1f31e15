# Each target makes what it needs: `make demo` on a fresh checkout is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test check format bench compiled clean interpreter

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 make ...   another interpreter for $(VENV) (3.10 or later)"

demo: $(VENV)/.runtime ## start a scheduler on this machine and watch it meet deadlines
	$(BIN)/laxity demo

test: check $(VENV)/.kserve ## check, then every test, with coverage of the pure rooms
	$(BIN)/python -m pytest --cov -n 2 --dist loadfile

check: $(VENV)/.dev ## formatting, lint, types, and who may import whom
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## rewrite what `check` can mend by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## measure what the scheduler adds to a bare inference, beside other servers
	@mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.overhead --json benchmarks/results/overhead.json
	$(BIN)/python -m benchmarks.doors --json benchmarks/results/doors.json

# What is asked at every event; all of it also runs uncompiled, and says the same.
HOT := $(patsubst %,scheduler/core/%.py,availability checks commands conformal drift events latency \
         ledger policy queues requests scheduler targets) \
       $(patsubst %,policies/%.py,admission goodput outlook pace serving) replay/simulator.py

compiled: $(VENV)/.dev ## build/compiled: a copy whose scheduler is compiled; needs a C compiler
	rm -rf build/compiled && mkdir -p build/compiled
	tar -c --exclude __pycache__ benchmarks configs edge_agent policies replay scheduler workers \
	  | tar -x -C build/compiled
	printf '[mypy]\nexplicit_package_bases = True\nmypy_path = .\n' > build/compiled/mypy.ini
	cd build/compiled && ../../$(BIN)/mypyc --follow-imports=silent $(HOT)
	@echo "Use it as in: PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/laxity replay ..."

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist .coverage htmlcov .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# A PYTHON that was asked for by name must be the one that runs.
interpreter:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "laxity needs Python 3.10 or later; '$(PYTHON)' was not found." >&2; \
	  echo "Name another: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' 2>/dev/null || { \
	  echo "laxity needs Python 3.10 or later; '$(PYTHON)' says: $$($(PYTHON) -V 2>&1)" >&2; \
	  echo "Name another: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
ifneq ($(origin PYTHON),file)
	@[ ! -x $(BIN)/python ] || \
	  [ "$$($(PYTHON) -V)" = "$$($(BIN)/python -V)" ] || { \
	  echo "$(VENV) has $$($(BIN)/python -V), not $$($(PYTHON) -V): run 'make clean' first." >&2; \
	  exit 1; }
endif

$(VENV)/pyvenv.cfg: | interpreter
	$(PYTHON) -m venv $(VENV)

$(VENV)/.runtime: pyproject.toml $(VENV)/pyvenv.cfg
	@echo "Installing laxity into $(VENV); the first time this takes about a minute."
	@$(PIP) install --quiet --editable '.[cpu]'
	@touch $@

$(VENV)/.dev: pyproject.toml $(VENV)/.runtime
	@echo "Installing the tools of development into $(VENV)."
	@$(PIP) install --quiet --editable '.[dev]'
	@touch $@

# Its modules are compiled when they are imported: that is few of them, of very many.
$(VENV)/.kserve: examples/clients/kserve.txt $(VENV)/pyvenv.cfg
	@echo "Installing KServe's SDK, a client of the tests, into $(VENV)/kserve."
	@$(BIN)/python -m venv $(VENV)/kserve
	@$(VENV)/kserve/bin/python -m pip install --quiet --disable-pip-version-check --no-compile \
	  --requirement $<
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.runtime
	@echo "Installing the servers to compare with into $(VENV)."
	@$(PIP) install --quiet --editable '.[bench]'
	@touch $@
