# Everything a person or CI does, each target safe to repeat. `make help` lists them.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PORT   ?= 30000
ARGS   ?=
TORCH  := torch==2.13.0
STAMP  := $(VENV)/.installed
DEV    := $(VENV)/.installed-dev
NATIVE := $(shell find native CMakeLists.txt -type f 2>/dev/null)

.PHONY: help serve chat doctor test slow check format native clean

help: ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

serve: $(STAMP) ## set up and run the server (PORT=30000, ARGS="...")
	@$(BIN)/tenure serve --port $(PORT) $(ARGS)

chat: $(STAMP) ## set up and chat in this terminal (ARGS="...")
	@$(BIN)/tenure chat $(ARGS)

doctor: $(STAMP) ## say what machine, model and backend were found
	@$(BIN)/tenure doctor $(ARGS)

test: $(DEV) ## set up and run the tests (ARGS="...")
	@$(BIN)/python -m pytest -m "not slow" -n logical --maxprocesses 4 --dist loadfile $(ARGS)

slow: $(DEV) ## run the tests that build the kernels again: sanitizers, other processors
	@$(BIN)/python -m pytest -m slow $(ARGS)

check: $(DEV) ## formatting, lint, types, import rules, sizes
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/basedpyright
	@PYTHONPATH=src $(BIN)/lint-imports --no-logo
	@$(BIN)/python scripts/check_sizes.py

format: $(DEV) ## apply formatting and safe lint fixes
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

native: $(STAMP) ## build the C++ kernels again
	@$(BIN)/pip install -q --no-deps -e .

clean: ## remove the environment and all build output
	rm -rf $(VENV) build dist

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit("Tenure needs Python 3.11 or newer; set PYTHON=..." if sys.version_info < (3, 11) else 0)'
	@echo "Creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# torch comes first and by version: a bare requirement may take a CUDA build of several GB.
$(STAMP): $(BIN)/python pyproject.toml $(NATIVE)
	@echo "Installing (about 1.1 GB the first time)"
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install -q $(TORCH)
	@$(BIN)/pip install -q -e .
	@touch $@

$(DEV): $(STAMP)
	@$(BIN)/pip install -q --group dev 2>/dev/null || { $(BIN)/pip install -q -U pip && $(BIN)/pip install -q --group dev; }
	@touch $@
