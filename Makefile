# Every target sets up what it needs; `make plan` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
DEV    := $(VENV)/.dev

.PHONY: plan test check format verify bench clean help

help:            ## list the targets
	@grep -E '^[a-z]+: .*##' $(MAKEFILE_LIST) | sed 's/:.*##/ -/'

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip

$(CORE): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@ $(CORE)

plan: $(CORE)    ## the main job on an embedded default
	$(BIN)/astra predict llama-3-8b --gpus h100:64 --tp 2 --pp 2 --global-batch 256 --seq-len 8192

check: $(DEV)    ## format, lint, strict types, quick tests: under a minute
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -m "not slow"

test: $(DEV)     ## everything CI runs that needs no framework
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2

format: $(DEV)   ## rewrite the code the way ruff likes it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:           ## remove what the targets made
	rm -rf $(VENV) .verify .mypy_cache .ruff_cache .hypothesis
