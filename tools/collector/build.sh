#!/bin/sh
# Print the path of an OpenTelemetry Collector with the components in manifest.yaml; build it first if necessary.
#
#   build.sh          build it unless it exists
#   build.sh --find   never build
#
# Built once per manifest and kept outside the checkout, under ${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu. Needs Go and its
# modules; the first time takes minutes. OTEL_GPU_COLLECTOR names a binary to use instead. stdout has the path, nothing else.
set -eu
name=collector
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../built-once.sh"

if [ -n "${OTEL_GPU_COLLECTOR:-}" ]; then
    [ -f "$OTEL_GPU_COLLECTOR" ] && [ -x "$OTEL_GPU_COLLECTOR" ] ||
        die "OTEL_GPU_COLLECTOR=$OTEL_GPU_COLLECTOR is not a program"
    echo "$OTEL_GPU_COLLECTOR"
    exit
fi

manifest=$here/manifest.yaml
version=$(sed -n 's/^  version: //p' "$manifest")
binary=otelcol-$(sha256sum "$manifest" | cut -c 1-16)

build() {
    # TMPDIR: the builder leaves an empty directory there.
    export TMPDIR="$1" GOBIN="$1"
    cd "$1" &&
        go install "go.opentelemetry.io/collector/cmd/builder@v$version" &&
        ./builder --config "$manifest" --skip-strict-versioning=false &&
        mv out/otelcol made
}

if [ ! -x "$cache/$binary" ]; then
    [ "${1:-}" != --find ] || die 'not built yet; make collector'
    command -v go >/dev/null || die 'building it needs Go; or name a binary in OTEL_GPU_COLLECTOR'
    built_once "$binary" "v$version"
fi
echo "$cache/$binary"
