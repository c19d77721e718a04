#!/usr/bin/env python3
"""The Open POSIX Test Suite's tests of threads, locks, semaphores, signals and timers, plain and under `run --posix`.

usage: tests/programs/posixtestsuite.py [FUNCTION...]     such as: tests/programs/posixtestsuite.py pthread_create sem_wait
"""

import concurrent.futures
import re
import subprocess
import sys

import suite

# Functions whose tests are run. Those of asynchronous I/O, message queues, clocks and memory do not
# wait in the C library's locks, and have no socket.
FUNCTIONS = r"(pthread|sem|sig|sched|timer)_?\w*|fork|kill|killpg|raise|nanosleep|clock_nanosleep"
# At once. Most tests sleep for seconds.
WORKERS = 8
LIMIT = 120
# What a test's exit status says (include/posixtest.h).
VERDICTS = {0: "ok", 1: "failed", 2: "unresolved", 4: "unsupported", 5: "untested"}
DIFFER = {}


def build(tree, test):
    """Returns the program of a test, or None if it cannot be built: some have no `main`."""
    program = test.with_suffix("")
    if not program.exists():
        options = ["-w", "-std=gnu99", "-D_GNU_SOURCE", f"-I{tree}/include", f"-I{test.parent}"]
        command = ["cc", *options, "-o", program, test, "-pthread", "-lrt", "-lm"]
        if subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode:
            return None
    return program


def verdict(program, before):
    status, _ = suite.run([*before, str(program)], LIMIT, cwd=program.parent)
    return VERDICTS.get(status, f"exit status {status}")


def main():
    suite.needs("cc")
    tree = suite.source("posixtestsuite", suite.folder("posixtestsuite"))
    interfaces = tree / "conformance/interfaces"
    chosen = sys.argv[1:] or [path.name for path in interfaces.iterdir() if re.fullmatch(FUNCTIONS, path.name)]

    def of(function):
        """Runs the tests of a function one after the other: some share names of files and of shared memory."""
        found = {}
        for test in sorted((interfaces / function).glob("*-*.c")):
            if program := build(tree, test):
                name = f"{function}/{test.stem}"
                found[name] = suite.on_both(name, lambda before: verdict(program, before))
        return found

    with suite.IoKernel(), concurrent.futures.ThreadPoolExecutor(WORKERS) as pool:
        found = {test: result for part in pool.map(of, chosen) for test, result in part.items()}
    linux, here = ({test: result[side] for test, result in found.items()} for side in (0, 1))
    suite.compare("posixtestsuite", linux, here, DIFFER)


if __name__ == "__main__":
    main()
