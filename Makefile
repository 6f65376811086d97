# Every target makes .venv by itself; Python 3.11 or newer and make are all that is needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)

.PHONY: demo test check bench docs site course lock sbom clean

# torch first and by its exact version, then everything else with its SHA-256 checked (requirements/). Where pip finds no
# CPU build of torch, this brings the CUDA build and its gigabytes: make the environment by hand then, with PyTorch's CPU
# wheel in it, and touch the target below.
define install
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --require-hashes --requirement requirements/$(1).txt
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@
endef

$(VENV)/installed-all: pyproject.toml requirements/all.txt
	$(call install,all)

$(VENV)/installed-dev: pyproject.toml requirements/dev.txt
	$(call install,dev)

$(VENV)/installed-bench: pyproject.toml requirements/bench.txt
	$(call install,bench)

demo: $(VENV)/installed-all
	$(BIN)/bertkit demo

test: $(VENV)/installed-dev
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: $(VENV)/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder -m "not slow"

bench: $(VENV)/installed-bench
	@for script in benchmarks/*.py; do case $$script in */_*) ;; *) $(BIN)/python $$script --quick --json ;; esac; done

docs: $(VENV)/installed-dev
	$(BIN)/python docs/make_cli.py
	$(BIN)/python docs/make_api.py

# The pages as a site in build/site, and the course run again: outputs, figures and notebooks.
site: $(VENV)/installed-dev
	$(BIN)/mkdocs build --strict

course: $(VENV)/installed-dev
	$(BIN)/python docs/make_course.py

# Needs uv; after a change of pyproject.toml or constraints.txt.
lock:
	$(PYTHON) requirements/lock.py

# A list of everything that is installed, with versions and licences, as CycloneDX JSON. Needs cyclonedx-bom.
sbom: $(VENV)/installed-all
	cyclonedx-py environment $(BIN)/python --output-reproducible --output-format JSON --output-file sbom.json

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
