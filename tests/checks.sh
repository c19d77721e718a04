# Words of checks for a script that tries a cluster manager; sourced by it (slurm/run,
# cluster/real/run).
#
# Each check prints a line; the first that fails ends the script, which has `set -e`. The script has a
# folder $work, in which the last command's output is kept, and a function `explain`, which prints what
# may be the cause of a failure.
# shellcheck shell=bash

# failed WHAT COMMAND...: says so.
failed() {
    local what=$1
    shift
    echo "FAILED: $what: $*"
    cat "$work/out"
    explain 2>&1
    return 1
}

# until_true WHAT COMMAND...: waits for a command to succeed, at most two minutes.
until_true() {
    local what=$1 until=$((SECONDS + 120))
    shift
    while [ $SECONDS -lt $until ]; do
        if "$@" >"$work/out" 2>&1; then echo "ok: $what"; return 0; fi
        sleep 0.2
    done
    failed "$what" "waited in vain:" "$@"
}

# check WHAT COMMAND...: a command succeeds.
check() {
    local what=$1
    shift
    if "$@" >"$work/out" 2>&1; then echo "ok: $what"; return 0; fi
    failed "$what" "$@"
}

# refused WHAT TEXT COMMAND...: a command fails, and says TEXT.
refused() {
    local what=$1 text=$2
    shift 2
    if "$@" >"$work/out" 2>&1; then failed "$what: it was not refused" "$@"; return 1; fi
    grep -qF -- "$text" "$work/out" && { echo "ok: $what"; return 0; }
    failed "$what: not a word of '$text'" "$@"
}

# is EXPECTED COMMAND...: a command prints EXPECTED.
is() {
    local expected=$1 got
    shift
    got=$("$@") || return 1
    [ "$got" = "$expected" ] && return 0
    printf 'expected:\n%s\ngot:\n%s\n' "$expected" "$got"
    return 1
}
