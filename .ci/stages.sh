# The stages of `.ci/run` and `.ci/full`, each a function, and how they are run. Sourced by both,
# which have a list of stages, `stages`.
#
# A stage's commands run in the root of the tree. The first failure ends the run. What a stage
# installs, builds or starts is in `target/`, in a temporary folder, or gone at its end.
set -euo pipefail
cd -P "$(dirname "${BASH_SOURCE[0]}")/.."
exec </dev/null
export CI=true CARGO_TERM_COLOR=never CARGO_INCREMENTAL=0 RUST_BACKTRACE=1 PYTHONDONTWRITEBYTECODE=1
unset RUSTFLAGS
export CARGO_TARGET_DIR="$PWD/target"
work=$(mktemp -d)

# ---- The stages of `.ci/run`

# Debian packages by the program, or a file, that they bring. A mirror may be out of reach, or lack
# one of them: tests of a missing program are skipped and say so; only what stages themselves use
# must be there. `.ci/full` has `more_programs`.
programs() {
    local missing=() package program
    while read -r program package; do
        [ -n "$program" ] || continue
        [ -e "$program" ] || [ -x "/usr/sbin/$program" ] || command -v "$program" >/dev/null || missing+=("$package")
    done < <(cat - <(echo "${more_programs:-}") <<'PROGRAMS'
ip iproute2
ping iputils-ping
nft nftables
nc netcat-openbsd
curl curl
openssl openssl
ssh openssh-client
sshd openssh-server
iperf3 iperf3
dig bind9-dnsutils
kdig knot-dnsutils
dnsperf dnsperf
nsd nsd
knotd knot
memcached memcached
memccapable libmemcached-tools
/usr/lib/python3/dist-packages/pymemcache python3-pymemcache
/usr/include/rocksdb/c.h librocksdb-dev
go golang-go
cc gcc
c++ g++
/usr/include/event2/event.h libevent-dev
make make
cmake cmake
pkg-config pkg-config
/usr/include/stdio.h libc6-dev
python3 python3-minimal
/usr/lib/python3/dist-packages/jsonschema python3-jsonschema
PROGRAMS
    )
    if [ ${#missing[@]} -gt 0 ]; then
        local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -qq)
        apt+=(-o Acquire::Retries=3 -o DPkg::Lock::Timeout=300)
        [ "$(id -u)" -eq 0 ] || apt=(sudo -n "${apt[@]}")
        "${apt[@]}" update || true
        "${apt[@]}" install -y --no-install-recommends "${missing[@]}" ||
            for package in "${missing[@]}"; do
                "${apt[@]}" -o Acquire::Retries=0 -o DPkg::Lock::Timeout=30 install -y --no-install-recommends "$package" ||
                    echo "cannot install $package: tests that need it are skipped" >>"$work/notes"
            done
    fi
    for program in cc ip python3 nc ping openssl dig; do
        command -v "$program" >/dev/null || { echo "$program is missing"; return 1; }
    done
}

format() {
    local manifest
    cargo fmt --all --check
    for manifest in fuzz tests/outside tests/crates tests/hello; do
        cargo fmt --manifest-path "$manifest/Cargo.toml" --check
    done
    # Comments wrap at 100 columns, Markdown at 120.
    .ci/wrap.py
}

clippy() {
    cargo clippy --workspace --all-targets --quiet -- -D warnings
}

# The command of the README, word for word. Tests wait more than they compute: beside them runs, at
# the lowest priority, what the other chosen stages can do.
tests() {
    debug_programs
    # A process group of its own (set -m), by which it is ended: its first process last, for which
    # `clean_up` waits. Not in SCHED_IDLE: tests of batch jobs count what runs there.
    set -m
    { trap 'wait; exit 1' TERM; renice -n 19 -p "$BASHPID"; run_ahead; } &>"$work/ahead.log" &
    ahead=$!
    set +m
    cargo test --workspace
    echo "waiting for the later stages' work that began beside the tests"
    wait "$ahead" || { echo "some of it failed, and will be tried again:" | tee -a "$work/notes"; cat "$work/ahead.log"; }
    ahead=
}

# Runs those of the chosen stages that need no IOKernel and leave nothing behind; builds what the
# others will build, and find built. What fails is tried again by its stage: `.ci/run clippy` says
# sooner whether lints are met.
run_ahead() {
    local name failed=0
    for name in "${chosen[@]}"; do
        case $name in
            clippy | pure | loom | docs | outside) in_advance "$name" "$name" ;;
            demo) in_advance '' demo_programs ;;
            blocks) in_advance '' pages_to_build ;;
        esac
    done
    return $failed
}

# in_advance NAME FUNCTION: runs it; if it passes, stage NAME does not run it again. Sets `failed`
# otherwise, and prints what it printed. Not a condition itself: errexit would have no effect in it.
in_advance() {
    # The signal ends it after the command that it waits for.
    { trap 'exit 1' TERM; "$2"; } &>"$work/output" &
    if ! wait $!; then
        failed=1
        cat "$work/output"
    elif [ -n "$1" ]; then
        mv "$work/output" "$work/passed-$1"
    fi
}

# The pages that cost most to build.
pages_to_build() {
    demo_programs
    cargo xtask install --prefix "$work/library"
    .ci/blocks.py docs/src/guide/{own-policy,service}.md
}

# The pure crates, compiled for a target without a standard library: no clock, file, socket or
# thread is within their reach.
pure() {
    if ! rustc --print target-libdir --target x86_64-unknown-none | xargs test -d; then
        echo "skipped: there is no target x86_64-unknown-none (rustup target add x86_64-unknown-none)"
        return 0
    fi
    cargo check --quiet --target x86_64-unknown-none --no-default-features \
        -p tailwater-sched -p tailwater-tcp -p tailwater-wire -p tailwater-net -p tailwater-workload
}

loom() {
    loom_models
    rm -rf target/loom
}

loom_models() {
    RUSTFLAGS="--cfg loom" cargo test --profile models -p tailwater-shm -p tailwater --lib --target-dir target/loom "$@"
}

docs() {
    api_docs
    # Every file that a page links to exists, and diagrams and tables are those of their sources.
    python3 -B .ci/schema.py
    python3 .ci/links.py README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md docs/src docs/lab
    python3 -B docs/diagrams/draw.py --check
    debug_programs
    target/debug/tailwater-lab publish --check
}

api_docs() {
    RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
}

# All programs, as `tests` has built them: with `-p` cargo would build them again, with fewer
# features of what they depend on.
debug_programs() {
    cargo test --workspace --no-run --quiet
}

# A program outside the workspace, with cargo's own profiles instead of the workspace's, as those of
# the command blocks.
outside() {
    .ci/blocks.py tests/outside/README.md
}

# The first of the README's two commands, quickly. Numbers are not judged: they depend on what else
# runs on the machine.
demo() {
    demo_programs
    small_program
    timeout --kill-after=10 900 cargo run --release --quiet -- demo --quick --json "$work/demo.json" --svg "$work/demo.svg"
    python3 - "$work/demo.json" <<'PYTHON'
import json, sys
points = json.load(open(sys.argv[1]))["points"]
assert {point["system"] for point in points if point["completed"] > 0} == {"tailwater", "linux"}, points
assert all(point["batch_share"] >= 0 and point["achieved_rps"] >= 0 for point in points), points
PYTHON
}

demo_programs() {
    cargo build --release --quiet
}

# What an operator installs stays small: at most 80 crates of others, and 12 MiB without symbols.
small_program() {
    local crates bytes
    crates=$(cargo tree -p tailwater-cli --edges normal --prefix none --format '{p}' | awk '{ print $1, $2 }' | sort -u | grep -v '^tailwater')
    strip -o "$work/tailwater" target/release/tailwater
    bytes=$(stat -c %s "$work/tailwater")
    [ "$(wc -l <<<"$crates")" -le 80 ] || { echo "at most 80 crates of others are allowed in tailwater:"; echo "$crates"; return 1; }
    [ "$bytes" -le 12582912 ] || { echo "at most 12 MiB without symbols are allowed in tailwater: $bytes"; return 1; }
}

# The command blocks of README and book, with the release build of `tailwater`. The other programs
# are those of the tests: a release build of them takes two minutes, and no page judges numbers.
blocks() {
    demo_programs
    debug_programs
    # Older release builds of them would be found first. Cargo links them again when they are built.
    find target/debug -maxdepth 1 -type f -executable -name 'tailwater-*' -printf 'target/release/%f\0' | xargs -0 rm -f
    # `tailwater` starts it from its own folder.
    ln -f target/debug/tailwater-observe target/release/
    .ci/blocks.py
}

# ---- The further stages of `.ci/full`

