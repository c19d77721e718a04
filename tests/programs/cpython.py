#!/usr/bin/env python3
"""CPython's tests of sockets, event loops, threads and processes, on both networks.

usage: tests/programs/cpython.py [--short] [MODULE...]
"""

import os
import shutil
import sys
import xml.etree.ElementTree
from pathlib import Path

import suite

MODULES = (
    "test_socket test_select test_poll test_epoll test_selectors test_socketserver test_httpservers test_ssl "
    "test_signal test_subprocess test_threading test_asyncio.test_events test_asyncio.test_sock_lowlevel "
    "test_asyncio.test_streams test_asyncio.test_server test_asyncio.test_subprocess test_asyncio.test_unix_events"
).split()
SHORT = "test_socket test_select test_poll test_epoll test_socketserver test_asyncio.test_streams".split()
# Tests that need what a machine may lack, or that wait for ever here on Linux, too.
LEFT_OUT = ["*VSOCK*", "test_4_daemon_threads", "*.SubprocessPidfdWatcherTests.test_create_subprocess_fails_with_inactive_watcher"]
SERVES = "a connection is passed to a child by fork, and the child has Linux's network alone"
LOCAL = "a socket that was bound to a port before connects from another one"
DIFFER = {
    "test.test_socketserver.SocketServerTest.test_ForkingTCPServer": SERVES,
    "test.test_socket.NetworkConnectionAttributesTest.testSourceAddress": LOCAL,
    "test.test_asyncio.test_events.EPollEventLoopTests.test_create_connection_local_addr": LOCAL,
    "test.test_asyncio.test_events.PollEventLoopTests.test_create_connection_local_addr": LOCAL,
    "test.test_asyncio.test_events.SelectEventLoopTests.test_create_connection_local_addr": LOCAL,
}
# The verdict of a whole module that gave none for its tests.
WHOLE = "the module"


def verdicts(report, module, status):
    """Returns the verdict of each test of a module."""
    try:
        cases = xml.etree.ElementTree.parse(report).iter("testcase")
    except (FileNotFoundError, xml.etree.ElementTree.ParseError):
        return {f"{module}: {WHOLE}": f"exit status {status}"}
    found = {}
    for case in cases:
        bad = [child.tag for child in case if child.tag in ("error", "failure")]
        skipped = case.get("result") == "skipped" or any(child.tag == "skipped" for child in case)
        found[case.get("name")] = bad[0] if bad else "skipped" if skipped else "ok"
    return found


def main():
    suite.needs("python3")
    python = "/usr/bin/python3"
    folder = suite.folder("cpython")
    version = suite.run([python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"], 60)[1].strip()
    suite.package(f"libpython{version}-testsuite", folder)
    tests = folder / "lib"
    if not (tests / "test").exists():
        # The package `test` is divided between two packages.
        for part in (Path(f"/usr/lib/python{version}/test"), folder / f"usr/lib/python{version}/test"):
            shutil.copytree(part, tests / "test", dirs_exist_ok=True)
    chosen = [argument for argument in sys.argv[1:] if argument != "--short"]
    chosen = chosen or (SHORT if "--short" in sys.argv else MODULES)
    found = {"linux": {}, "posix": {}}
    with suite.IoKernel():
        for module in chosen:
            for mode, before in (("linux", []), ("posix", suite.posix())):
                report, work = folder / f"{module}-{mode}.xml", folder / "work"
                report.unlink(missing_ok=True)
                work.mkdir(exist_ok=True)
                left_out = [part for pattern in LEFT_OUT for part in ("-i", pattern)]
                command = [*before, python, "-m", "test", "-u", "network,-urlfetch", *left_out, "--junit-xml", report, module]
                environment = {**os.environ, "PYTHONPATH": str(tests)}
                log = folder / f"{module}-{mode}.log"
                status, _ = suite.run(command, 600, log, cwd=work, env=environment)
                found[mode].update(verdicts(report, module, status))
                print(f"{module} {mode}: exit status {status}", flush=True)
    suite.compare("cpython", found["linux"], found["posix"], DIFFER)


if __name__ == "__main__":
    main()
