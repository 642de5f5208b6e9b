# Needs Python 3.11 and make. Each target installs what it needs into .venv, once, at the versions
# of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install -qq --disable-pip-version-check -c constraints.txt
TORCH := $(shell grep '^torch==' constraints.txt)
EXTRAS := test lint docs bench dev

.PHONY: install demo test test-faults lint docs wheel-check bench scaling hooks clean
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
	$(BIN)/python -m pytest -n 2 --dist worksteal

# At length: 10,000 damaged files, a kill at every file operation, 200 runs in one process.
FAULTS := tests/fuzz tests/faults tests/test_ahead.py tests/test_cohort.py tests/test_ppo.py tests/test_faults.py tests/test_damage.py tests/test_exact.py tests/test_kill.py tests/workers tests/docs/test_page_commands.py

test-faults: $(VENV)/.test
	ISOBATCH_FUZZ=10000 ISOBATCH_KILL_STRIDE=1 ISOBATCH_KILLS=15 ISOBATCH_RUNS=200 ISOBATCH_SEEDS=10 \
		$(BIN)/python -m pytest -n 2 --dist worksteal -m "long or not long" $(FAULTS)

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

# The peers have an environment of their own, and CleanRL another: its scripts need old packages.
# torch first and alone, as above.
PEERS := .venv-peers
CLEANRL_VENV := .venv-cleanrl
PEERS_PIP := bin/pip install -qq --disable-pip-version-check

$(PEERS)/.done: benchmarks/peers/requirements.txt constraints.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/$(PEERS_PIP) $(TORCH)
	$(PEERS)/$(PEERS_PIP) -r benchmarks/peers/requirements.txt
	touch $@

$(CLEANRL_VENV)/.done: benchmarks/peers/requirements-cleanrl.txt constraints.txt
	$(PYTHON) -m venv $(CLEANRL_VENV)
	$(CLEANRL_VENV)/$(PEERS_PIP) $(TORCH)
	$(CLEANRL_VENV)/$(PEERS_PIP) -r benchmarks/peers/requirements-cleanrl.txt
	touch $@

# Hours on two cores; nothing else should run on the machine. make bench CLEANRL=../cleanrl takes
# CleanRL in, make bench BENCH="--cases cartpole-8x128" a part of it.
bench: $(VENV)/.core $(PEERS)/.done $(if $(CLEANRL),$(CLEANRL_VENV)/.done)
	$(BIN)/python -m benchmarks.peers.run $(if $(CLEANRL),--cleanrl $(CLEANRL)) \
		--out docs/results/peers.json $(BENCH)

# Isobatch alone: steps per second and memory against N, T, width and seeds.
scaling: $(VENV)/.bench
	$(BIN)/python -m benchmarks.scaling --out docs/results/scaling.json

# Lint at every commit.
hooks: $(VENV)/.dev
	$(BIN)/pre-commit install

clean:
	rm -rf $(VENV) $(PEERS) $(CLEANRL_VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis
