#!/usr/bin/env python3
"""memcached's tests: on Linux, and with server and clients under Tailwater.

usage: tests/programs/memcached.py [TEST...]

The server is Debian's binary; the tests are those of its source, with TCP instead of Unix sockets.
"""

import os
import sys

import suite

# The servers of a test have this address and those after it: one may start before another ends.
ADDRESS = "10.77.0.60"
HOST = """my $host = $ENV{TAILWATER_SUITE_HOST};
    if ($host =~ m/^(10[.].*[.])(\\d+)$/) {
        $host = $1 . ($2 + $main::servers++ % 16);
        $ENV{TAILWATER_IP} = $host;
    }"""
# Tests that need a build with debugging, or TLS.
LEFT_OUT = {"64bit.t", "proxy.t"}
DIFFER = {
    "00-startup.t": "a server at 127.0.0.1 is reached by itself and by Linux's programs only",
}
SERVER = """#!/bin/sh
if [ "$1" = -h ]; then exec memcached -h | grep -v unix-socket; fi
exec $TAILWATER_SUITE_SERVER memcached "$@"
"""


def prepare(folder):
    """Returns the folder in which the tests run."""
    tree = suite.source("memcached", folder)
    server = tree / "memcached-debug"
    server.write_text(SERVER)
    server.chmod(0o755)
    suite.subprocess.run(["cc", "-O1", "-w", "-o", tree / "timedrun", tree / "timedrun.c"], check=True)
    for test in (tree / "t").glob("*.t"):
        # The clients are other programs: over Tailwater's network they do not reach 127.0.0.1.
        if test.name != "00-startup.t":
            test.write_text(test.read_text(errors="surrogateescape").replace("-l 127.0.0.1", "-l 0.0.0.0"), errors="surrogateescape")
    module = tree / "t/lib/MemcachedTest.pm"
    text = module.read_text()
    if "TAILWATER_SUITE_HOST" not in text:
        text = text.replace('"127.0.0.1:$port"', '"$host:$port"')
        # Only builds with seccomp know it.
        text = text.replace('$args .= " -o relaxed_privileges";', "")
        module.write_text(text.replace("my $host = '127.0.0.1';", HOST))
    return tree


def main():
    suite.needs("memcached", "perl", "cc")
    tree = prepare(suite.folder("memcached"))
    tests = sys.argv[1:] or sorted(test.name for test in (tree / "t").glob("*.t") if not test.name.startswith("ssl"))
    found = {"linux": {}, "posix": {}}
    with suite.IoKernel():
        for test in (test for test in tests if test not in LEFT_OUT):
            for mode, before, server, host in (
                ("linux", [], [], "127.0.0.1"),
                ("posix", suite.posix(), suite.posix(), ADDRESS),
            ):
                variables = {"TAILWATER_SUITE_SERVER": " ".join(server), "TAILWATER_SUITE_HOST": host}
                environment = {**os.environ, **variables}
                command = [*before, "/usr/bin/perl", "-I", "t/lib", f"t/{test}"]
                log = tree / f"{test}-{mode}.log"
                status, _ = suite.run(command, 120, log, cwd=tree, env=environment)
                found[mode][test] = "ok" if status == 0 else f"exit status {status}"
    suite.compare("memcached", found["linux"], found["posix"], DIFFER)


if __name__ == "__main__":
    main()
