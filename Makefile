# Every target does its own setup: a machine only needs Python 3.11+, make and git.
.DEFAULT_GOAL := help
SHELL := /bin/sh
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TESTS ?= tests runtime operator
PYTEST_ARGS ?=
# Tests wait for more than half of their time.
WORKERS ?= 5
# A new environment has no compiled modules. Unless they are written, every process of the tests compiles all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  \033[36m%-17s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: install
install: $(READY) ## Create the environment with the locked dependencies
	@echo "Installed into $(VENV). Go on with 'make demo', or '. $(BIN)/activate' and 'millrace --help'"

$(READY): requirements-dev.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(None if (3, 11) <= sys.version_info < (3, 15) else f"Millrace needs Python 3.11 to 3.14; {sys.executable} is {sys.version.split()[0]}. Set PYTHON=/path/to/python3.11")'
	@echo "Installing the locked dependencies into $(VENV) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@awk '/^uv==/ {uv = 1} uv; !/\\$$/ {uv = 0}' requirements-dev.lock > $(VENV)/uv.lock
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.lock
	@$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements-dev.lock # also removes what is not locked
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $(READY)

PYTEST = $(BIN)/pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: test
test: lint types layers ## Lint, check types and layers, run the tests that need no cluster (real Kafka, RocksDB and Spark)
	$(PYTEST) -m 'not thorough' --record build/test.json $(PYTEST_ARGS) $(TESTS)
	@$(BIN)/python -m tests.quarantine run

.PHONY: test-all
test-all: lint types layers ## Also run the slow variants of tests that `make test` runs
	$(PYTEST) $(PYTEST_ARGS) $(TESTS)
	@$(BIN)/python -m tests.quarantine run

.PHONY: all
all: test-all e2e-all ## Everything: before a release

.PHONY: budget
budget: $(READY) ## Compare what the last `make test` and `make e2e` have cost with their limits: processes, processor time
	@$(BIN)/python -m tests.budget

.PHONY: budget-refresh
budget-refresh: $(READY) ## Accept what these have cost: it decides in which order the files of tests run
	@$(BIN)/python -m tests.budget --refresh

.PHONY: lint
lint: $(READY) ## Check style and formatting
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/python -m tests.quarantine

.PHONY: format
format: $(READY) ## Format the code and apply the safe fixes
	@$(BIN)/ruff check --fix-only --quiet .
	@$(BIN)/ruff format --quiet .

.PHONY: types
types: $(READY) ## Check types (mypy --strict)
	@$(BIN)/mypy

.PHONY: layers
layers: $(READY) ## Check that packages import only the layers below them, and that nothing is imported in a circle
	@$(BIN)/lint-imports --no-logo

.PHONY: demo
demo: $(READY) ## Count the words of Python's standard library with two exactly-once replicas
	@$(BIN)/python examples/wordcount/demo.py

.PHONY: crds
crds: $(READY) ## Generate crds/ and the chart's copy from the manifest models
	@for folder in crds charts/millrace-operator/files/crds; do $(BIN)/python -m millrace.manifest.crd $$folder; done

.PHONY: manifests
manifests: $(READY) ## Render charts/kustomize/ from the chart (builds helm if necessary)
	@$(BIN)/python -m e2e.manifests

.PHONY: docs
docs: $(READY) ## Generate the pages in docs/ that come from code and data, and build the site into build/site
	@for page in inventory dsl configuration streamsapp conditions cli; do $(BIN)/python -m tests.docs.$$page || exit 1; done
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file docs/site/mkdocs.yml
	@echo "Open build/site/index.html"

