# Two commands to know: `make demo` and `make test`. Both need Python 3.11 or newer, and nothing else.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed

.PHONY: demo test install lint lock proto bench soak clean

demo: $(INSTALLED)
	@$(BIN)/colony demo

# Most tests wait for a server most of the time: side by side they take half as long.
test: $(INSTALLED)
	@$(BIN)/python -m pytest -n auto --maxprocesses 4 --dist loadfile

install: $(INSTALLED)
	@:

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(INSTALLED)
	$(BIN)/python -m bench

# Takes a night. On a machine with network namespaces, as root, there is also bench.hosts.
soak: $(INSTALLED)
	$(BIN)/python -m bench.budget
	$(BIN)/python -m bench.race --tree rounds-classic
	$(BIN)/python -m bench.race --tree rounds-settle
	$(BIN)/python -m bench.memory
	$(BIN)/python -m bench.sessions --sessions 500 --questions 20
	$(BIN)/python -m bench.followers
	$(BIN)/python -m bench.followers --http
	$(BIN)/python -m bench.asks --asks 10000 --sessions 50
	$(BIN)/python -m bench.failover
	COLONY_SCHEDULES=1000 $(BIN)/python -m pytest --timeout 7200 tests/colonies/test_joins.py
	$(BIN)/python -m tests.simulator --seeds 5000
	$(BIN)/python -m tests.simulator --seeds 200 --mutations
	$(BIN)/python -m tests.simulator --agents --seeds 2000
	$(BIN)/python -m tests.simulator --agents --seeds 100 --mutations
	$(BIN)/python -m bench.storm --minutes 20
	$(BIN)/python -m bench.faults --rows '*/crash'
	$(BIN)/python -m bench.faults --trials 20
	$(BIN)/python -m bench.faults --agents --trials 20

# Needs uv. The lock names versions and hashes, never an index or a path of the machine it was made on.
lock:
	uv pip compile pyproject.toml --group dev --python-version 3.11 --universal --no-header \
	    --no-emit-index-url --no-emit-find-links --generate-hashes -o requirements.lock

# Needed only where colony/rpc/agents.proto has changed.
proto: $(INSTALLED)
	$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --grpc_python_out=. \
	    --plugin=$(BIN)/protoc-gen-mypy --mypy_out=. \
	    --plugin=$(BIN)/protoc-gen-mypy_grpc --mypy_grpc_out=. colony/rpc/agents.proto

clean:
	rm -rf $(VENV) dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The stamp makes a second run instant; a change of the lock or of the project installs again.
$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else \
	    "colony needs Python 3.11 or newer; try: make PYTHON=python3.12 test")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV)" >&2
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --require-hashes --requirement requirements.lock
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	    --no-deps --no-build-isolation --editable .
	@touch $@
