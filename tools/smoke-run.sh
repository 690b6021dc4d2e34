#!/bin/sh
# Test `make run` for a new user: it must print numbers and the addresses, respond there, and end on SIGTERM.
set -eu
cd "$(dirname "$0")/.."
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# Not through make, so that the signal reaches the agent and make reports no error.
make --no-print-directory -n run RUN_ARGS='--listen 127.0.0.1:0' >"$out/recipe"
sh "$out/recipe" >"$out/stdout" 2>"$out/stderr" &
pid=$!
trap 'kill "$pid" 2>/dev/null || true; rm -rf "$out"' EXIT
tries=0
until grep -q 'GiB' "$out/stdout" && grep -q 'http://' "$out/stderr"; do
    tries=$((tries + 1))
    if [ "$tries" -gt 300 ] || ! kill -0 "$pid" 2>/dev/null; then
        echo 'make run showed no numbers within 30 s:' >&2
        cat "$out/stdout" "$out/stderr" >&2
        exit 1
    fi
    sleep 0.1
done
url=$(sed -n 's|^ *\(http://[^ ]*\)/api/attribution .*|\1|p' "$out/stderr")
for path in / /metrics /healthz /readyz /api/attribution; do
    .venv/bin/python - "$url$path" <<'PYTHON'
import sys, urllib.request
with urllib.request.urlopen(sys.argv[1], timeout=10) as answer:
    assert answer.status == 200, answer.status
    assert answer.read(), "empty"
PYTHON
done
if grep -q 'exports to' "$out/stderr"; then
    echo 'make run pushes somewhere, and a new user has no Collector:' >&2
    cat "$out/stderr" >&2
    exit 1
fi
kill -TERM "$pid"
wait "$pid"
trap 'rm -rf "$out"' EXIT
cat "$out/stderr" "$out/stdout"
echo 'make run: numbers on screen, page, metrics, health and JSON answered, nothing pushed, ended on SIGTERM with 0'
