# Works on a fresh clone with nothing but make and Python >= 3.11: the targets create .venv and install what they need.
# Arguments pass through: make demo ARGS="--quick", make test ARGS="-k recovery", make bench ARGS="--only E1,E2".

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip install --quiet --disable-pip-version-check
ARGS ?=

# Name another interpreter with PYTHON=...; it is used when .venv is created.
PYTHON ?=
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
USABLE := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

PACKAGES := eventbus serdes outbox dlq schema_registry spark_sinks

.PHONY: demo test test-core test-full bench docs lint lint-style lint-format lint-types lint-floors lint-docs format clean help
.DEFAULT_GOAL := help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /  make \1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 20

demo: $(VENV)/.installed-demo ## the whole story on 336,776 real flights (ARGS="--quick": a slice, no Spark)
	$(BIN)/python examples/demo $(ARGS)

# The tiers are described in tests/tiers.py. Workers: tests/parallel.py (none if ARGS selects tests or looks into them: -k,
# a path, -s, --pdb).
PYTEST := $(BIN)/python -m pytest -n auto --dist loadgroup

test: $(VENV)/.installed-dev ## the core and system tiers of the tests
	$(PYTEST) -m "not slow" $(ARGS)

test-core: $(VENV)/.installed-test ## the core tier: a minute, with the base dependencies alone
	$(PYTEST) -m core $(ARGS)

test-full: $(VENV)/.installed-dev ## every test, the slow tier too
	$(PYTEST) --hypothesis-profile=random $(ARGS)

bench: $(VENV)/.installed-bench ## the figures beside their peers (ARGS="--quick", "--only E1,E2", "--markdown docs/internals/reports/benchmarks.md")
	$(BIN)/python benchmarks/bench.py $(ARGS)

# Without --quiet, which would hide the warnings from --strict.
BUILD_DOCS := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs: $(VENV)/.installed-docs ## the documentation as a site with search, in build/docs; a warning is an error
	$(BUILD_DOCS)

lint: lint-style lint-format lint-types lint-floors lint-docs ## ruff, pyright strict on the packages, the floors, the docs

lint-style: $(VENV)/.installed-dev
	$(BIN)/ruff check .

lint-format: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .

lint-types: $(VENV)/.installed-dev
	$(BIN)/pyright $(PACKAGES)

lint-floors: $(VENV)/.installed-dev
	$(BIN)/lint-imports --no-cache --no-logo

lint-docs: $(VENV)/.installed-dev
	$(BUILD_DOCS)

format: $(VENV)/.installed-dev ## let ruff rewrite what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove everything these targets created
	rm -rf $(VENV) build dist demo-data spark-warehouse .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs run again only when pyproject.toml changes; code changes need none, the install is an editable one.
$(VENV)/.installed-test: pyproject.toml | $(BIN)/python
	@echo "installing what the core tests need (once)"
	@$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/.installed-dev: pyproject.toml | $(BIN)/python
	@echo "installing what the tests need (once; Spark is the largest part, about 500 MB)"
	@$(PIP) --editable ".[dev]"
	@touch $(VENV)/.installed-dev $(VENV)/.installed-demo $(VENV)/.installed-test $(VENV)/.installed-docs

$(VENV)/.installed-demo: pyproject.toml | $(BIN)/python
	@echo "installing what the demo needs (once; Spark is the largest part, about 500 MB)"
	@$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.installed-docs: pyproject.toml | $(BIN)/python
	@echo "installing what builds the documentation (once)"
	@$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/.installed-bench: pyproject.toml | $(BIN)/python
	@echo "installing what the benchmarks need (once)"
	@$(PIP) --editable ".[bench]"
	@touch $@ $(VENV)/.installed-dev $(VENV)/.installed-demo $(VENV)/.installed-test $(VENV)/.installed-docs

$(BIN)/python:
	@for candidate in $(if $(PYTHON),"$(PYTHON)",$(CANDIDATES)); do \
	    if "$$candidate" -c "$(USABLE)" >/dev/null 2>&1; then \
	        echo "creating $(VENV) with $$candidate ($$("$$candidate" --version))"; \
	        exec "$$candidate" -m venv $(VENV); \
	    fi; \
	done; \
	echo "make: no usable Python >= 3.11 found (tried: $(if $(PYTHON),$(PYTHON),$(CANDIDATES)))." >&2; \
	echo "      Install one (on Debian and Ubuntu: apt install python3 python3-venv), or name it: make PYTHON=/path/to/python3.12 ..." >&2; \
	exit 1
