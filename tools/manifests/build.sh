#!/bin/sh
# Print the directory with helm, kustomize and manifests (main.go), which read what deploy/ ships; build them first if need
# be.
#
#   build.sh          build them unless they were built before
#   build.sh --find   never build
#
# Built once per version of this directory and kept outside the checkout, under ${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu.
# Needs Go and its modules; the first time takes minutes. stdout has the path, nothing else.
set -eu
helm=v3.22.0
kustomize=v5.8.1

die() {
    echo "manifests: $*" >&2
    exit 1
}

source=$(cd "$(dirname "$0")" && pwd)
hash=$(cat "$source/build.sh" "$source/go.mod" "$source/go.sum" "$source/main.go" | sha256sum | cut -c 1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu
programs=$cache/manifests-$hash

if [ ! -d "$programs" ]; then
    [ "${1:-}" != --find ] || die 'not built yet; tools/manifests/build.sh'
    command -v go >/dev/null || die 'building them needs Go'
    mkdir -p "$cache"
    # Whoever comes second waits, and then finds them built.
    exec 9>"$programs.lock"
    if command -v flock >/dev/null; then flock 9; fi
fi
if [ ! -d "$programs" ]; then
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "manifests: building helm $helm and kustomize $kustomize (once; this takes minutes)…" >&2
    (
        export TMPDIR="$work" GOBIN="$work/programs"
        cd "$source" && go install -trimpath -mod=readonly . &&
            go install -trimpath "sigs.k8s.io/kustomize/kustomize/v5@$kustomize" &&
            go install -trimpath "helm.sh/helm/v3/cmd/helm@$helm"
    ) >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 'the build failed'
    }
    # In one step: nobody ever sees half of them.
    mv "$work/programs" "$programs"
fi
echo "$programs"
