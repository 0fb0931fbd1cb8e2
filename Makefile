# make demo: set up .venv and run a sweep and a mitigation on an embedded model
# make test: set up .venv, then format, lint, types and all tests, as CI does
# make fast: the same with the fast tests alone, about two minutes on two cores
# make docs: build the documentation into outputs/site/
# Needs Python 3.11 or newer on Linux and nothing else; PYTHON=... chooses one.
PYTHON ?= python3
BIN := .venv/bin
# torch's CPU build comes from the configured package index if that has it, else from PyTorch's own
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu

.PHONY: demo test fast lint docs bench clean

demo: .venv/.ready
	$(BIN)/seesaw sweep demo
	$(BIN)/seesaw mitigate demo

test: .venv/.ready lint
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

fast: .venv/.ready lint
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow"

lint: .venv/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: .venv/.ready
	$(BIN)/mkdocs build --strict

bench: .venv/.ready
	for bench in validity questions sweep overhead engine fidelity swap mitigation scaling campaign; do $(BIN)/python -m benchmarks.$$bench || exit 1; done

.venv/.ready: requirements-cpu.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "seesaw needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0])'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --no-deps -r requirements-cpu.lock \
	  || $(BIN)/pip install --quiet --no-deps -r requirements-cpu.lock --extra-index-url $(TORCH_INDEX)
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	touch $@

clean:
	rm -rf .venv
