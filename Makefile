# Everything runs in a virtual environment inside the project folder, made when first needed.
#   AIRFLOW=3.1 | 3.2 | 3.3 | 3.4    the Airflow to use; 3.4 is its last beta
#   PYTHON=/path/to/python           the Python to make the environment with
AIRFLOW ?= 3.3
PYTHON ?=

ifeq ($(AIRFLOW),3.3)
VENV := .venv
else
VENV := .venv-$(AIRFLOW)
endif
# By relative paths only: there may be a space in the project's own.
RUN := $(VENV)/bin/python -m
STAMP := $(VENV)/.made-by-make
KEY := $(CURDIR) $(PYTHON)

# Without .pyc files Airflow starts twice as slowly.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup test test-crash coverage test-stores test-matrix bench-import bench-start bench-upload bench-batch bench-wait bench-page model mutants fuzz soak upgrade system-test docs lint lint-style lint-types lint-layers hooks demo ui constraints dist sbom clean FORCE

help: ## List the targets
	@awk -F ': .*## ' '/^[a-z -]+: .*## / { printf "make %-12s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "AIRFLOW=3.1, 3.2, 3.3 (default) or 3.4 (its last beta) chooses the Airflow, PYTHON=… the Python; give them each time."

setup: $(STAMP) ## Make the virtual environment (all others do so when needed)
	@echo "$(VENV) is ready: Airflow $(AIRFLOW) on $$($(VENV)/bin/python --version)"

test: ARGS ?= -n logical --dist worksteal
test: $(STAMP) ## Run the unit and integration tests (about 2 minutes); ARGS="…" goes to pytest
	@$(RUN) pytest $(ARGS)

test-crash: $(STAMP) $(VENV)/azurite ## Run the tests that start a whole Airflow, most of them to kill its tasks (about 4 minutes)
	@$(RUN) pytest tests/crash --ignore tests/crash/test_comparison.py $(ARGS)

# On one Airflow, for some code is for the others. Tracing Airflow's own code takes a third as long again, so of the
# integration tests there are only those of what no unit test can run.
coverage: $(STAMP) ## Check the coverage of the unit tests, with more examples for each property
	@$(RUN) pytest -n logical --dist worksteal --hypothesis-profile=thorough --cov --cov-report=term tests/unit

# Each Airflow and each Python at least once, that of `make test` aside; "lowest" has the lower bounds of pyproject.toml.
# What takes longest begins first. Two run side by side: while one waits, or makes its environment, the other works.
CELLS ?= 3.4-py3.13 lowest-py3.11 3.2-py3.12 3.1-py3.13
test-matrix: ## Run the tests, or some, on every supported Airflow and Python; CELLS="3.2-py3.12 …" for some
	@$(MAKE) --no-print-directory --keep-going --jobs=2 --output-sync=target $(CELLS:%=cell-%)

# tests/smoke.txt tells whether it works at all: imports, local files, the connection and its form, and each example DAG, but
# for what needs the task state store of Airflow 3.3. In one process, which makes Airflow's database once.
SMOKE := -n 0 -m "not since_3_3" @tests/smoke.txt
cell-%: TESTS = $(SMOKE)
cell-3.4-%: TESTS = -n 2 --dist worksteal tests/unit tests/integration
# And what hardly depends on Airflow, but on the libraries.
cell-lowest-%: TESTS = $(SMOKE) tests/unit/client tests/unit/testing/_server
cell-%: PYTHON_VERSION = $(lastword $(subst -py, ,$*))
cell-%: FORCE
	@echo "=== Airflow $(firstword $(subst -py, ,$*)), Python $(PYTHON_VERSION)"
	@PYENV_VERSION=$(PYTHON_VERSION) $(MAKE) test VENV=.venv-$* AIRFLOW=$(firstword $(subst -py, ,$*)) \
		PYTHON=python$(PYTHON_VERSION) ARGS='$(TESTS) -q -p no:cacheprovider --hypothesis-profile=matrix'

test-stores: $(VENV)/stores $(VENV)/azurite ## Test uploads from emulators of Google Cloud Storage and, with npm, Azure
	@$(RUN) pytest tests/unit/hooks/files/test_other_stores.py $(ARGS)

# The emulator of Azure. Without npm, the tests that need it are skipped.
$(VENV)/azurite: | $(STAMP)
	@if command -v npm >/dev/null; then npm install --silent --no-audit --no-fund --prefix $@ azurite@3.37; fi

# Import, start and upload take 1, 4 and 4 minutes, batch and wait 8, page 1.
bench-import bench-start bench-upload bench-batch bench-wait bench-page: bench-%: $(VENV)/bench ## Measure one thing, for benchmarks/README.md (1 to 8 minutes); ARGS=--small only tries it
	@PYTHONPATH=scripts:tests/support $(VENV)/bin/python benchmarks/$*.py $(ARGS)

