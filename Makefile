PYTHON ?= python3
UV     ?= uv
ARGS   ?=

VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help setup run test check bench format lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-7s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## install everything into .venv (PYTHON=python3.12 chooses the interpreter)

run: setup ## open the workbench on the starter model; without a terminal, train it headless
	@if [ -t 0 ] && [ -t 1 ]; then $(BIN)/ppo-workbench $(ARGS); else $(BIN)/ppo-workbench --no-ui $(ARGS); fi

test: setup ## run the tests, three at a time because some wait (ARGS="-k gae" runs matching ones, one at a time)
	$(BIN)/python -m pytest $(or $(ARGS),--numprocesses 3 --dist worksteal)

check: setup ## lint, formatting, types, import contracts, the picture of the imports, lines by package
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python docs/architecture.py --check
	$(BIN)/python docs/sizes.py

bench: setup ## measure one PPO iteration
	$(BIN)/python benchmarks/bench_iteration.py $(ARGS)

format: setup ## format the code and fix what ruff can
	$(BIN)/ruff check --fix-only
	$(BIN)/ruff format

lock: ## resolve requirements/lock.txt again (needs uv)
	@command -v $(UV) >/dev/null || { echo "$(UV) not found: install uv, or name it with UV=path"; exit 1; }
	$(UV) pip compile pyproject.toml --extra cpu --extra dev --extra tensorboard --extra verify --upgrade \
		--universal --python-version 3.11 --fork-strategy fewest --generate-hashes --no-annotate \
		--custom-compile-command "make lock" --output-file requirements/lock.txt --quiet

clean: ## remove .venv, build outputs and every cache
	rm -rf $(VENV) build dist .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# MLX compiles its CPU kernels with g++ at run time; on a Mac, Metal needs no compiler.
$(STAMP): requirements/lock.txt requirements/starter.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || \
		{ echo "$(PYTHON) not found: install Python 3.11 or newer, or name it with PYTHON=path"; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; v >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d, \
	ppo-workbench needs 3.11 or newer: name a newer one with PYTHON=python3.11" % v[:2])'
	@[ "$$(uname -s)" != Linux ] || command -v g++ >/dev/null || \
		{ echo "g++ not found, and MLX compiles its CPU kernels with it: install it (Debian: apt install g++)"; exit 1; }
	@echo "Installing into $(VENV): up to 560 MB to download, 1.8 GB on disk, a few minutes"
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv --clear $(VENV)
	@$(PIP) --require-hashes -r requirements/lock.txt
	@$(PIP) --require-hashes --no-deps -r requirements/starter.txt
	@$(PIP) --no-deps --no-build-isolation --editable .
	@touch $@
