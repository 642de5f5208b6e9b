# Needs Python 3.11 and make; everything else is installed into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: install demo test lint bench clean

install: $(VENV)/.installed

# torch first and alone: a pinned version takes the CPU build where an open range would not.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	$(PIP) -e .[test]
	touch $@

demo: install
	$(BIN)/isobatch train CartPole-v1 --algo ppo-ewma --out runs/demo-$$(date +%Y%m%d-%H%M%S)

test: install
	$(BIN)/python -m pytest -n 2

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# About half an hour on two cores; nothing else should run on the machine.
bench: install
	$(PIP) -e .[bench]
	$(BIN)/python benchmarks/speed.py --out docs/results/speed.json

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .hypothesis
