#!/usr/bin/env python3
"""libuv's tests, each on both networks; as the user `nobody`, which the suite asks for, with an IOKernel of that user.

usage: tests/programs/libuv.py [TEST...]
"""

import os
import pathlib
import shutil
import sys
import tempfile

import suite

NOBODY = 65534
DIFFER = {
    "shutdown_eof": "the first client of a server waits until its runtime has started, which takes longer than the 100 ms of "
    "the test on a busy machine",
}


def build(folder):
    """Returns the folder with the test program."""
    tree = suite.source("libuv1", folder)
    if not (tree / "build/uv_run_tests").exists():
        configure = ["cmake", "-S", tree, "-B", tree / "build"]
        suite.build("libuv", configure, ["make", "-C", tree / "build", "-j2", "uv_run_tests"])
    return tree


def main():
    suite.needs("cmake", "make", "cc", "setpriv")
    tree = build(suite.folder("libuv"))
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for part in (tree / "build/uv_run_tests", tree / "build/libuv.so.1", suite.TAILWATER, suite.LIBRARY):
            shutil.copy(part, work)
        suite.TAILWATER = work / suite.TAILWATER.name
        shutil.copytree(tree / "test", work / "test")
        suite.run(["chown", "-R", str(NOBODY), folder], 60)
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        environment = {**os.environ, "HOME": folder, "LD_LIBRARY_PATH": folder, "UV_TEST_TIMEOUT_MULTIPLIER": "4"}

        def one(test, before):
            status, output = suite.run([*user, *before, "./uv_run_tests", test], 90, cwd=folder, env=environment)
            return "ok" if status == 0 and "skip" not in output.lower() else "skipped" if status == 0 else f"exit status {status}"

        _, listed = suite.run([*user, "./uv_run_tests", "--list"], 60, cwd=folder, env=environment)
        tests = sys.argv[1:] or listed.split()
        with suite.IoKernel(user=user):
            found = {test: suite.on_both(test, lambda before: one(test, before)) for test in tests}
    linux, here = ({test: verdicts[side] for test, verdicts in found.items()} for side in (0, 1))
    suite.compare("libuv", linux, here, DIFFER)


if __name__ == "__main__":
    main()
