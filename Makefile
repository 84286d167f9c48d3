# Every target sets up what it needs; `make plan` and `make test` work on a fresh machine.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CORE   := $(VENV)/.core
DEV    := $(VENV)/.dev

# Without bytecode (some images forbid it) pytest rewrites every assertion anew, 7 s in each worker.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: plan test soak check format web verify practice bench clean help
.DEFAULT_GOAL := help

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
	$(BIN)/astra plan llama-3-70b --gpus h100:512 --global-batch 1024 --seq-len 4096

check: $(DEV)    ## format, lint, strict types, quick tests: under a minute
	@echo "Under a minute on two cores: format, lint, types, then quick tests."
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 -m "not slow and not soak"

test: $(DEV)     ## everything CI runs that needs no framework: about 5 minutes
	@echo "About 5 minutes on two cores: format, lint, types, then all tests but the soak."
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not soak"

soak: $(DEV)     ## what takes longer than CI may: promises over many random questions
	$(BIN)/python -m pytest -n 2 --dist worksteal -m soak

format: $(DEV)   ## rewrite the code the way ruff likes it
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

web/node_modules: web/package-lock.json
	cd web && npm ci --silent --no-audit --no-fund
	@touch $@

web: web/node_modules  ## build the page of `astra serve` (needs Node; its result is committed)
	cd web && node build.mjs

# Checks against the frameworks' own code, in an environment of their own.
VERIFY   := .verify
MEGATRON := megatron-core==0.19.2
BRIDGE   := megatron-bridge==0.6.2
FLAGSCALE := flag-scale==0.8.0
SKY      := skypilot==0.14.1
# Kubernetes' and JobSet's schemas, and what SkyPilot imports to read a task.
CLUSTERS := kubernetes-validate==1.37.0 kubeflow-trainer-api==2.3.0 aiosqlite==0.22.1 \
  alembic==1.20.1 bcrypt==4.0.1 cachetools==8.0.0 casbin==1.43.0 colorama==0.4.6 \
  cryptography==50.0.2 fastapi==0.162.7 greenlet==3.5.6 ijson==3.6.0 jsonschema==4.26.0 \
  orjson==3.13.0 pandas==3.1.1 paramiko==5.1.0 passlib==1.7.4 prettytable==3.18.0 \
  prometheus_client==0.26.0 psycopg2-binary==2.9.13 python-multipart==0.0.33 \
  sqlalchemy==2.1.8 sqlalchemy_adapter==1.9.0
WHEELS   := megatron bridge flagscale sky
empty    :=
PATHS    := $(subst $(empty) ,:,$(addprefix $(CURDIR)/$(VERIFY)/,$(WHEELS)))
$(VERIFY)/.ready: pyproject.toml Makefile
	$(PYTHON) -m venv $(VERIFY)/venv
	$(VERIFY)/venv/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(VERIFY)/venv/bin/python -m pip install --quiet --disable-pip-version-check \
	  --editable '.[verify]' $(CLUSTERS)
	rm -rf $(VERIFY)/wheels $(addprefix $(VERIFY)/,$(WHEELS))
	$(VERIFY)/venv/bin/python -m pip download --quiet --disable-pip-version-check --no-deps \
	  --python-version 3.12 --only-binary=:all: --dest $(VERIFY)/wheels \
	  '$(MEGATRON)' '$(BRIDGE)' '$(FLAGSCALE)' '$(SKY)'
	$(VERIFY)/venv/bin/python -m zipfile -e $(VERIFY)/wheels/megatron_core*.whl $(VERIFY)/megatron
	$(VERIFY)/venv/bin/python -m zipfile -e $(VERIFY)/wheels/megatron_bridge*.whl $(VERIFY)/bridge
	$(VERIFY)/venv/bin/python -m zipfile -e $(VERIFY)/wheels/flag*.whl $(VERIFY)/flagscale
	$(VERIFY)/venv/bin/python -m zipfile -e $(VERIFY)/wheels/skypilot*.whl $(VERIFY)/sky
	@touch $@

# A browser for the page: Debian's, where there is none and it may be installed; else its tests say so.
.PHONY: browser screenshot
browser:
	@command -v chromium >/dev/null || [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || \
	  { apt-get -qq update && DEBIAN_FRONTEND=noninteractive \
	    apt-get -qq install -y --no-install-recommends chromium >/dev/null; }

verify: $(VERIFY)/.ready browser $(if $(shell command -v npm),web/node_modules)  ## our rules, counts and schedules against the frameworks themselves
	ASTRA_VERIFY=1 PYTHONPATH=$(PATHS) $(VERIFY)/venv/bin/python -m pytest -n 2 --dist loadfile tests/verify

screenshot: $(VERIFY)/.ready browser  ## the page with an answer, into docs/page.png
	PYTHONPATH=$(CURDIR) $(VERIFY)/venv/bin/python -m tools.screenshot

practice: $(VERIFY)/.ready  ## published layouts against ours, into docs/reports/practice.md: 15 minutes
	PYTHONPATH=$(PATHS):$(CURDIR) $(VERIFY)/venv/bin/python -m tools.practice

bench: $(CORE)   ## how fast: ratios, not promises
	$(BIN)/python benchmarks/rules.py
	$(BIN)/python benchmarks/prices.py
	$(BIN)/python benchmarks/search.py
	$(BIN)/python benchmarks/money.py

clean:           ## remove what the targets made
	rm -rf $(VENV) web/node_modules .verify .mypy_cache .ruff_cache .hypothesis
