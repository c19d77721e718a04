#!/usr/bin/env python3
"""Runs the command blocks of README and book, so that what they tell a reader to type works.

    .ci/blocks.py [--programs target/release] [FILE...]

A fenced block is run if its info string has the word `run` after the language (```sh run). The blocks of a page are one
script, from top to bottom, in an empty folder in which `tailwater` is this checkout; with `in=checkout` they run in the
checkout itself. ```toml file=PATH writes the block to PATH before the blocks behind it. In a ```console block the lines
behind `$ ` are run. An HTML comment <!-- until: COMMAND --> repeats a command, for at most 120 s, until it succeeds: what a
reader's own pause between two commands does.

A command in the background must be running, or have succeeded, when the page ends. After one that starts an IOKernel, or a
program on it, the script goes on when the IOKernel answers or counts the program.

Each page has network and process namespaces of its own, so that it meets no other and leaves nothing behind. Where these
cannot be made, pages that need root are skipped; `sudo` is taken out otherwise. Of two runs in one checkout the second
waits for the first.
"""

import argparse
import fcntl
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# One folder for all pages, one after the other: to cargo a library with another path is another
# library, and would be compiled again for each page. Each user has another: a folder in /tmp is
# removed by its owner only.
SCRATCH = pathlib.Path(tempfile.gettempdir()) / f"tailwater-pages-{os.getuid()}{str(ROOT).replace('/', '-')}"
# A run holds it while it uses the folder.
LOCK = ROOT / "target" / ".pages-lock"
LIMIT_S = 1800

# A session may be one group to the scheduler, whose weight is that of the group (sched(7)): it gets
# the caller's.
HELPERS = r"""
unset BASH_ENV
set -euo pipefail
{ nice >/proc/self/autogroup; } 2>/dev/null || true
started=()
until_true() {
    local try
    for ((try = 0; try < 1200; try++)); do
        if eval "$1" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "still fails after 120 s: $1" >&2
    eval "$1"
}
programs() { tailwater stats --json | python3 -c 'import json, sys; print(len(json.load(sys.stdin)["runtimes"]))'; }
one_more_than() { [ "$(programs)" -gt "$1" ]; }
check_started() {
    local job status
    for job in "${started[@]}"; do
        if kill -0 "$job" 2>/dev/null; then continue; fi
        status=0
        wait "$job" || status=$?
        [ "$status" -eq 0 ] || { echo "a command in the background ended with status $status" >&2; exit 1; }
    done
}
"""

FENCE = re.compile(r"^```(\S*)(.*)$")
UNTIL = re.compile(r"<!-- until: (.*) -->")


def steps(text):
    """The page's steps in order: ("run", lines, checkout?), ("file", path, text), ("until", command)."""
    found, block, info = [], None, []
    for line in text.splitlines():
        fence = FENCE.match(line)
        if block is None and fence:
            block, info = [], [fence[1], *fence[2].split()]
        elif block is not None and line.rstrip() == "```":
            files = [word.removeprefix("file=") for word in info[1:] if word.startswith("file=")]
            if files:
                found.append(("file", files[0], "\n".join(block) + "\n"))
            elif "run" in info[1:]:
                lines = [l[2:] for l in block if l.startswith("$ ")] if info[0] == "console" else block
                found.append(("run", lines, "in=checkout" in info))
            block = None
        elif block is not None:
            block.append(line)
        elif until := UNTIL.match(line):
            found.append(("until", until[1]))
    if block is not None:
        sys.exit("a fenced block has no end")
    return found


def script(steps):
    """The page as a bash script, and the number of its blocks."""
    text, blocks = [], 0
    for step in steps:
        if step[0] == "until":
            text.append(f"until_true {shlex.quote(step[1])}")
        elif step[0] == "file":
            quoted = shlex.quote(step[1])
            text.append(f"mkdir -p $(dirname {quoted})\ncat > {quoted} <<'END OF BLOCK'\n{step[2]}END OF BLOCK")
        else:
            blocks += 1
            text.append(f"cd {shlex.quote(str(ROOT))}" if step[2] else "cd \"$scratch\"")
            text += [command(line) for line in step[1]]
            text.append('scratch=$PWD' if not step[2] else "")
    return "\n".join([*text, "check_started", ""]), blocks


