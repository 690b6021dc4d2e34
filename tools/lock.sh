#!/bin/sh
# Resolve the dependencies and pin them in constraints/, with hashes and without addresses.
# Three files for three uses: hosts (runtime), package builds (build), developers (dev).
set -eu
cd "$(dirname "$0")/.."
venv=${1:?usage: tools/lock.sh VENV}
"$venv/bin/pip" install --quiet uv
compile() {
    out=constraints/$1.txt
    shift
    "$venv/bin/uv" pip compile --quiet --universal --upgrade --generate-hashes --no-header --no-annotate \
        --python-version 3.11 --output-file "$out" "$@"
}
compile dev pyproject.toml --extra dev
compile runtime pyproject.toml --constraint constraints/dev.txt
sed -n 's/^build = \["\(.*\)"\]$/\1/p' pyproject.toml | compile build - --constraint constraints/dev.txt
