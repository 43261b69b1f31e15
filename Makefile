# Each target makes what it needs: `make demo` on a fresh checkout is enough.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.NOTPARALLEL:
.PHONY: help demo test rewritten test-clouds check clouds format bench compiled lock clean interpreter

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 make ...   another interpreter for $(VENV) (3.10 or later)"

demo: $(VENV)/.runtime ## start a scheduler on this machine and watch it meet deadlines
	$(BIN)/laxity demo

# Hundreds of processes import the packages: they would compile them each time without bytecode.
test: export PYTHONDONTWRITEBYTECODE :=

# Coverage makes tests that play the core take two to five times as long: only these run with it.
PURE := tests/core tests/policies

test: rewritten check $(VENV)/.kserve ## check, then every test, with coverage for the pure rooms
	$(BIN)/python -m pytest --cov -n 2 $(PURE)
	$(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder $(addprefix --ignore=,$(PURE))

# Workers that start together would each rewrite all test files for pytest, 7 s of each's time on a
# fresh checkout. Collecting them does so once, beside `check`, which leaves processors idle.
rewritten: $(VENV)/.dev
	@$(BIN)/python -m pytest -qq --collect-only >/dev/null 2>&1 &

test-clouds: clouds $(VENV)/.dev ## the conformance suite of clouds, also against Triton and MLServer
	$(BIN)/python -m pytest tests/e2e/clouds

check: $(VENV)/.dev ## formatting, lint, types, and import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.dev ## fix what `check` can fix automatically
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(VENV)/.bench ## measure what the scheduler adds to a bare inference, compared with other servers
	@mkdir -p benchmarks/results
	$(BIN)/python -m benchmarks.overhead --json benchmarks/results/overhead.json
	$(BIN)/python -m benchmarks.tail --json benchmarks/results/tail.json
	$(BIN)/python -m benchmarks.doors --json benchmarks/results/doors.json

# Third-party servers, each with its own requirements. Triton's Python backend needs the python3 of
# Debian 12 or Ubuntu 22.04, with a shared libpython: SYSTEM_PYTHON names it.
SYSTEM_PYTHON ?= /usr/bin/python3
CLOUDS := build/clouds

clouds: $(CLOUDS)/triton/.made $(CLOUDS)/mlserver/.made ## environments of other servers, for test-clouds

$(CLOUDS)/triton/.made:
	$(SYSTEM_PYTHON) -m venv --clear $(CLOUDS)/triton
	$(CLOUDS)/triton/bin/pip install --quiet 'nvidia-pytriton==0.7.0' onnxruntime
	@touch $@

$(CLOUDS)/mlserver/.made: | interpreter
	$(PYTHON) -m venv --clear $(CLOUDS)/mlserver
	$(CLOUDS)/mlserver/bin/pip install --quiet 'mlserver==1.7.1' onnxruntime
	@touch $@

compiled: $(VENV)/pyvenv.cfg ## build/compiled: packages with a compiled scheduler; needs a C compiler
	rm -rf build/compiled
	LAXITY_COMPILED=1 $(PIP) install --quiet --no-deps --target build/compiled .
	ln -s ../../benchmarks build/compiled/benchmarks
	@echo "Use it as in: PYTHONPATH=$(CURDIR)/build/compiled $(BIN)/laxity replay ..."

lock: | interpreter ## pin the newest versions that fit in constraints.txt, for demo and test
	$(PYTHON) -m venv --clear build/lock
	build/lock/bin/pip install --quiet uv
	build/lock/bin/uv pip compile --quiet --universal --upgrade --python-version 3.10 --extra dev \
	  --no-annotate --custom-compile-command 'make lock' --output-file constraints.txt pyproject.toml

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist .coverage htmlcov .hypothesis
	rm -rf .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# If PYTHON was given explicitly, the existing virtual environment must have that version.
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

# The pip that comes with Python 3.13 or earlier takes twice as long for all that follows.
$(VENV)/pyvenv.cfg: | interpreter
	$(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet 'pip>=25'

$(VENV)/.runtime: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@echo "Installing laxity into $(VENV); the first time this takes about a minute."
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[cpu]'
	@touch $@

# pip compiles with one processor, which is as long as all else that it does; this takes them all.
$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/pyvenv.cfg
	@echo "Installing laxity and its development tools into $(VENV): a minute or two, the first time."
	@$(PIP) install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	@$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true  # as pip: some are for other versions
	@touch $(VENV)/.runtime $@

# --no-compile: only few of its very many modules are imported, and those compile on import.
$(VENV)/.kserve: examples/clients/kserve.txt $(VENV)/pyvenv.cfg
	@echo "Installing KServe's SDK, a client of the tests, into $(VENV)/kserve."
	@$(BIN)/python -m venv --without-pip $(VENV)/kserve
	@$(PIP) --python $(VENV)/kserve install --quiet --no-compile --requirement $<
	@touch $@

$(VENV)/.bench: pyproject.toml $(VENV)/.runtime
	@echo "Installing the servers to compare with into $(VENV)."
	@$(PIP) install --quiet --editable '.[bench]'
	@touch $@
