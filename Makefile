# Needs Python 3.11 and make. Each target installs what it needs into .venv, once, at the versions
# of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)
EXTRAS := test lint docs bench dev

.PHONY: install demo test test-faults lint docs wheel-check bench hooks clean
.NOTPARALLEL:  # one pip at a time

install: $(VENV)/.core

# torch first and alone: a pinned version takes the CPU build where an open range would not.
$(VENV)/.core: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	$(PIP) -e .
	touch $@

$(EXTRAS:%=$(VENV)/.%): $(VENV)/.%: $(VENV)/.core
	$(PIP) -e .[$*]
	touch $@

demo: install
	$(BIN)/isobatch train CartPole-v1 --algo ppo-ewma --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: $(VENV)/.test
	$(BIN)/python -m pytest -n 2

# At length: 10,000 damaged files, a kill at every file operation, 200 runs in one process.
FAULTS := tests/fuzz tests/faults tests/test_faults.py tests/test_damage.py tests/test_exact.py tests/test_kill.py

test-faults: $(VENV)/.test
	ISOBATCH_FUZZ=10000 ISOBATCH_KILL_STRIDE=1 ISOBATCH_KILLS=15 ISOBATCH_RUNS=200 ISOBATCH_SEEDS=10 \
		$(BIN)/python -m pytest -n 2 -m "long or not long" $(FAULTS)

# pyright reads the tests too, and what they import.
lint: $(VENV)/.test $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict --site-dir site

# The wheel as a user has it: in an environment of its own, away from this folder.
wheel-check:
	PYTHON=$(PYTHON) .ci/wheel-check

# About half an hour on two cores; nothing else should run on the machine.
bench: $(VENV)/.bench
	$(BIN)/python benchmarks/speed.py --out docs/results/speed.json

# Lint at every commit.
hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
