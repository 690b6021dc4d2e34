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
name=manifests
helm=v3.22.0
kustomize=v5.8.1
here=$(cd "$(dirname "$0")" && pwd)
. "$here/../built-once.sh"

hash=$(cat "$here/build.sh" "$here/go.mod" "$here/go.sum" "$here/main.go" | sha256sum | cut -c 1-16)
programs=manifests-$hash

build() {
    export TMPDIR="$1" GOBIN="$1/made"
    cd "$here" && go install -trimpath -mod=readonly . &&
        go install -trimpath "sigs.k8s.io/kustomize/kustomize/v5@$kustomize" &&
        go install -trimpath "helm.sh/helm/v3/cmd/helm@$helm"
}

if [ ! -d "$cache/$programs" ]; then
    [ "${1:-}" != --find ] || die 'not built yet; tools/manifests/build.sh'
    command -v go >/dev/null || die 'building them needs Go'
    built_once "$programs" "helm $helm and kustomize $kustomize"
fi
echo "$cache/$programs"
