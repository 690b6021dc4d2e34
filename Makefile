# Targets for developers; `make help` lists them. They need Python 3.11+ with venv, a package index the first time, and a
# C compiler for tests.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps
# More workers than cores, because tests wait for child processes.
TEST_WORKERS ?= 4
RUN_ARGS ?=
ACCURACY_ARGS ?=
FUZZ_INPUTS ?= 10000
FUZZ_SEED ?= 1
FLEET_ARGS ?=
BENCH_ARGS ?=
WALK_ARGS ?=
SOAK_DAYS ?= 7
SOAK_SEED ?= 1
# With this variable, each of the hundreds of agents in tests would compile all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-real collector manifests dashboards pictures check fmt fuzz soak sbom accuracy bench bench-guard walk fleet proto lock clean compiler

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

run: $(VENV)/.runtime ## run the agent on this host's GPUs, or on a simulated host without GPUs
	@exec $(BIN)/otel-gpu run --source auto --exporters prometheus --view $(RUN_ARGS)

test: compiler $(VENV)/.dev ## run the tests (under three minutes; needs a C compiler)
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal --ignore tests/real -m "not real and not long"

test-long: compiler $(VENV)/.dev ## run the long tests: load, soak, kills, restarts of real agents
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "long and not real"

test-real: $(VENV)/.dev ## run the tests against real programs (root; skips missing programs with a reason)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m real

collector: ## build the OpenTelemetry Collector for tests (once; needs Go) and print its path
	@tools/collector/build.sh

manifests: ## build helm, kustomize and a strict reader of manifests for tests (once; needs Go)
	@tools/manifests/build.sh

dashboards: $(VENV)/.runtime ## generate the Grafana dashboards, and copy them and the Prometheus rules into the chart
	$(BIN)/python -m tools.dashboards

pictures: $(VENV)/.dev ## take the pictures of the page for the README, from the demo (needs Debian's chromium)
	$(BIN)/python -m tests.real.pictures docs/images

check: $(VENV)/.dev ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fmt: $(VENV)/.dev ## format the code and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/.dev ## run seeded random inputs through every parser (FUZZ_INPUTS=1000000 for a night, FUZZ_SEED=…)
	$(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED)

soak: $(VENV)/.dev ## simulate a week of churn, faults, restarts and outages in minutes; checks sums and memory (SOAK_DAYS=…)
	$(BIN)/python -m tests.soak --days $(SOAK_DAYS) --seed $(SOAK_SEED)

sbom: $(VENV)/.dev ## write the bill of materials with versions, licences and hashes (CycloneDX) to dist/
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)} \
	  $(BIN)/python tools/sbom.py dist/sbom.cdx.json

accuracy: $(VENV)/.dev ## compare attribution and other formulas with the truth of a simulated host
	$(BIN)/python -m bench.accuracy $(or $(ACCURACY_ARGS),--page docs/accuracy.md)

bench: compiler $(VENV)/.dev ## measure the agent beside nvitop-exporter on the same worlds (eleven minutes; BENCH_ARGS="--world M" for less)
	$(BIN)/python -m bench.cost $(BENCH_ARGS)

bench-guard: compiler $(VENV)/.dev ## compare counts of a cycle, a scrape and a push with the record: calls, files, bytes, memory (seconds)
	$(BIN)/python -m bench.cost.guard

walk: $(VENV)/.runtime ## count the functions that ten steady seconds of the demo run, by package (half a minute)
	@$(BIN)/python -m tools.walk $(WALK_ARGS)

fleet: $(VENV)/.dev ## send from hundreds of agents through two tiers of Collectors and kill a gateway (three minutes; needs Go)
	@tools/collector/build.sh >/dev/null
	$(BIN)/python -m bench.fleet $(FLEET_ARGS)

proto: ## generate the messages of CRI and pod-resources from their .proto files (needs a package index)
	PYTHON=$(PYTHON) tools/proto.sh

lock: $(VENV)/.dev ## resolve the dependencies and pin them in constraints/
	tools/lock.sh $(VENV)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

compiler:
	@command -v "$(CC)" >/dev/null || \
	  { echo 'the tests need a C compiler and "$(CC)" is none; on Debian and Ubuntu: apt install gcc libc6-dev; or: make CC=…' >&2; exit 1; }

# A stamp, not bin/python, which also exists after venv has failed half-way.
$(VENV)/.venv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'otel-gpu needs Python 3.11 or later; name one with: make PYTHON=/path/to/python3.11 …' >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo 'otel-gpu needs venv and ensurepip, which $(PYTHON) lacks; on Debian and Ubuntu: apt install python3-venv' >&2; exit 1; }
	@echo 'setting up $(VENV) (once)…' >&2
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.runtime: constraints/runtime.txt constraints/build.txt pyproject.toml | $(VENV)/.venv
	@echo 'installing what the agent needs (once)…' >&2
	@$(PIP_INSTALL) -r constraints/runtime.txt -r constraints/build.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(VENV)/.runtime constraints/dev.txt
	@echo 'installing what the tests need (once)…' >&2
	@$(PIP_INSTALL) -r constraints/dev.txt
	@touch $@
