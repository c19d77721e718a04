#!/usr/bin/env bash
# Runs the test programs of memcached against tailwater-kv, one after the other, and prints a line
# for each. docs/src/guide/kv.md says which are expected to fail and why.
#
#   MEMCACHED_SOURCE=memcached-1.6.18 apps/kv/tests/memcached-tests.sh [FILE.t...]
#
# The programs are in memcached's source package (`apt-get source memcached`), not in this project;
# they need perl and cc. KV=PROGRAM names another build; MEMCACHED_TESTS_LOG=DIR keeps what each
# program prints.
set -euo pipefail
source=${MEMCACHED_SOURCE:-}
[ -n "$source" ] || { echo "skipped: MEMCACHED_SOURCE does not name memcached's sources"; exit 0; }
source=$(realpath "$source")
root=$(realpath "$(dirname "$0")/../../..")
export KV=${KV:-$root/target/debug/tailwater-kv}
[ -x "$KV" ] || { echo "$KV does not exist: run cargo build -p tailwater-kv" >&2; exit 2; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=${MEMCACHED_TESTS_LOG:-$work/log}
mkdir -p "$log"
log=$(realpath "$log")
ln -s "$source/t" "$work/t"
cc -o "$work/timedrun" "$source/timedrun.c"
# What the programs start. They use Unix sockets if the help names that option, though it is refused.
cat >"$work/memcached-debug" <<'WRAPPER'
#!/usr/bin/env bash
[ "$*" != -h ] || { "$KV" -h | grep -v unix-socket; exit 0; }
exec "$KV" --linux "$@"
WRAPPER
chmod +x "$work/memcached-debug"

cd "$work"
passed=0 skipped=0 failed=0
[ $# -gt 0 ] || set -- "$source"/t/*.t
for file; do
    name=$(basename "$file")
    timeout -k 5 60 prove -v "t/$name" >"$log/$name" 2>&1 </dev/null && result=passes || result="fails ($?)"
    ! grep -q '^t/.* skipped: ' "$log/$name" || result=skips
    case $result in passes) passed=$((passed + 1)) ;; skips) skipped=$((skipped + 1)) ;; *) failed=$((failed + 1)) ;; esac
    printf '%-28s %s\n' "$name" "$result"
done
echo "$passed pass, $failed fail, $skipped skip themselves"