# The crate of the fuzz targets; the corpora themselves are run by `tests`.
fuzz() {
    cargo clippy --quiet --manifest-path fuzz/Cargo.toml --no-default-features --lib --examples -- -D warnings
}

# Tests that take minutes: benchmarks and figures by the commands a user types, and many programs
# that are killed.
slow() {
    cargo test -p tailwater-lab --test it -- --ignored
    TAILWATER_KILLS=200 cargo test -p tailwater-tests --test it attached::killed_runtimes
    cargo test -p tailwater-tests --test it -- --ignored hostile::connections_without_a_word
}

# The randomized tests from seeds of this moment. A failure is printed with its seed and does not
# fail the run: it is a finding about the code as it was before, too.
seeds() {
    timeout --kill-after=10 1800 .ci/soak 300 || echo "to be looked at: the failures above (status $?)"
}

# A short set of the next stage: that an emulated machine boots, that kthreads take work from each
# other, and which hyperthreads are lent.
many-cores() {
    can_emulate || return 0
    cargo test --quiet -p tailwater-machine
    emulated --topology 2x3x2 -- \
        "$(integration_tests tailwater-tests)" --include-ignored --test-threads 1 kthreads_take services_are_lent
}

can_emulate() {
    if ! command -v qemu-system-x86_64 >/dev/null || ! PATH=$PATH:/usr/sbin command -v depmod >/dev/null; then
        echo "skipped: there is no QEMU (apt install qemu-system-x86 kmod)"
        return 1
    fi
    cargo build --quiet -p tailwater-machine
    compgen -G 'target/machine/boot/vmlinuz-*' >/dev/null || PATH=$PATH:/usr/sbin target/debug/tailwater-machine fetch || {
        echo "skipped: the packages of the emulated machine's kernel cannot be had"
        return 1
    }
}

# emulated OPTION... -- COMMAND: runs a command in an emulated machine.
emulated() {
    target/debug/tailwater-machine run --limit-s 3000 "$@"
}

# integration_tests CRATE: prints the path of its integration tests, as `tests` builds them.
integration_tests() {
    cargo test --workspace --no-run --quiet --message-format=json |
        sed -n "/#$1@.*\"name\":\"it\"/s/.*\"executable\":\"\([^\"]*\)\".*/\1/p"
}

# Tests of many lent cores, of requested ones and of exclusive threads: sixteen lent cores, and two
# sockets of cores with hyperthreads.
machine() {
    local topology tests
    can_emulate || return 0
    tests=$(integration_tests tailwater-tests)
    for topology in 1x18x1 2x4x2; do
        emulated --topology "$topology" -- "$tests" --include-ignored --test-threads 1 many_cores:: exclusive::
    done
    if [ "$(id -u)" -eq 0 ] || { [ -w /dev/net/tun ] && unshare --map-root-user --net true; }; then
        cards "$tests" --card virtio --card virtio --queues 4 -- \
            cards:: shared_addresses:: shared_ports:: two_machines::runtimes_of_two_machines_talk_over_af_xdp
    else
        echo "skipped: cards of several queues need root, or a user who may make namespaces and TAP devices"
    fi
    cards "$tests" --card e1000e --card e1000e -- \
        cards:: shared_addresses::connections_live shared_ports::no_connection_is_reset \
        two_machines::runtimes_of_two_machines_talk_over_af_xdp_on_linuxs_packets
    groups
}

# Runs tests of AF_XDP on two cards with a cable between them, in place of a veth pair.
#   TEST-PROGRAM OPTIONS-OF-THE-MACHINE -- TESTS
cards() {
    local tests=$1 options=()
    shift
    while [ "$1" != -- ]; do
        options+=("$1")
        shift
    done
    # shellcheck disable=SC2016
    emulated --topology 1x4x1 "${options[@]}" -- sh -ec '
        ip link set eth0 name here0
        ip link set eth1 name there0
        TAILWATER_TEST_CARDS=here0,there0 exec "$0" "$@"' "$tests" --test-threads 1 "${@:2}"
}

# Runs tests of control groups, which there are of version 2 with all controllers; on many machines
# these are in version 1. None may be skipped, and each program has some.
groups() {
    # shellcheck disable=SC2016
    emulated --topology 1x3x1 -- sh -c '
        "$0" --nocapture --test-threads 1 control_groups:: && "$1" --nocapture --test-threads 1 containers::' \
        "$(integration_tests tailwater-cli)" "$(integration_tests tailwater-node)" 2>&1 | tee "$work/groups"
    ! grep 'skipped:' "$work/groups" || { echo "the emulated machine lacks what these tests need"; return 1; }
    [ "$(grep -c '^test result: ok. [1-9]' "$work/groups")" -eq 2 ] || { echo "two programs have tests of control groups"; return 1; }
}