model: ARGS ?= model
model: $(STAMP) ## Explore all states of the record's model (about 3 minutes); ARGS=by-hand for the large ones, ARGS="2 1 0 0 wait" for one
	@$(VENV)/bin/python tests/model/explore.py $(ARGS)

mutants: $(VENV)/mutants ## Change the code that the promise rests on, and see the unit tests notice; ONLY="client/redaction.py …" for some
	@$(VENV)/bin/python scripts/mutants.py $(ONLY)

fuzz: export FUZZ_SECONDS ?= 60
fuzz: export FUZZ_SEED ?= $(shell date +%s)
fuzz: $(STAMP) ## Make up what happens to a task for a minute of the processor's time; FUZZ_SEED=… to repeat it
	@$(RUN) pytest -q -n 2 --dist worksteal tests/unit/test_world_machine.py $(ARGS)

soak: ARGS ?= --instances 150 --seconds 900
soak: $(STAMP) ## Kill and fault 150 task instances at random, and count the runs (about 5 minutes); ARGS="--instances 300 …" for more
	@PYTHONPATH=scripts:tests/support $(VENV)/bin/python tests/crash/soak.py $(ARGS)

# Airflow runs in an environment of its own, in which the package is replaced.
upgrade: $(STAMP) ## Replace the package under tasks at work, and back again (about 4 minutes); ARGS="--before COMMIT" by one of before 1.0.0
	@$(MAKE) --no-print-directory setup VENV=$(VENV)-upgrade
	@PYTHONPATH=scripts:tests/support $(VENV)/bin/python -u tests/crash/upgrade.py $(ARGS)

system-test: $(STAMP) ## Test a whole deployment: PostgreSQL, Redis, Celery workers, Chromium (about 7 minutes); PICTURES=1 renews docs/images
	@sh tests/system/prepare.sh $(VENV) .venv-system
	@.venv-system/bin/python -m pytest --confcutdir tests/system tests/system $(ARGS)

docs: $(VENV)/docs ## Build the documentation into docs/_build/html, with warnings as errors, and check the site
	@$(VENV)/bin/python scripts/snippets.py
	@rm -rf docs/_build/html
	@$(RUN) sphinx -q -E -W --keep-going -b html -c docs -d docs/_build/doctrees . docs/_build/html
	@$(RUN) pytest -q tests/docs
	@echo "The first page is docs/_build/html/index.html"

lint: lint-style lint-types lint-layers ## Check style, types and the layers of the package

lint-style: $(STAMP)
	@$(RUN) ruff check
	@$(RUN) ruff format --check

lint-types: $(STAMP)
	@$(RUN) mypy
	@$(RUN) mypy scripts tests/support tests/typing
	@$(RUN) mypy --explicit-package-bases tests/unit tests/integration tests/docs
	@$(RUN) mypy tests/model
	@$(RUN) mypy tests/crash
	@$(RUN) mypy tests/system

lint-layers: $(STAMP)
	@$(VENV)/bin/lint-imports

hooks: $(STAMP) ## Have git run the linters before each commit
	@$(RUN) pre_commit validate-config
	@$(RUN) pre_commit install

demo: $(STAMP) ## Run example DAGs in Airflow against a local service
	@$(VENV)/bin/python -u scripts/demo.py

ui: $(STAMP) ## Open Airflow's UI with the examples and a local service; UI_PORT=8081, SERVICE_PORT=8090, or the next free ones, are the defaults
	@exec $(VENV)/bin/python -u scripts/ui.py

constraints: $(STAMP) ## Renew constraints/
	@sh scripts/constraints.sh $(VENV)

dist: $(VENV)/dist ## Build the wheel and the source distribution into dist/, and check them
	@sh scripts/dist.sh $(VENV)

sbom: $(VENV)/dist ## Write sbom.cdx.json: the packages that the wheel is installed with, in CycloneDX
	@sh scripts/sbom.sh $(VENV) $(AIRFLOW)

clean: ## Remove all that make has made
	rm -rf .venv .venv-* .airflow .mutants dist sbom.cdx.json .coverage .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis docs/_build

# What a few targets need beside the rest: groups of pyproject.toml, those of the first line with constraints of their own.
$(VENV)/mutants $(VENV)/docs $(VENV)/dist: PINS = $(@F)
$(VENV)/stores $(VENV)/bench: PINS = airflow-$(AIRFLOW)
$(VENV)/mutants $(VENV)/docs $(VENV)/dist $(VENV)/stores $(VENV)/bench: $(STAMP) $(wildcard constraints/*.txt)
	@sh scripts/uv.sh $(VENV) pip install --quiet --python $(VENV)/bin/python --constraints constraints/$(PINS).txt --group $(@F)
	@touch $@

ifneq ($(shell cat $(STAMP) 2>/dev/null),$(KEY))
$(STAMP): FORCE
endif
$(STAMP): pyproject.toml $(wildcard constraints/airflow-$(AIRFLOW).txt)
	@sh scripts/setup.sh "$(VENV)" "$(AIRFLOW)" "$@" "$(KEY)" "$(PYTHON)"
