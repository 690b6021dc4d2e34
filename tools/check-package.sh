#!/bin/sh
# Build the wheel, install it with the pinned runtime only, and run it without this checkout.
set -eu
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
.venv/bin/python -m pip wheel --quiet --disable-pip-version-check --no-deps --no-build-isolation --wheel-dir "$work/dist" .
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --require-hashes --no-deps -r constraints/runtime.txt
"$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-deps "$work"/dist/*.whl
"$work/venv/bin/pip" check
cd "$work"
venv/bin/otel-gpu --version
venv/bin/otel-gpu once --source sim --format json >once.json
venv/bin/python -c 'import json; d = json.load(open("once.json")); assert len(d["gpus"]) > 0 and len(d["workloads"]) > 0'
venv/bin/python -c 'from otel_gpu.web.endpoints import static_routes as s; assert len(s()) > 9'
echo 'the wheel installs with the pinned runtime alone, and runs'
