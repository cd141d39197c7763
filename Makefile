# Developer interface: demo | test | check | test-slow | test-slurm | bench | docs.
# Each target does its own set-up: a fresh machine needs only make and Python 3.11-3.13.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.PHONY: help setup lock model demo test check test-slow test-slurm test-gpu bench bench-long docs clean

# The first interpreter that really runs and has a version we support; only .venv's set-up uses it.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& echo $$p && break; done)
BIN := .venv/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
STAMP := .venv/.installed
WORKERS ?= 2
ARGS ?=
SHORT := planning tokenization generation candidates invariance scaling
LONG := coverage reachability attack_lines completions defenses continuous gcg_vs_nanogcg

export HF_HUB_DISABLE_TELEMETRY := 1
export TOKENIZERS_PARALLELISM := false

help:
	@sed -n '2,3p' Makefile
	@echo "demo        fetch the small model, run direct and random_search, judge, report"
	@echo "test        the default test tier (no network beyond set-up, no GPU)"
	@echo "check       ruff, ruff format, mypy, import-linter, rule tests, codespell"
	@echo "test-slow   tests marked slow"
	@echo "test-slurm  as root: the tests on a throw-away Slurm cluster"
	@echo "bench       the benchmarks that take minutes each"
	@echo "bench-long  those that take up to hours, at their small sizes"
	@echo "docs        check the documents: links, names, examples"

setup: $(STAMP)

# torch first and by exact version, so that no other package pulls in a different build of it.
$(STAMP): requirements.lock pyproject.toml judgezoo/pyproject.toml
	@echo "setting up .venv (a few minutes; 1.5 GB)"
	test -x $(BIN)/python || "$(PYTHON)" -m venv .venv
	$(PIP) install "$$(grep -i '^torch==' requirements.lock)"
	$(PIP) install -r requirements.lock -e . -e ./judgezoo
	touch $@

# Rewrites the lock from the present .venv; review the difference before committing it.
lock:
	{ sed -n '/^#/p' requirements.lock; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -i '^torch==' | sed 's/+.*//'; \
	  $(BIN)/python -m pip freeze --exclude-editable | grep -v -i -E '^(torch|adversariallm|judgezoo)(==| @)'; \
	} > requirements.lock.new
	mv requirements.lock.new requirements.lock

model: $(STAMP)
	@echo "looking for smollm2-135m in the cache (the first time: 93 MB, about half a minute)"
	TQDM_DISABLE=1 $(BIN)/python -m adversariallm.models.fetch smollm2-135m

demo: $(STAMP) model
	$(BIN)/python examples/demo.py $(ARGS)

test: $(STAMP) model
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup $(ARGS)

test-slow: $(STAMP) model
	OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup -m "slow and not network and not slurm and not gpu" --timeout 1800 $(ARGS)

test-gpu: $(STAMP)
	$(BIN)/python -m pytest -m gpu $(ARGS)

test-slurm: $(STAMP) model
	@if [ "$$(id -u)" != 0 ]; then echo "make test-slurm needs root: it starts slurmd on this machine"; exit 2; fi
	$(BIN)/python -m pytest -m slurm --timeout 300 $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell
	$(BIN)/python -m pytest -q tests/unit/test_rules.py

bench: $(STAMP) model
	for script in $(SHORT); do echo "== $$script"; \
		$(BIN)/python "benchmarks/$$script.py" $(ARGS) || missed=1; done; exit $${missed:-0}

# Hours on two cores; each keeps what is finished and goes on where it stopped.
bench-long: $(STAMP) model
	for script in $(LONG); do echo "== $$script"; \
		$(BIN)/python "benchmarks/$$script.py" $(ARGS) || missed=1; done; exit $${missed:-0}

docs: $(STAMP)
	$(BIN)/python -m pytest -q tests/unit/test_docs.py tests/unit/cli/test_documents.py tests/unit/datasets/test_docs.py

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache htmlcov .coverage
