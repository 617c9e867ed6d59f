# Two commands: `make lab` opens the course, `make test` runs every test. Both set up .venv first, once.

.DEFAULT_GOAL := help
.PHONY: help lab test test-labs test-all test-gpu check lint format build map animation badges validation site site-test lock dist setup same-python clean

PYTHON ?=
PIP_ARGS ?=
ARGS ?=
JOBS ?= 2
export PYTHON PIP_ARGS

VENV := $(or $(LABLIB_VENV),.venv)
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp-setup

help:  ## say what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' Makefile

lab: $(STAMP)  ## open JupyterLab on the first lab; ARGS="--no-browser --port 8899" are passed on
	@$(BIN)/lab build
	@$(BIN)/lab open 00_first_steps $(ARGS)

# A process computes with one thread: as many as cores each would wait for one another. And hundreds of them are started:
# without bytecode on the disk each would compile all of lablib, half a second, whatever the environment says.
test test-labs test-all: export OMP_NUM_THREADS := $(or $(OMP_NUM_THREADS),1)
test test-labs test-all: export PYTHONDONTWRITEBYTECODE :=

test: $(STAMP)  ## run the tests in JOBS=2 processes; ARGS="-k name" are passed on to pytest, "-n 0" is one process
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=10 $(ARGS)

test-labs: $(STAMP)  ## run every lab, the proofs of its checks, and JupyterLab in a browser; ARGS="-k 09": those of lab 09
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=10 --labs $(ARGS)

test-all: $(STAMP)  ## the same with every case: each lab at each setting, the larger sizes; the workflow runs it nightly
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal --durations=10 --all $(ARGS)

test-gpu: $(STAMP)  ## with a GPU: its tests, doctor, calibration, labs on NCCL, and a report; ARGS=--dry-run only says so
	@$(BIN)/python tools/gpu_report.py $(ARGS)

check: lint test test-labs  ## everything that must hold before a commit: format, lint, types, tests

lint: $(STAMP)  ## format, lint and types: all three, whatever the first one says
	@failed=0; \
	{ $(BIN)/ruff format --check --quiet --output-format concise . && \
	$(BIN)/ruff format --check --quiet --output-format concise --line-length 96 labs/masters/*/lab.py; } || { echo "\`make format\` puts these files into their format."; failed=1; }; \
	$(BIN)/ruff check --quiet . || failed=1; \
	PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --pythonpath $(BIN)/python || failed=1; \
	$(BIN)/lint-imports --no-logo --no-cache >/dev/null || { $(BIN)/lint-imports --no-logo --no-cache; failed=1; }; \
	exit $$failed

format: $(STAMP)  ## put the code into its format
	@$(BIN)/ruff format .
	@$(BIN)/ruff format --line-length 96 labs/masters/*/lab.py
	@$(BIN)/ruff check --fix .

build: $(STAMP)  ## generate the notebooks of labs/ from their masters
	@$(BIN)/lab build $(ARGS)

map: $(STAMP)  ## write docs/map.md, the list of files, from their docstrings
	@$(BIN)/python tools/map.py

animation: $(STAMP)  ## record the README's animation anew, from a widget in JupyterLab
	@$(BIN)/python tools/animation.py

badges: $(STAMP)  ## write the READMEs' badges from the addresses in [project.urls]
	@$(BIN)/python tools/badges.py

validation: $(STAMP)  ## put published runs to the planner; write its evidence and docs/validation.md; ARGS=--cross-validate: minutes
	@$(BIN)/python tools/measured_runs.py
	@$(BIN)/lab validate --page docs/validation.md --readme README.md $(ARGS)

# Sphinx and what it brings stay out of the course's environment.
SITE := $(abspath $(VENV))/site
site: $(SITE)/.stamp  ## build the whole site in public/; ARGS="--notebooks FOLDER" keeps the executed labs for the next time
	@PYTHONPATH=$(SITE) $(BIN)/lab site --out public $(ARGS)

$(SITE)/.stamp: $(STAMP) requirements-site.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target $(SITE) -r requirements-site.lock
	@touch $@

site-test: $(STAMP)  ## look at the site in public/ with a browser; ARGS are passed on to pytest
	@$(BIN)/python -m pytest -n 0 --labs tests/browser/test_whole_site.py --site public $(ARGS)

lock:  ## pin every package anew in the requirements*.lock; ARGS=--upgrade takes the newest
	@sh tools/lock.sh $(ARGS)

dist:  ## build the sdist and the wheel into dist/, check them, and try them in empty environments
	@sh tools/dist.sh

setup: $(STAMP)  ## make .venv; PYTHON=python3.12 names a Python
	@echo "$(VENV) is ready, with $$($(BIN)/python --version). make lab opens the course; $(BIN)/lab doctor says what works here."

$(STAMP): requirements.lock pyproject.toml | same-python
	@sh tools/setup.sh $@

same-python:
	@sh tools/setup.sh $@

clean:  ## remove .venv and everything built; corpora, runs and notebooks stay
	rm -rf $(VENV) artifacts build dist public *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
