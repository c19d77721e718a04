"""What the scripts of this folder share: fetching a program's tests, running them on both networks, comparing.

Each script runs the tests of one program twice, on Linux's network and under `tailwater run --posix`, and prints the
tests that differ. Tests in its table `DIFFER` may: each has a reason, and the guide has it, too
(docs/src/guide/programs.md). Any other difference fails the script.

A script keeps what it fetches and builds in `target/programs/NAME`. It needs a release build of tailwater-cli and
tailwater-posix, and the machine's package sources (apt); a script that lacks something says so and ends with 0.
"""

import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TAILWATER = ROOT / "target/release/tailwater"
LIBRARY = TAILWATER.with_name("libtailwater_posix.so")
SOCKET = f"@tailwater-suites.{os.getpid()}"
# Debian's package sources with the sources of programs, for a release by its name.
SOURCES = "deb-src http://deb.debian.org/debian {0} main\ndeb-src http://deb.debian.org/debian-security {0}-security main\n"


def skip(reason):
    """Ends the script, which says why."""
    print(f"skipped: {reason}")
    sys.exit(0)


def folder(name):
    """Returns the folder of a program, which is made."""
    path = ROOT / "target/programs" / name
    path.mkdir(parents=True, exist_ok=True)
    return path


def needs(*programs):
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        skip(f"not installed: {', '.join(missing)}")
    if not TAILWATER.exists():
        sys.exit(f"{sys.argv[0]}: build first: cargo build --release -p tailwater-cli -p tailwater-posix")


def release():
    """Returns the name of this machine's Debian release."""
    text = pathlib.Path("/etc/os-release").read_text()
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    if fields.get("ID") != "debian":
        skip("the sources are taken from Debian's packages, and this is no Debian")
    return fields["VERSION_CODENAME"]


def source(package, into, upstream=None):
    """Unpacks the source of a Debian package; returns its folder. With `upstream`, a pattern of the folder's name, it is
    the archive of the program's authors without Debian's changes."""
    needs("apt-get", "dpkg-source")

    def unpacked():
        return next((path for path in into.glob(upstream or f"{package}-*") if path.is_dir()), None)

    if unpacked():
        return unpacked()
    lists = into / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    (into / "sources.list").write_text(SOURCES.format(release()))
    options = ["-qq", "-o", f"Dir::Etc::sourcelist={into}/sources.list", "-o", "Dir::Etc::sourceparts=-"]
    apt = ["apt-get", *options, "-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"]
    fetch = [*apt, "source", *(["--tar-only"] if upstream else []), package]
    # `apt-get source` fails if any one file is missing, so its status is not judged; the folder is.
    subprocess.run([*apt, "update"])
    subprocess.run(fetch, cwd=into)
    if upstream:
        # Under its name is only what was unpacked as a whole.
        partial = into / "partial"
        for archive in (path for path in into.glob("*.orig.tar.*") if path.suffix != ".asc"):
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            if subprocess.run(["tar", "-xf", archive], cwd=partial).returncode == 0:
                for path in partial.iterdir():
                    path.rename(into / path.name)
    return unpacked() or skip(f"the source of {package} cannot be fetched")


def package(name, into):
    """Unpacks a Debian package into a folder, without installing it."""
    needs("apt-get", "dpkg")
    if not list(into.glob(f"{name}_*.deb")):
        if subprocess.run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", name], cwd=into).returncode:
            skip(f"the package {name} cannot be fetched")
    deb = next(into.glob(f"{name}_*.deb"))
    subprocess.run(["dpkg", "-x", deb, into], check=True)


def posix(*options):
    """Returns the beginning of a command under Tailwater."""
    return [str(TAILWATER), "run", "--posix", "--iokernel", SOCKET, "--kthreads", "1", *options, "--"]


class IoKernel:
    """An IOKernel for the time of a `with` block. `user` is what its command begins with."""

    def __init__(self, *options, user=()):
        options = options or ["--share-cores"]
        self.command = [*user, TAILWATER, "iokernel", "--socket", SOCKET, "--log", "warn", *options]

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL)
        while not self.listens():
            if self.process.poll() is not None:
                sys.exit(f"the IOKernel ended at its start with status {self.process.returncode}")
            time.sleep(0.05)
        return self

    def listens(self):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            return probe.connect_ex("\0" + SOCKET[1:]) == 0

    def __exit__(self, *_):
        # Without one, Linux would have been compared with Linux.
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        if status := self.process.wait(timeout=20):
            sys.exit(f"the IOKernel ended with status {status}")


def run(command, limit, log=None, **options):
    """Runs a command in a session of its own; returns exit status and output. 124 means that the limit passed."""
    out = open(log, "wb") if log else subprocess.PIPE
    process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT, start_new_session=True, **options)
    status = 124
    try:
        output, _ = process.communicate(timeout=limit)
        status = process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    try:
        # A server that a test has left would keep its address from the next one.
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return status, (output or b"").decode(errors="replace")


def on_both(test, verdict):
    """Returns the verdicts on Linux and under Tailwater. `verdict` takes what a command begins with. A test that is ok on
    Linux only is tried twice more under Tailwater: some judge times, which a busy machine decides."""
    linux, here = verdict([]), verdict(posix())
    for _ in range(2):
        if linux == "ok" and here != "ok":
            print(f"{test}: {here}, tried again", flush=True)
            here = verdict(posix())
    return linux, here


def build(name, *commands):
    """Runs the commands that build a program's tests."""
    for command in commands:
        status, output = run(command, 1200)
        if status:
            skip(f"{name} cannot be built: {output[-500:]}")


def compare(name, linux, here, differ):
    """Prints how many tests ran and which differ; ends the script with 1 if one does that `differ` does not have.
    `linux` and `here` map tests to verdicts. Nothing to compare is a failure, too."""
    if "ok" not in linux.values():
        sys.exit(f"{name}: no test was ok on Linux, so nothing was compared")
    print(f"{name}: {len(linux)} tests on Linux, {sum(verdict == 'ok' for verdict in linux.values())} of them ok")
    differing = {test for test in linux.keys() | here.keys() if linux.get(test) != here.get(test)}
    # What Linux fails, too, is no matter of Tailwater.
    differing = {test for test in differing if linux.get(test) == "ok"}
    for test in sorted(differing):
        why = differ.get(test, "NOT EXPECTED")
        print(f"  {test}: Linux {linux.get(test)}, Tailwater {here.get(test)}: {why}")
    if differing - differ.keys():
        sys.exit(1)
    print(f"{name}: the others are equal under Tailwater")
