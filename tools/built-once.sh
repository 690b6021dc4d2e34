# Sourced by what builds programs for tests: built once, kept outside the checkout, and never seen by half.
#
#   name=…            whose words these are
#   build DIRECTORY   a function that builds; what it makes is DIRECTORY/made, and what it says goes into a log
#
# shellcheck shell=sh
cache=${XDG_CACHE_HOME:-$HOME/.cache}/otel-gpu
tell_every_s=15

die() {
    echo "$name: $*" >&2
    exit 1
}

# built_once TARGET WHAT: build TARGET in the cache unless it is there. While that lasts it says now and then for how long
# it has, and the last line of the log.
built_once() {
    target=$cache/$1
    [ ! -e "$target" ] || return 0
    mkdir -p "$cache"
    # Whoever comes second waits, and then finds it built.
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
    # In one step: nobody ever sees half of it.
    mv "$work/made" "$target"
    exec 9>&-
}

# Waits for the lock of whoever builds, which is free when that one has ended, however it did.
tell() {
    waited_s=0
    until flock -w "$tell_every_s" "$target.lock" true || [ ! -d "$work" ]; do
        waited_s=$((waited_s + tell_every_s))
        echo "$name: $waited_s s: $(tail -n 1 "$work/log" 2>/dev/null | tr -d '\r' | cut -c 1-100)" >&2
    done
}