# A short set of the test suites of unmodified programs, on both networks. Each script alone runs
# all of its suite.
suites() {
    cargo build --release --quiet -p tailwater-cli -p tailwater-posix
    tests/programs/cpython.py --short
    tests/programs/memcached.py 00-startup.t getset.t cas.t stats.t udp.t unixsocket.t
    tests/programs/redis.py unit/type/string unit/pubsub
    tests/programs/libevent.py epoll
    tests/programs/libuv.py tcp_ping_pong tcp_writealot tcp_close udp_send_and_recv poll_duplex threadpool_queue_work_simple
    tests/programs/posixtestsuite.py pthread_cond_wait pthread_mutex_lock sem_timedwait sigwait
    tests/programs/node.py 'test-net-connect-*' 'test-net-server-*'
}

# The RocksDB service, which the workspace builds without RocksDB.
rocks() {
    if [ ! -e /usr/include/rocksdb/c.h ]; then
        echo "skipped: there is no librocksdb (apt install librocksdb-dev)"
        return 0
    fi
    cargo clippy -p tailwater-rocks --features rocksdb --all-targets --quiet -- -D warnings
    cargo test -p tailwater-rocks --features rocksdb
}

# Services against the servers that they stand for: generated zones with NSD, Knot and BIND, random
# lines with memcached, and those of memcached's own test programs that passed before. All seeds are
# fixed.
protocols() {
    local server missing=()
    for server in nsd knotd named memcached; do
        PATH=$PATH:/usr/sbin command -v "$server" >/dev/null || missing+=("$server")
    done
    [ ${#missing[@]} -eq 0 ] || echo "skipped: comparisons with ${missing[*]}, which are not installed"
    TAILWATER_DNS_SEEDS=100..140 cargo test -p tailwater-dns --test it references::
    TAILWATER_KV_OPERATIONS=300000 cargo test -p tailwater-kv --test it differential::random
    cargo build --quiet -p tailwater-kv
    if ! memcached_source >"$work/apt.log" 2>&1; then
        echo "skipped: apt-get has no source package of memcached: $(tail -n 1 "$work/apt.log")"
        return 0
    fi
    local source=("$work"/memcached-source/memcached-*/) programs
    mapfile -t programs < <(sed "s|.*|${source[0]}t/&.t|" apps/kv/tests/memcached-passing.txt)
    MEMCACHED_SOURCE=${source[0]} apps/kv/tests/memcached-tests.sh "${programs[@]}" | tee "$work/memcached"
    # Those that need more than a machine has skip themselves, as binary-sasl.t does.
    grep -q "^[1-9][0-9]* pass, 0 fail" "$work/memcached"
}

# Fetches and unpacks the sources of memcached, with lists of packages of its own.
memcached_source() {
    local folder=$work/memcached-source file
    mkdir -p "$folder"/{lists,cache/archives}/partial
    file=/etc/apt/sources.list.d/debian.sources
    [ ! -e "$file" ] || sed 's/^Types: deb$/Types: deb-src/' "$file" >"$folder/src.sources"
    [ ! -e /etc/apt/sources.list ] || sed -n 's/^deb /deb-src /p' /etc/apt/sources.list >"$folder/src.list"
    file=$(find "$folder" -maxdepth 1 -name 'src.*' -size +0 | head -n 1)
    local apt=(apt-get -qq -o Dir::Etc::SourceList="$file" -o Dir::Etc::SourceParts=/dev/null)
    apt+=(-o Dir::State::Lists="$folder/lists" -o Dir::Cache="$folder/cache" -o Acquire::Retries=1)
    (cd "$folder" && "${apt[@]}" update && "${apt[@]}" source --download-only memcached && tar -xf memcached_*.orig.tar.*)
}

# The runtime with each choice of features. A program that needs none of them builds at most 25
# crates.
features() {
    local features crates
    for features in "" config-file debug dispatch estimation future readiness tcp; do
        # The library alone: its tests have `future` and `readiness` in any case.
        cargo clippy --quiet -p tailwater --lib --no-default-features --features "$features" -- -D warnings
        cargo test -p tailwater --test features --no-default-features --features "$features"
    done
    cargo clippy --quiet -p tailwater --lib --features futures-io,hyper,tokio-io -- -D warnings
    cargo clippy --quiet -p tailwater --lib --test libc_waits --bench libc_waits --features libc-waits -- -D warnings
    cargo test -p tailwater --features libc-waits --lib --test libc_waits --bench libc_waits
    crates=$(cargo tree -p tailwater --edges normal --no-default-features --prefix none --format '{p}' | awk '{ print $1, $2 }' | sort -u)
    [ "$(wc -l <<<"$crates")" -le 25 ] || { echo "at most 25 crates are allowed without features:"; echo "$crates"; return 1; }
}

# The sites of all C libraries whose sites are committed, in their packages.
libcs() {
    .ci/libcs "$work/libcs" || { echo "skipped: the packages cannot be had"; return 0; }
    TAILWATER_LIBCS=$work/libcs cargo test -p tailwater-libc-waits --test it libraries::
}

# sanitizer NAME: the unit tests of what runs on ordinary OS threads; sanitizers do not follow a
# switch to a user thread's stack (CONTRIBUTING.md, Tests).
sanitizer() {
    local host fixed=() runner=()
    if ! cargo +nightly --version >/dev/null 2>&1; then
        echo "skipped: there is no nightly toolchain (rustup toolchain install nightly)"
        return 0
    fi
    host=$(rustc -vV | sed -n 's/^host: //p')
    # Without random addresses, where a container permits that.
    if setarch "$(uname -m)" -R true 2>/dev/null; then
        fixed=(setarch "$(uname -m)" -R)
        runner=("CARGO_TARGET_$(tr a-z- A-Z_ <<<"$host")_RUNNER=${fixed[*]}")
    fi
    # Thirty runs: each draws its addresses at random, and some kernels draw from more of them
    # (vm.mmap_rnd_bits) than a sanitizer can use.
    if ! echo 'fn main() {}' | rustc +nightly -Z sanitizer="$1" -C unsafe-allow-abi-mismatch=sanitizer -o "$work/probe" - ||
        ! seq 30 | xargs -n 1 "${fixed[@]}" "$work/probe"; then
        echo "skipped: this nightly or this kernel cannot run a program with -Z sanitizer=$1"
        return 0
    fi
    # detect_leaks: user threads' records are never freed, by design, and the tests make many.
    # One test at a time: ThreadSanitizer does not see that memory is unmapped before another test
    # gets the same address; the join of the first one's thread is an order that it does see.
    env "${runner[@]}" PROPTEST_CASES=32 RUST_TEST_THREADS=1 \
        TSAN_OPTIONS="suppressions=$PWD/.ci/tsan.supp" ASAN_OPTIONS=detect_leaks=0 \
        RUSTFLAGS="-Z sanitizer=$1 -C unsafe-allow-abi-mismatch=sanitizer --cfg sanitizing" \
        cargo +nightly test --profile models -p tailwater-shm -p tailwater --lib --target "$host" --target-dir "target/$1"
}

thread-sanitizer() { sanitizer thread; }
address-sanitizer() { sanitizer address; }

# Common crates on user threads, as the page "Which crates work" has it.
crates() {
    cargo build --quiet --locked --manifest-path tests/crates/Cargo.toml --target-dir target/crates
    timeout --kill-after=10 600 target/crates/debug/crates 2>"$work/crates.log" || { cat "$work/crates.log"; return 1; }
    cargo clippy --quiet --locked --manifest-path tests/hello/Cargo.toml --target-dir target/crates -- -D warnings
}

# Public items of the runtime without an example; rustdoc describes a crate to programs only on
# nightly.
doc-examples() {
    if ! cargo +nightly --version >/dev/null 2>&1; then
        echo "skipped: there is no nightly toolchain (rustup toolchain install nightly)"
        return 0
    fi
    cargo +nightly rustdoc -p tailwater --quiet --target-dir target/nightly -- \
        -Z unstable-options --output-format json --document-hidden-items
    python3 .ci/examples.py target/nightly/doc/tailwater.json
}

# The interface of C against its committed description.
abi() {
    command -v abidiff >/dev/null || { echo "skipped: there is no abidiff (apt install abigail-tools)"; return 0; }
    .ci/abi
}

# The reference of C and C++; each name without a comment is an error.
reference() {
    command -v doxygen >/dev/null || { echo "skipped: there is no doxygen (apt install doxygen)"; return 0; }
    mkdir -p target/reference
    doxygen crates/capi/Doxyfile
}

# What cargo-c installs is what `cargo xtask install` does: the same files, symbols and soname.
cargo-c() {
    if ! cargo cinstall --version >/dev/null 2>&1; then
        echo "skipped: there is no cargo-c (cargo install cargo-c@0.10.24 --locked; later versions need a later Rust)"
        return 0
    fi
    local prefix="$work/capi"
    cargo xtask install --prefix "$prefix/xtask"
    cargo cinstall -p tailwater-capi --release --prefix "$prefix/cargo-c" --libdir "$prefix/cargo-c/lib" \
        --target-dir target/cargo-c
    local way
    for way in xtask cargo-c; do
        (cd "$prefix/$way" && find . ! -type d | sort) >"$work/$way.files"
        nm -D --defined-only "$prefix/$way/lib/libtailwater.so.0" | awk '{ sub(/@.*/, "", $NF); print $NF }' |
            grep -v '^TAILWATER_' | sort >"$work/$way.symbols"
    done
    diff "$work/xtask.files" "$work/cargo-c.files"
    diff "$work/xtask.symbols" "$work/cargo-c.symbols"
    cp -r crates/capi/examples/service "$prefix/service"
    PKG_CONFIG_PATH="$prefix/cargo-c/lib/pkgconfig" make -s -C "$prefix/service"
    LD_LIBRARY_PATH="$prefix/cargo-c/lib" timeout --kill-after=10 60 "$prefix/service/hello"
    rm -rf target/cargo-c
}

# Every library crate can be published: complete metadata, and it builds from its package alone.
# That takes the registry's index, and a registry that is crates.io itself.
packages() {
    local unreachable='HTTP re(quest|sponse)|failed to (fetch|query|download)|download of .* failed|[Cc]ould( not|n.t) (resolve|connect)|timed out after|Timeout was reached|SSL connect error|spurious network|crates-io is replaced'
    local passed=0
    # A new folder of its own: cargo would take packages of the same version that were checked here
    # before for those of this code, unpacked or compiled.
    rm -rf target/packages
    cargo publish --dry-run --workspace --allow-dirty --quiet --target-dir target/packages >"$work/packages.log" 2>&1 || passed=$?
    rm -rf "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/tailwater{,-*}-[0-9]*
    [ "$passed" -ne 0 ] || return 0
    grep -qE "$unreachable" "$work/packages.log" || { cat "$work/packages.log"; return 1; }
    echo "skipped: the registry is out of reach: $(grep -m 1 '^error' "$work/packages.log")"
}

# What a release consists of: lintian finds no error in the Debian package, and two containers of
# the image work together.
release() {
    cargo xtask dist --out target/release-files
    (cd target/release-files && sha256sum --quiet --check SHA256SUMS)
    if command -v lintian >/dev/null; then
        lintian --allow-root --fail-on error,warning target/release-files/*.deb
    else
        echo "skipped: there is no lintian (apt install lintian)"
    fi
    tests/packages/image target/release-files/*.oci.tar
}

# The Debian package and its units, in a container that systemd boots.
systemd() {
    cargo xtask dist --out target/release-files
    tests/packages/systemd target/release-files/*.deb
}

# Slurm's plugin beside Debian's Slurm.
slurm() {
    cargo build --quiet -p tailwater-cli -p tailwater-spin
    tests/slurm/run
}

# The agent of a node of Kubernetes beside the protocol code of Kubernetes and containerd.
cluster() {
    cargo build --quiet -p tailwater-cli -p tailwater-node -p tailwater-spin
    tests/cluster/run
}

# Licences, sources and known vulnerabilities of the dependencies, as far as cargo-deny is there.
dependencies() {
    if ! cargo deny --version >/dev/null 2>&1; then
        echo "skipped: there is no cargo-deny (cargo install cargo-deny --locked)"
        return 0
    fi
    cargo deny --all-features check bans licenses sources
    # A database that cannot be fetched is no fault of the change; an advisory fails the stage.
    if cargo deny fetch db; then
        cargo deny --all-features check --disable-fetch advisories
    else
        echo "skipped: the database of advisories cannot be fetched"
    fi
}

# Every benchmark and every figure, quickly.
measure() {
    cargo build --release --quiet -p tailwater-cli -p tailwater-lab -p tailwater-posix
    # hyper on both systems: a program of its own, as that benchmark says.
    cargo build --release --quiet --locked --manifest-path tests/hello/Cargo.toml --target-dir target
    target/release/tailwater-lab measure --quick --out "$work/results"
    target/release/tailwater-lab bench tcp --soak 0.5
}

# ---- Running them

# What a test could leave behind, one line each, without what other programs make meanwhile.
# Processes are those that run from this target directory, devices those with a name that a test or
# a page gives; network namespaces have no names, and end with their processes. Sockets have a
# process in this PID namespace: others may share the network.
left_behind() {
    {
        git status --porcelain 2>/dev/null | sed 's/^/file /' || true
        local exe
        for exe in /proc/[0-9]*/exe; do
            case $(readlink "$exe" 2>/dev/null || true) in
                "$CARGO_TARGET_DIR"/*) echo "process $(tr '\0' ' ' <"${exe%/exe}/cmdline" 2>/dev/null || true)" ;;
            esac
        done
        find /dev/shm -mindepth 1 -maxdepth 1 -name '*tailwater*' -printf 'shared memory %p\n' 2>/dev/null || true
        ip -o link show 2>/dev/null | awk -F': ' '{ sub(/@.*/, "", $2) }
            $2 ~ /^(tw.*|here0|there0|a0|b0|br0|veth[01])$/ { print "network device " $2 }' || true
        ss -xap 2>/dev/null | grep 'pid=' | grep -o '@tailwater[^ ]*' | sort -u | sed 's/^/socket /' || true
    } | sort
}

