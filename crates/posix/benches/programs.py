#!/usr/bin/env python3
"""Unmodified services and clients on Tailwater and on Linux, in turn, on the same machine.

usage: crates/posix/benches/programs.py [--rounds N] [--requests N] [--only NAME]

Needs redis-server, redis-benchmark, memcached, nginx, wrk and a C compiler, and a release build of
tailwater and tailwater-posix. The IOKernel of the first CPU lends the others; on Linux both sides use
all CPUs. 50 connections, one request each at a time. Prints one line for each run: requests a
second, p99, and processor time of server and client for each request; then the ratios of medians.
"""

import argparse
import os
import pathlib
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[3]
TAILWATER = ROOT / "target/release/tailwater"
SOCKET = f"@tailwater-programs.{os.getpid()}"
ADDRESS = "10.77.0.50"
TICK = os.sysconf("SC_CLK_TCK")


def here(command, ip=None):
    """Returns the command under Tailwater."""
    own = ["--ip", ip] if ip else []
    return [TAILWATER, "run", "--posix", "--iokernel", SOCKET, "--kthreads", "1", *own, "--", *command]


def ticks(pid):
    """Returns the processor time of a process and its children that live, in seconds."""
    total = 0
    for each in [pid, *children(pid)]:
        fields = pathlib.Path(f"/proc/{each}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / TICK


def children(pid):
    listed = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def redis(folder):
    server = ["redis-server", "--port", "7401", "--bind", "0.0.0.0", "--protected-mode", "no", "--save", ""]

    def client(host, requests):
        return ["redis-benchmark", "-h", host, "-p", "7401", "-t", "get", "-c", "50", "-n", str(requests), "--csv"]

    def read(output):
        fields = [line for line in output.splitlines() if line.startswith('"GET"')][0].replace('"', "").split(",")
        return float(fields[1]), float(fields[6]) * 1000

    return server, client, read


def memcached(folder):
    server = ["memcached", "-u", "root", "-t", "1", "-p", "7402", "-U", "0", "-l", "0.0.0.0"]
    load = folder / "mcload"
    if not load.exists():
        subprocess.run(["cc", "-O2", "-o", load, pathlib.Path(__file__).with_name("mcload.c")], check=True)

    def client(host, requests):
        return [load, host, "7402", "50", str(requests)]

    def read(output):
        rate, _, p99 = output.split()
        return float(rate), float(p99)

    return server, client, read


def nginx(folder):
    (folder / "index.html").write_text("x" * 2048)
    config = folder / "nginx.conf"
    paths = " ".join(f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    config.write_text(
        f"daemon off; user root; worker_processes 1; error_log {folder}/log; pid {folder}/pid;\n"
        f"events {{ worker_connections 1024; }}\n"
        f"http {{ access_log off; keepalive_requests 100000000; {paths} server {{ listen 7403; root {folder}; }} }}\n"
    )

    def client(host, requests):
        return ["wrk", "-t", "1", "-c", "50", "-d", "4", "--latency", f"http://{host}:7403/"]

    def read(output):
        rate = float(re.search(r"Requests/sec:\s+([\d.]+)", output)[1])
        value, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", output).groups()
        return rate, float(value) * {"us": 1, "ms": 1000, "s": 1e6}[unit]

    return ["nginx", "-c", config], client, read


def measure(make, folder, on_tailwater, requests):
    """Runs server and client once; returns requests a second, p99 in us, us of processor time a request."""
    server, client, read = make(folder)
    host = ADDRESS if on_tailwater else "127.0.0.1"
    load = client(host, requests)
    if on_tailwater:
        server, load = here(server, ADDRESS), here(load)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(server, **quiet)
    try:
        time.sleep(1.5)
        before = ticks(process.pid)
        used = os.times()
        begun = time.monotonic()
        output = subprocess.run(load, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout
        seconds = time.monotonic() - begun
        after = os.times()
        rate, p99 = read(output)
        spent = ticks(process.pid) - before
        spent += after.children_user - used.children_user + after.children_system - used.children_system
        # wrk runs for a time, the others for a number of requests.
        total = rate * 4 if load[-1] == f"http://{host}:7403/" else requests
        return rate, p99, spent / total * 1e6, seconds
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=20)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=400_000)
    parser.add_argument("--only", choices=["redis", "memcached", "nginx"])
    arguments = parser.parse_args()
    missing = [name for name in ("redis-server", "memcached", "nginx", "wrk", "cc") if not shutil.which(name)]
    if missing:
        sys.exit(f"programs.py: not installed: {', '.join(missing)}")
    if not TAILWATER.exists():
        sys.exit("programs.py: build first: cargo build --release -p tailwater-cli -p tailwater-posix")
    iokernel = subprocess.Popen([TAILWATER, "iokernel", "--socket", SOCKET, "--share-cores", "--log", "warn"])
    try:
        time.sleep(1)
        with tempfile.TemporaryDirectory() as folder:
            for make in (redis, memcached, nginx):
                if arguments.only in (None, make.__name__):
                    compare(make, pathlib.Path(folder), arguments)
    finally:
        iokernel.send_signal(signal.SIGINT)
        iokernel.wait(timeout=20)


def compare(make, folder, arguments):
    runs = {True: [], False: []}
    for _ in range(arguments.rounds):
        for on_tailwater in (True, False):
            result = measure(make, folder, on_tailwater, arguments.requests)
            runs[on_tailwater].append(result)
            where = "Tailwater" if on_tailwater else "Linux"
            print(
                f"{make.__name__:10} {where:10} {result[0]:9.0f} requests/s  p99 {result[1]:7.0f} us  "
                f"{result[2]:6.2f} us of processor time a request",
                flush=True,
            )
    medians = {which: [statistics.median(column) for column in zip(*results)] for which, results in runs.items()}
    rate, p99, spent = (medians[True][index] / medians[False][index] for index in range(3))
    print(f"{make.__name__:10} Tailwater/Linux: requests/s {rate:.2f}, p99 {p99:.2f}, processor time a request {spent:.2f}\n")


if __name__ == "__main__":
    main()
