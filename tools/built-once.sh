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
    teller=
    trap 'kill $teller 2>/dev/null || :; rm -rf "$work"' EXIT
    trap 'exit 1' HUP INT TERM
    echo "$name: building $2 (once; this takes minutes)…" >&2
    tell "$work/log" 9>&- &
    teller=$!
    (build "$work") >"$work/log" 2>&1 || {
        cat "$work/log" >&2
        die 'the build failed'
    }
    # In one step: nobody ever sees half of it.
    mv "$work/made" "$target"
}

tell() {
    trap 'kill "$nap" 2>/dev/null; exit' TERM
    waited_s=0
    while :; do
        sleep "$tell_every_s" >/dev/null 2>&1 &
        nap=$!
        wait "$nap"
        waited_s=$((waited_s + tell_every_s))
        echo "$name: $waited_s s: $(tail -n 1 "$1" 2>/dev/null | tr -d '\r' | cut -c 1-100)" >&2
    done
}
