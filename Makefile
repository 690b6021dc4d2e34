# Everything a developer does here; `make help` lists it. Needs Python 3.11+ with venv, a package index for the first
# time, and for tests a C compiler.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps
# Tests share two cores with whatever else runs; more workers than cores hide the waiting on child processes.
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
# Where it is set, each of the hundreds of agents that tests start would be compiled anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help run test test-long test-real collector manifests dashboards pictures check fmt fuzz soak sbom accuracy bench bench-guard walk fleet proto lock clean compiler

help: ## list what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "  make %-12s %s\n", $$1, $$2}'

run: $(VENV)/.runtime ## run the agent: on this host's GPUs, or on a simulated host if there are none
	@exec $(BIN)/otel-gpu run --source auto --exporters prometheus --view $(RUN_ARGS)

test: compiler $(VENV)/.dev ## run the tests (under three minutes; needs a C compiler)
	$(BIN)/python -m pytest -q -n $(TEST_WORKERS) --dist worksteal --ignore tests/real -m "not real and not long"

test-long: compiler $(VENV)/.dev ## run the tests that take long: load, soak, kills, restarts of real agents
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m "long and not real"

test-real: $(VENV)/.dev ## run the tests against real programs (root; parts that are missing are skipped with a reason)
	$(BIN)/python -m pytest -q -n 2 --dist worksteal -m real

collector: ## build the OpenTelemetry Collector that tests run (once; needs Go), and print its path
	@tools/collector/build.sh

manifests: ## build helm, kustomize and a strict reader of manifests that tests run (once; needs Go)
	@tools/manifests/build.sh

dashboards: $(VENV)/.runtime ## write Grafana's dashboards, and copy them and Prometheus's rules into the chart
	$(BIN)/python -m tools.dashboards

pictures: $(VENV)/.dev ## take the README's pictures of the page anew, from the demo (needs Debian's chromium)
	$(BIN)/python -m tests.real.pictures docs/images

check: $(VENV)/.dev ## lint, types, import directions
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

fmt: $(VENV)/.dev ## format the code and mend what can be mended
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

fuzz: $(VENV)/.dev ## seeded random inputs through every parser (FUZZ_INPUTS=1000000 for a night, FUZZ_SEED=…)
	$(BIN)/python -m tests.fuzz --inputs $(FUZZ_INPUTS) --seed $(FUZZ_SEED)

soak: $(VENV)/.dev ## a simulated week of churn, faults, restarts and outages in minutes: all adds up, nothing grows (SOAK_DAYS=…)
	$(BIN)/python -m tests.soak --days $(SOAK_DAYS) --seed $(SOAK_SEED)

sbom: $(VENV)/.dev ## write what the agent is made of, with versions, licences and hashes (CycloneDX), into dist/
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null)} \
	  $(BIN)/python tools/sbom.py dist/sbom.cdx.json

accuracy: $(VENV)/.dev ## our split beside the formulas in use today, against a simulated host's truth
	$(BIN)/python -m bench.accuracy $(or $(ACCURACY_ARGS),--page docs/accuracy.md)

bench: compiler $(VENV)/.dev ## cost of the agent beside nvitop-exporter on the same worlds (eleven minutes; BENCH_ARGS="--world M" for less)
	$(BIN)/python -m bench.cost $(BENCH_ARGS)

bench-guard: compiler $(VENV)/.dev ## counts of a cycle, a scrape and a push beside the record: calls, files, bytes, memory (seconds)
	$(BIN)/python -m bench.cost.guard

walk: $(VENV)/.runtime ## how many functions ten steady seconds of the demo run, by package (half a minute)
	@$(BIN)/python -m tools.walk $(WALK_ARGS)

fleet: $(VENV)/.dev ## hundreds of agents through two tiers of Collectors, a gateway killed meanwhile (three minutes; needs Go)
	@tools/collector/build.sh >/dev/null
	$(BIN)/python -m bench.fleet $(FLEET_ARGS)

proto: ## make the messages of CRI and pod-resources anew from their .proto files (needs a package index)
	PYTHON=$(PYTHON) tools/proto.sh

lock: $(VENV)/.dev ## resolve the dependencies anew and pin them in constraints/
	tools/lock.sh $(VENV)

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

compiler:
	@command -v "$(CC)" >/dev/null || \
	  { echo 'the tests need a C compiler and "$(CC)" is none; on Debian and Ubuntu: apt install gcc libc6-dev; or: make CC=…' >&2; exit 1; }

# A stamp, not bin/python: that one is there as well when venv has failed half-way.
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
