#!/usr/bin/env python3
"""libevent's regression tests over epoll, poll and select, on both networks.

usage: tests/programs/libevent.py [BACKEND...]
"""

import os
import re
import sys

import suite

BACKENDS = ["epoll", "poll", "select"]
DIFFER = {
    "http/data_length_constraints": "the client reads the answer of a server that closes with unread data before it sees the "
    "reset, and the test expects the reset first",
}


def build(folder):
    """Returns the test program."""
    tree = suite.source("libevent", folder)
    program = tree / "build/bin/regress"
    if not program.exists():
        options = ["-DCMAKE_BUILD_TYPE=Release", "-DEVENT__LIBRARY_TYPE=STATIC", "-DEVENT__DISABLE_MBEDTLS=ON"]
        configure = ["cmake", "-S", tree, "-B", tree / "build", *options]
        suite.build("libevent", configure, ["make", "-C", tree / "build", "-j2", "regress"])
    return program


def verdicts(output):
    """Returns the verdict of each test."""
    found, group, name = {}, "", ""
    for line in output.splitlines():
        begins = re.match(r"(\S+)/(\S+): ", line)
        if begins:
            group, name = begins.groups()
        # On a line of its own if the library has said something meanwhile.
        if line == "OK" or begins and line.endswith("OK"):
            found[f"{group}/{name}"] = "ok"
        ends = re.match(r"\s*\[(\S+) FAILED\]", line)
        if ends:
            found[f"{group}/{ends[1]}"] = "failed"
    return found


def main():
    suite.needs("cmake", "make", "cc")
    program = build(suite.folder("libevent"))
    with suite.IoKernel():
        for backend in sys.argv[1:] or BACKENDS:
            others = {f"EVENT_NO{other.upper()}": "1" for other in BACKENDS if other != backend}
            environment = {**os.environ, **others}
            found = []
            for before in ([], suite.posix()):
                _, output = suite.run([*before, program], 900, cwd=program.parent, env=environment)
                found.append(verdicts(output))
            suite.compare(f"libevent, {backend}", *found, DIFFER)


if __name__ == "__main__":
    main()