nothing_is_left() {
    local tries
    # A killed process may take a moment to be reaped: half a minute on a busy machine.
    for tries in {1..60}; do
        left_behind | comm -13 "$work/before" - >"$work/leaked"
        [ -s "$work/leaked" ] || { echo "nothing was left behind"; return 0; }
        sleep 0.5
    done
    echo "left behind:"
    cat "$work/leaked"
    return 1
}

# stage NAME FUNCTION: runs it, and notes how long it took.
stage() {
    now=$1
    local began=$SECONDS
    printf '\n=== %s\n' "$1"
    if [ -e "$work/passed-$1" ]; then
        tee -a "$work/log" <"$work/passed-$1"
        echo "passed beside the tests"
    else
        # Not through a pipe, whose end would wait for a process that the stage has left.
        "$2" > >(tee -a "$work/log") 2>&1
    fi
    # What a stage built in a target directory of its own, so that all fit in a few gigabytes.
    rm -rf target/{thread,address,nightly,crates,packages}
    printf '%-20s %4d s\n' "$1" $((SECONDS - began)) >>"$work/notes"
}

# Ends what `tests` has in the background, and waits for its end.
clean_up() {
    local status=$?
    [ $status -eq 0 ] || [ -z "$now" ] || echo "FAILED in stage: $now" >&2
    if [ -n "$ahead" ]; then
        { kill -- -"$ahead" && wait "$ahead"; } 2>/dev/null || true
        [ $status -eq 0 ] || { echo "beside the tests:"; cat "$work/ahead.log"; } >&2 || true
    fi
    rm -rf "$work"
    exit $status
}

now= ahead=
trap clean_up EXIT

# main [--list | NAME...]: runs the named stages, or all.
main() {
    local chosen=() name
    for name in "$@"; do
        case $name in
            --list) printf '%s\n' "${stages[@]}"; return ;;
            *) printf '%s\n' "${stages[@]}" | grep -Fxq -- "$name" || { echo "there is no stage '$name'; ${0##*/} --list prints them" >&2; return 2; } ;;
        esac
        chosen+=("$name")
    done
    [ ${#chosen[@]} -gt 0 ] || chosen=("${stages[@]}")
    echo "$(df --output=avail -BG . | tail -1 | tr -dc 0-9) GiB of disk are free; 10 are needed"
    left_behind >"$work/before"
    for name in "${chosen[@]}"; do
        stage "$name" "$name"
    done
    stage "left behind" nothing_is_left
    printf '\n'
    cat "$work/notes"
    printf '%-20s %4d s\n' all "$SECONDS"
    awk '/^test result:/ { passed += $4; failed += $6; ignored += $8; suites++ }
        END { if (suites) printf "%d passed, %d failed, %d ignored in %d suites\n", passed, failed, ignored, suites }' "$work/log"
}
