# Sourced by scripts that build programs for tests. Programs are built once, outside the checkout, and appear complete.
#
#   name=…            the prefix of messages
#   build DIRECTORY   a function that builds DIRECTORY/made; its output goes into a log
#
# shellcheck shell=sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu
tell_every_s=15

die() {
    echo "$name: $*" >&2
    exit 1
}

# built_once TARGET WHAT: build TARGET in the cache unless it exists. During the build it prints the elapsed time and the last
# line of the log at intervals.
built_once() {
    target=$cache/$1
    [ ! -e "$target" ] || return 0
    mkdir -p "$cache"
    # A second build waits and then finds the target.
    exec 9>"$target.lock"
    if command -v flock >/dev/null; then flock 9; fi
    [ ! -e "$target" ] || return 0
    work=$(mktemp -d "$cache/build.XXXXXX")
    trap 'rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "$name: building $2 (once; this takes minutes)…" >&2
    if command -v flock >/dev/null; then (exec 9>&- && tell) & fi
    (build "$work") >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 'the build failed'
    }
    # In one step, so that the target is complete when it appears.
    mv "$work/made" "$target"
    exec 9>&-
}

# Waits for the lock of the build, which is released when the build ends in any way.
tell() {
    waited_s=0
    until flock -w "$tell_every_s" "$target.lock" true || [ ! -d "$work" ]; do
        waited_s=$((waited_s + tell_every_s))
        echo "$name: $waited_s s: $(tail -n 1 "$work/log" 2>/dev/null | tr -d '\r' | cut -c 1-100)" >&2
    done
}
