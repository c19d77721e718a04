#!/usr/bin/env python3
"""libuv's tests, each on both networks; without an IOKernel, as the user `nobody`, which the suite asks for.

usage: tests/programs/libuv.py [TEST...]
"""

import os
import pathlib
import shutil
import sys
import tempfile

import suite

NOBODY = 65534
DIFFER = {}


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
        for part in ("build/uv_run_tests", "build/libuv.so.1"):
            shutil.copy(tree / part, work)
        shutil.copytree(tree / "test", work / "test")
        library = shutil.copy(suite.TAILWATER.with_name("libtailwater_posix.so"), work)
        suite.run(["chown", "-R", str(NOBODY), folder], 60)
        user = ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"]
        environment = {**os.environ, "HOME": folder, "LD_LIBRARY_PATH": folder, "UV_TEST_TIMEOUT_MULTIPLIER": "4"}

        def one(test, extra):
            command = [*user, "env", *extra, "./uv_run_tests", test]
            status, output = suite.run(command, 90, cwd=folder, env=environment)
            return "ok" if status == 0 and "skip" not in output.lower() else "skipped" if status == 0 else f"exit status {status}"

        _, listed = suite.run([*user, "./uv_run_tests", "--list"], 60, cwd=folder, env=environment)
        tests = sys.argv[1:] or listed.split()
        found = [{test: one(test, extra) for test in tests} for extra in ([], [f"LD_PRELOAD={library}"])]
    suite.compare("libuv", *found, DIFFER)


if __name__ == "__main__":
    main()
