# Two commands matter: `make serve` and `make test`. Each does its own set-up and is quick when that is done.

# What `make serve` passes on; set them on the command line: make serve PORT=8000 MODEL=path/to/model.safetensors
PORT = 65530
HOST =
MODEL =
DEVICE =
SLOTS =
TOKENIZER =
API_KEY =

# A Python 3.11 or newer; empty = the first that is found.
PYTHON =

# The second Vulkan driver that `make test-swiftshader` takes; Debian's chromium has it.
SWIFTSHADER = /usr/lib/chromium/vk_swiftshader_icd.json
TESTS = tests/gpu tests/shaders tests/reference tests/versions tests/model tests/forward tests/backward tests/operations tests/engine

BIN = .venv/bin
NODE_MODULES = tools/tint/node_modules tools/web/node_modules
SETUP = PYTHON='$(PYTHON)' tools/setup/setup.sh
SERVE_OPTIONS = --port '$(PORT)' \
	$(if $(HOST),--host '$(HOST)') \
	$(if $(SLOTS),--slots '$(SLOTS)') \
	$(if $(TOKENIZER),--tokenizer '$(TOKENIZER)')

# Images of containers set this. Then each of the many processes that the tests start compiles all modules anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL = help
.PHONY: help setup setup-dev serve test test-swiftshader test-validation gpu-compilers lint format types types-windows unit bench docs demo-model demo-retrieval demo-model-check clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-18s%s\n", $$1, $$2 }' Makefile
	@echo
	@echo 'make serve takes PORT, HOST, MODEL, DEVICE, SLOTS, TOKENIZER and API_KEY: make serve PORT=8000 MODEL=model.safetensors'

setup: ## Make .venv ready to serve
	@$(SETUP)

setup-dev:
	@$(SETUP) --dev

serve: ## Serve a model over HTTP (the one that comes with the project, unless MODEL is set)
	@device='$(DEVICE)'; \
	if [ -n "$$device" ]; then $(SETUP); else device=$$($(SETUP) --device preferred); fi && \
	exec $(if $(API_KEY),env RNN_ENGINE_API_KEY='$(API_KEY)') $(BIN)/rnn-engine serve $(if $(MODEL),'$(MODEL)') --device "$$device" $(SERVE_OPTIONS)

test: setup-dev ## Check everything that must hold: lint, types, tests
	@$(SETUP) --dev --device required >/dev/null
	@$(SETUP) --dev --programs & programs=$$!; \
	$(MAKE) --no-print-directory --jobs --output-sync=target SETUP=: $(NODE_MODULES) lint types types-windows; status=$$?; \
	wait $$programs && [ $$status = 0 ] && \
	$(MAKE) --no-print-directory SETUP=: unit

lint: setup-dev ## Check style and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: setup-dev ## Format the code, and repair style where that is safe
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: setup-dev ## Check types
	$(BIN)/mypy

types-windows: setup-dev ## Check types as they are on Windows
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 rnn_engine server shaders states

# One process more than there are cores, since a quarter of the time tests wait. Each takes up to 3 GB.
WORKERS = $$(cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 4 ? cores + 1 : 4)))

# Folders with tests of kernels in which eight lanes share what they load. Mesa's software driver has as many lanes
# unless it is told to have two, for which it compiles a kernel in a third of the time.
EIGHT_LANES = tests/backward tests/forward tests/versions

# Ray gives its processes seconds to start, so its tests run when the others have ended.
unit: setup-dev $(NODE_MODULES) ## Run the tests
	LP_NATIVE_VECTOR_WIDTH=64 $(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal --ignore tests/fleet \
		-m 'not eight_lanes'
	$(BIN)/pytest --numprocesses $(WORKERS) --dist worksteal -m eight_lanes $(EIGHT_LANES)
	$(BIN)/pytest --over fleet tests/fleet $(OVER_FLEET)

# Tests of the server that run over a fleet, too; all pass over one: pytest --over fleet tests/server
OVER_FLEET = $(patsubst %,tests/server/test_%.py,cancellations completions errors full_queue real_engine states streams)

gpu-compilers: setup-dev build/mesa ## Ask the compilers of NVIDIA's, Qualcomm's and Apple's GPUs about the kernels
	MESA_FOLDER=build/mesa $(BIN)/pytest tests/shaders/test_gpu_compilers.py -k unpacked

build/mesa:
	@mkdir -p build
	tools/gpu_compilers/mesa.sh $@.unfinished && mv $@.unfinished $@

test-swiftshader: setup-dev ## Run the tests of the model (TESTS) on a second Vulkan driver
	@test -e '$(SWIFTSHADER)' || { echo "no $(SWIFTSHADER); Debian's package chromium brings it, or set SWIFTSHADER"; exit 1; }
	VK_DRIVER_FILES='$(SWIFTSHADER)' $(BIN)/pytest $(TESTS)

# Debian's package vulkan-validationlayers has the layer. Captured by pytest, its messages would not be seen.
test-validation: setup-dev ## Run the tests of the model (TESTS) under Vulkan's validation layer
	@mkdir -p build && rm -f build/validation.txt
	VK_INSTANCE_LAYERS=VK_LAYER_KHRONOS_validation VK_LAYER_SETTINGS_PATH=tools/validation/vk_layer_settings.txt \
	$(BIN)/pytest $(TESTS)
	@test -e build/validation.txt || { echo "the layer was not loaded"; exit 1; }
	@! grep . build/validation.txt

# A second WGSL compiler, which the tests use where it is there.
tools/tint/node_modules: tools/tint/package-lock.json
	@if command -v npm >/dev/null; then \
	cd tools/tint && npm ci --ignore-scripts --no-audit --no-fund || echo 'the shaders are not compiled with Tint: npm failed'; \
	fi

# TypeScript's compiler, which checks the types of the web page's modules, and pyright for those of the Python API.
tools/web/node_modules: tools/web/package-lock.json
	@if command -v npm >/dev/null; then \
	cd tools/web && npm ci --ignore-scripts --no-audit --no-fund || echo 'the types of the web page are not checked, nor those of Python with pyright: npm failed'; \
	fi

bench: setup-dev ## Measure speed on this machine (tools/bench)
	$(BIN)/python -m tools.bench

docs: setup-dev ## Bring docs/metrics.md and docs/compatibility.md up to date with the code
	$(BIN)/python -m tools.metrics
	$(BIN)/python -m tools.compatibility

demo-model: setup-dev ## Train the model that comes with the project from nothing (needs hours, or a GPU)
	tools/demo_model/build.sh

demo-retrieval: setup-dev ## Train the embedding model and reranker that come with the project from nothing (minutes)
	tools/demo_retrieval/build.sh

demo-model-check: setup-dev ## Check that training and export still work (minutes; needs torch)
	tools/demo_model/check.sh

clean: ## Delete all that the other targets made, the virtual environment too
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist *.egg-info tools/tint/node_modules tools/web/node_modules
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
