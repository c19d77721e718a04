#!/usr/bin/env python3
"""Some of redis' tests, with the server on Linux and under Tailwater.

usage: tests/programs/redis.py [UNIT...]

The server is Debian's binary; the tests (tclsh) are those of its source, on Linux's network in both runs: they reach the
server's Linux side, while its event loop waits for both.
"""

import os
import re
import sys

import suite

UNITS = "unit/type/string unit/type/list unit/pubsub unit/multi unit/expire unit/limits unit/querybuf".split()
DIFFER = {}
SERVER = "#!/bin/sh\nexec $TAILWATER_SUITE_SERVER /usr/bin/{0} \"$@\"\n"


def main():
    suite.needs("redis-server", "redis-cli", "redis-benchmark", "tclsh")
    tree = suite.source("redis", suite.folder("redis"))
    for name in ("redis-server", "redis-cli", "redis-benchmark"):
        program = tree / "src" / name
        program.write_text(SERVER.format(name))
        program.chmod(0o755)
    found = {"linux": {}, "posix": {}}
    with suite.IoKernel():
        for unit in sys.argv[1:] or UNITS:
            for mode, server in (("linux", []), ("posix", suite.posix())):
                environment = {**os.environ, "TAILWATER_SUITE_SERVER": " ".join(server)}
                command = ["tclsh", "tests/test_helper.tcl", "--clients", "1", "--tags", "-needs:debug", "--single", unit]
                log = tree / f"{unit.replace('/', '-')}-{mode}.log"
                status, _ = suite.run(command, 200, log, cwd=tree, env=environment)
                text = re.sub(r"\x1b\[[0-9;]*m", "", log.read_text(errors="replace"))
                for verdict, name in re.findall(r"^\[(ok|err|exception)\]: (.*?)(?: \(\d+ ms\))?$", text, re.M):
                    found[mode][f"{unit}: {name[:80]}"] = verdict
                found[mode][unit] = "ok" if status == 0 else f"exit status {status}"
    suite.compare("redis", found["linux"], found["posix"], DIFFER)


if __name__ == "__main__":
    main()
