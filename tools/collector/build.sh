#!/bin/sh
# Print the path of an OpenTelemetry Collector made of the components in manifest.yaml; build it first if need be.
#
#   build.sh          build it unless it was built before
#   build.sh --find   never build
#
# Built once per manifest and kept outside the checkout, under ${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu. Needs Go and its
# modules; the first time takes minutes. OTEL_GPU_COLLECTOR names a binary to use instead. stdout has the path, nothing else.
set -eu
die() {
    echo "collector: $*" >&2
    exit 1
}

if [ -n "${OTEL_GPU_COLLECTOR:-}" ]; then
    [ -f "$OTEL_GPU_COLLECTOR" ] && [ -x "$OTEL_GPU_COLLECTOR" ] ||
        die "OTEL_GPU_COLLECTOR=$OTEL_GPU_COLLECTOR is not a program"
    echo "$OTEL_GPU_COLLECTOR"
    exit
fi

manifest=$(cd "$(dirname "$0")" && pwd)/manifest.yaml
hash=$(sha256sum "$manifest" | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu
binary=$cache/otelcol-$hash

if [ ! -x "$binary" ]; then
    [ "${1:-}" != --find ] || die 'not built yet; make collector'
    command -v go >/dev/null || die 'building it needs Go; or name a binary in OTEL_GPU_COLLECTOR'
    mkdir -p "$cache"
    # Whoever comes second waits, and then finds it built.
    exec 9>"$cache/otelcol-$hash.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if [ ! -x "$binary" ]; then
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    version=$(sed -n 's/^  version: //p' "$manifest")
    echo "collector: building v$version (once; this takes minutes)…" >&2
    # TMPDIR: the builder leaves an empty directory there.
    (
        export TMPDIR="$work" GOBIN="$work"
        cd "$work" &&
            go install "go.opentelemetry.io/collector/cmd/builder@v$version" &&
            ./builder --config "$manifest" --skip-strict-versioning=false
    ) >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 'the build failed'
    }
    # In one step: nobody ever sees half of it.
    mv "$work/out/otelcol" "$binary"
fi
echo "$binary"
