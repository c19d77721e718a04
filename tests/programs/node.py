#!/usr/bin/env python3
"""Node's tests of TCP, HTTP, UDP, TLS and child processes, on both networks, by the `node` that is installed.

usage: tests/programs/node.py [PATTERN...]     such as: tests/programs/node.py 'test-net-*'
"""

import concurrent.futures
import os
import pathlib
import re
import shlex
import sys
import tempfile

import suite

PATTERNS = ["test-net-*", "test-http-*", "test-https-*", "test-dgram-*", "test-tls-*", "test-child-process-*"]
# At once. Tests wait more than they compute.
WORKERS = 4
LIMIT = 60
PASSED = "a connection is passed to a child, and the child has Linux's network alone"
DIFFER = {
    "test-child-process-fork-closed-channel-segfault": PASSED,
    "test-child-process-fork-net-socket": PASSED,
    "test-child-process-http-socket-leak": PASSED,
    "test-http-localaddress": "a socket that was bound to an address before connects from another one",
}


def flags(test):
    """Returns the options that a test asks for in its comments."""
    found = re.search(r"^// Flags: (.*)$", test.read_text(errors="replace"), re.MULTILINE)
    return shlex.split(found.group(1)) if found else []


def verdict(test, before, worker, folder):
    """Runs one test; `worker` is the number that keeps ports and folders of tests that run side by side apart."""
    own = folder / str(worker)
    own.mkdir(exist_ok=True)
    environment = {**os.environ, "TEST_THREAD_ID": str(worker), "TEST_PARALLEL": "1", "NODE_TEST_DIR": str(own)}
    command = [*before, "node", *flags(test), str(test)]
    status, output = suite.run(command, LIMIT, cwd=test.parent, env=environment)
    if status == 0:
        return "skipped" if re.search(r"^1\.\.0 # Skipped", output, re.MULTILINE) else "ok"
    return f"exit status {status}"


def main():
    suite.needs("node")
    tree = suite.source("nodejs", suite.folder("node"), upstream="node-v*")
    patterns = sys.argv[1:] or PATTERNS
    tests = sorted({test for pattern in patterns for test in (tree / "test/parallel").glob(f"{pattern}.js")})

    def both(item):
        number, test = item
        # Ports and folders of tests side by side differ.
        return suite.on_both(test.stem, lambda before: verdict(test, before, number % 100, folder))

    with tempfile.TemporaryDirectory(prefix="tailwater-node.", ignore_cleanup_errors=True) as path:
        folder = pathlib.Path(path)
        with suite.IoKernel(), concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
            found = list(pool.map(both, enumerate(tests)))
    linux, here = ({test.stem: verdicts[side] for test, verdicts in zip(tests, found)} for side in (0, 1))
    suite.compare("node", linux, here, DIFFER)


if __name__ == "__main__":
    main()
