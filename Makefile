# Every target makes .venv by itself; Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

.PHONY: demo test check bench docs clean

# torch first and by its exact version; where pip finds no CPU build of it, this brings the CUDA build and its gigabytes:
# make the environment by hand then, with PyTorch's CPU wheel in it, and touch the target below.
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[$(1)]"
	@touch $@
endef

$(VENV)/installed-all: pyproject.toml constraints.txt
	$(call install,all)

$(VENV)/installed-dev: pyproject.toml constraints.txt
	$(call install,all$(comma)dev)

$(VENV)/installed-bench: pyproject.toml constraints.txt
	$(call install,all$(comma)dev$(comma)bench)

comma := ,

demo: $(VENV)/installed-all
	$(BIN)/bertkit demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

bench: $(VENV)/installed-bench
	@for script in benchmarks/*.py; do case $$script in */_*) ;; *) $(BIN)/python $$script --quick --json ;; esac; done

docs: $(VENV)/installed-dev
	$(BIN)/python docs/make_cli.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