def command(line):
    """A line of a block as it is run."""
    bare = re.sub(r"\s+#\s.*$", "", line).rstrip()
    bare = re.sub(r"^sudo -b (.*)$", r"\1 &", bare)
    bare = re.sub(r"\bsudo ", "", bare)
    if not bare.endswith(" &"):
        return bare
    if re.search(r"\btailwater\)? iokernel\b", bare):
        return f"{bare}\nstarted+=($!)\nuntil_true 'tailwater stats'"
    if re.search(r"\btailwater run\b", bare) and "--standalone" not in bare:
        return f"before=$(programs)\n{bare}\nstarted+=($!)\nuntil_true \"one_more_than $before\""
    return f"{bare}\nstarted+=($!)"


def namespaces():
    """The command that runs another one in network and process namespaces of its own; empty if this is not allowed."""
    prefix = ["unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]
    prefix += [] if os.getuid() == 0 else ["--map-root-user"]
    try:
        works = subprocess.run([*prefix, "ip", "link", "set", "lo", "up"], capture_output=True, check=False)
    except FileNotFoundError:
        return []
    return prefix if works.returncode == 0 else []


def run_script(lines, programs, prefix):
    """Runs a page's script in `SCRATCH`; returns its exit status and its output."""
    (SCRATCH / "tailwater").symlink_to(ROOT)
    helpers, page = SCRATCH / ".helpers", SCRATCH / ".page"
    up = "ip link set lo up\n" if prefix else ""
    helpers.write_text(HELPERS + up + f"scratch={shlex.quote(str(SCRATCH))}\n")
    page.write_text(lines)
    environment = os.environ | {
        "BASH_ENV": str(helpers),
        "PATH": f"{programs}:{ROOT / 'target' / 'debug'}:{os.environ['PATH']}",
        # Dependencies are built once for all runs and for the workspace, and are those that the
        # workspace has fetched.
        "CARGO_BUILD_BUILD_DIR": str(ROOT / "target"),
        "CARGO_NET_OFFLINE": "true",
        # As the workspace has it for dependencies, which are then the same ones. No page runs a
        # debugger.
        "CARGO_PROFILE_DEV_DEBUG": "false",
    }
    environment.pop("CARGO_TARGET_DIR", None)
    # A file, not a pipe: programs in the background would keep a pipe open.
    with open(SCRATCH / ".output", "w+", errors="replace") as output:
        child = subprocess.Popen(
            [*prefix, "bash", "-v", str(page)], cwd=SCRATCH, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
        )
        try:
            status = child.wait(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            status = 124
        finally:
            # What a page without namespaces left in the background is in its process group.
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        output.seek(0)
        said = output.read()
    return status, said


def run_page(path, programs, prefix):
    """Runs a page; returns a line that says what happened, and whether that is well."""
    text = path.read_text()
    lines, blocks = script(steps(text))
    if blocks == 0:
        return None, True
    if "sudo " in text and not prefix:
        return "skipped: it needs root, or namespaces of its own", True
    shutil.rmtree(SCRATCH, ignore_errors=True)
    SCRATCH.mkdir(mode=0o700)
    began = time.monotonic()
    try:
        status, said = run_script(lines, programs, prefix)
    finally:
        shutil.rmtree(SCRATCH, ignore_errors=True)
    took = time.monotonic() - began
    if status != 0:
        print(said)
        return f"FAILED with status {status} after {took:.0f} s", False
    return f"{blocks} blocks, {took:.0f} s", True


def lock():
    """Returns the file whose lock keeps other runs in this checkout waiting."""
    LOCK.parent.mkdir(exist_ok=True)
    held = open(LOCK, "w")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another run in {ROOT}", flush=True)
        fcntl.flock(held, fcntl.LOCK_EX)
    return held


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--programs", default="target/release")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pages = arguments.files or [ROOT / "README.md", *sorted((ROOT / "docs" / "src").rglob("*.md"))]
    prefix = namespaces()
    well = True
    with lock():
        for page in pages:
            outcome, good = run_page(page.resolve(), (ROOT / arguments.programs).resolve(), prefix)
            well &= good
            if outcome:
                print(f"{os.path.relpath(page.resolve(), ROOT)}: {outcome}", flush=True)
    sys.exit(0 if well else 1)


if __name__ == "__main__":
    main()
