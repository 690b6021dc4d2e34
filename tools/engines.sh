#!/bin/sh
# Unpack Debian's Docker, containerd and Podman with their dependencies for the tests, once. They are not installed, because
# the packages would start services and add users. Prints errors only.
# Then: engines=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu/engines
#       PATH=$engines/usr/bin:$engines/usr/sbin:$engines/bin:$PATH
set -eu
programs='docker.io containerd runc tini busybox-static podman conmon golang-github-containers-common'
libraries='libassuan0 libdevmapper1.02.1 libglib2.0-0 libgpg-error0 libgpgme11 libseccomp2 libsubid4'

cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu
mkdir -p "$cache"
exec 9>"$cache/engines.lock"
flock 9
made=$(cksum <"$0")
if [ -f "$cache/engines/.made" ] && [ "$(cat "$cache/engines/.made")" = "$made" ]; then
    exit 0
fi

work=$(mktemp -d "$cache/unpack.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; }
quietly apt-get update
# shellcheck disable=SC2086  # lists of words
quietly apt-get download -o APT::Sandbox::User=root $programs $libraries patchelf
for package in ./*.deb; do
    case $package in
        ./patchelf_*) dpkg -x "$package" tools ;;
        *) dpkg -x "$package" engines ;;
    esac
done
# Set RPATH in programs that miss a library. Not LD_LIBRARY_PATH: Podman starts conmon, and conmon starts Podman at the end of
# a container, with little of their environment.
triplet=$(basename "$(dirname engines/usr/lib/*/libsubid.so.4)")
beside="\$ORIGIN/../lib/$triplet:\$ORIGIN/../../lib/$triplet"
for program in engines/usr/bin/* engines/usr/sbin/*; do
    if ldd "$program" 2>/dev/null | grep -q 'not found'; then
        # RPATH, not RUNPATH, because it also applies to the libraries of libraries.
        quietly tools/usr/bin/patchelf --force-rpath --set-rpath "$beside" "$program"
    fi
    if ldd "$program" 2>/dev/null | grep 'not found' >&2; then
        echo "$program: needs a library that $0 does not get" >&2
        exit 1
    fi
done
printf '%s' "$made" >engines/.made
if [ -e "$cache/engines" ]; then
    mv "$cache/engines" old
fi
mv engines "$cache/engines"