.PHONY: wheel
wheel: $(READY) ## Build the distribution millrace-streams into dist/
	@$(BIN)/pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir dist .
	@ls dist/*.whl

.PHONY: bench
bench: $(READY) ## Measure the engine's CPU per record
	@$(BIN)/python benchmarks/engine.py

.PHONY: bench-fetching
bench-fetching: $(READY) ## Measure how fast a backlog is fetched from a real broker
	@$(BIN)/python benchmarks/fetching.py

.PHONY: bench-failover
bench-failover: $(READY) ## Measure how soon a killed instance is replaced, beside Java (BENCH=--help for each of these)
	@$(BIN)/python -m benchmarks.failover $(BENCH)

.PHONY: bench-restoration
bench-restoration: $(READY) ## Measure how fast state is restored, beside Java
	@$(BIN)/python -m benchmarks.restoration $(BENCH)

.PHONY: bench-scaling
bench-scaling: $(READY) ## Measure and plot output while instances are added and removed, with 10 GB of state
	@$(BIN)/python -m benchmarks.scaling $(BENCH)

.PHONY: bench-backfill
bench-backfill: $(READY) ## Measure backfills in Spark beside the live engine
	@$(BIN)/python -m benchmarks.backfill $(BENCH)

.PHONY: bench-peers
bench-peers: $(READY) ## Measure speed, CPU and memory beside Java Kafka Streams and Quix Streams
	@$(BIN)/python -m benchmarks.peers $(BENCH)

.PHONY: bench-growth
bench-growth: $(READY) ## Measure how the cost of a record grows with partitions, keys, bytes and replicas
	@$(BIN)/python -m benchmarks.growth $(BENCH)

.PHONY: bench-profile
bench-profile: $(READY) ## Draw where the time goes in a word count and a restoration (docs/flame-*.svg)
	@$(BIN)/python -m benchmarks.profiling $(BENCH)

MINUTES ?= 4
.PHONY: soak
soak: $(READY) ## Inject faults for MINUTES=4 on real brokers, and check every record (SOAK_ARGS=--help)
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) $(SOAK_ARGS)

SEEDS ?= 1000
.PHONY: simulate
simulate: $(READY) ## Run SEEDS=1000 of many applications in a simulated cluster with faults (SIMULATE_ARGS=--help)
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(SIMULATE_ARGS)

LOCK = $(BIN)/uv pip compile --universal --python-version 3.11 --generate-hashes --no-header --no-emit-index-url --quiet

.PHONY: bench-operator
bench-operator: $(READY) ## Measure the operator with 200 StreamsApps on a real API server, or BENCH="--apps 1000 --pods 3"
	@$(BIN)/python -m e2e.bench_latency $(BENCH)

.PHONY: lock
lock: ## Update the locked dependencies of the checkout and the images
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@test -x $(BIN)/uv || $(BIN)/pip install --quiet uv
	@$(LOCK) pyproject.toml --extra operator --extra dev-kafka --extra schema-registry --extra aws --extra azure --extra backfill --group dev --output-file requirements-dev.lock
	@$(LOCK) pyproject.toml --extra schema-registry --constraint requirements-dev.lock --output-file requirements-runtime.lock
	@$(LOCK) pyproject.toml --extra schema-registry --extra backfill --extra java --constraint requirements-dev.lock --output-file requirements-backfill.lock
	@$(LOCK) pyproject.toml --extra operator --constraint requirements-dev.lock --output-file requirements-operator.lock
	@for cloud in aws azure; do $(LOCK) pyproject.toml --extra $$cloud --constraint requirements-dev.lock --output-file requirements-$$cloud.lock || exit 1; done
	@$(LOCK) --group build --constraint requirements-dev.lock --output-file requirements-build.lock
	@echo quixstreams | $(LOCK) - --output-file benchmarks/quix-requirements.txt
	@echo faust-streaming | $(LOCK) - --output-file benchmarks/faust-requirements.txt
	@echo py-spy | $(LOCK) - --output-file benchmarks/py-spy-requirements.txt

.PHONY: e2e
e2e: $(READY) ## Build and start a real Kubernetes, test there what only a cluster can show, take it down again (root, Debian, Go)
	@$(BIN)/python -m e2e $(E2E_ARGS)

.PHONY: e2e-all
e2e-all: $(READY) ## The same with all end-to-end tests
	@$(BIN)/python -m e2e --all $(E2E_ARGS)

MINORS ?= 1.30 1.37
MINOR_TESTS ?= e2e/test_smoke.py e2e/test_crds.py e2e/test_children.py e2e/test_install.py e2e/test_lifecycle.py
.PHONY: e2e-minors
e2e-minors: $(READY) ## Run some of the end-to-end tests on the oldest and the newest Kubernetes (MINORS="1.30 1.37")
	@for minor in $(MINORS); do E2E_KUBERNETES=$$minor $(BIN)/python -m e2e --all $(MINOR_TESTS) $(E2E_ARGS) || exit 1; done

.PHONY: clean
clean: ## Remove the environment and every cache in the checkout
	@rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage
