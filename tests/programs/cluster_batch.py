#!/usr/bin/env python3
"""Ray and Spark as batch jobs beside a service, on Tailwater and on Linux.

A service (tailwater-spin) has a load of --load percent of one core, beside a batch job on the same core:

  linked tailwater-swaptions, which is linked with the runtime
  plain  two processes of Python with four threads each, under `tailwater run --batch`: the like of what follows
  ray    one node of Ray with its driver, whose tasks compute, under `tailwater run --batch`
  spark  a master, a worker and a driver of Spark, the same

and beside ray and spark on Linux's network, in SCHED_IDLE (`chrt --idle 0`) in the session of the service. Each round
measures all of them in turn. Printed are the service's 99th percentile over that beside `linked` and `plain`, the
job's rate over that on Linux, and how many processes and threads of the job are not batch work.

It needs two CPUs with nothing else on them, a release build of tailwater-cli, tailwater-spin and tailwater-swaptions,
and a Python that has ray and pyspark (with Java). A round takes about two minutes. Nothing is left: all that is
started carries a mark in its environment, or has a parent that does, by which it is found and ended.
"""

import argparse
import contextlib
import json
import os
import pathlib
import secrets
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import suite

SERVICE_US = 10
# First part of a load, which is not counted: the IOKernel learns what its neighbours are.
WARM_UP_S = 2
# Rounds of work that a driver has behind it before a load begins, and the longest wait for them.
WARM_ROUNDS = 20
START_S = 600
ADDRESS = "10.77.0.9:5000"
LINUX_ADDRESS = "127.0.0.1:5009"
# In the environment of all that is started, and in that of the job only.
MARK, JOB = f"TAILWATER_CLUSTER_BATCH={os.getpid()}", f"TAILWATER_CLUSTER_JOB={os.getpid()}"

RAY_PORT, SPARK_PORT = 6390, 7090
# About 20 ms of work in a task, one more of which waits than runs.
RAY_DRIVER = """
import ray, time
ray.init(address="127.0.0.1:6390", log_to_driver=False)
@ray.remote
def task():
    return sum(i * i % 7 for i in range(250_000))
waiting, count = [task.remote() for _ in range(2)], 0
while True:
    _, waiting = ray.wait(waiting)
    waiting.append(task.remote())
    count += 1
    print(time.time(), count, flush=True)
"""
PLAIN = """
import os, threading
def work():
    while True:
        sum(i * i % 7 for i in range(250_000))
os.fork()
for _ in range(4):
    threading.Thread(target=work).start()
"""
SPARK_DRIVER = """
import time
from pyspark.sql import SparkSession
spark = (SparkSession.builder.master("spark://127.0.0.1:7090").config("spark.ui.enabled", "false")
         .config("spark.executor.memory", "512m").config("spark.driver.host", "127.0.0.1").getOrCreate())
count = 0
while True:
    spark.range(0, 4_000_000, 1, 2).selectExpr("sum(xxhash64(id) & 7)").collect()
    count += 1
    print(time.time(), count, flush=True)
"""


class Cluster:
    """A cluster of one node and its driver, which prints a time and a count after each piece of work."""

    def __init__(self, prefix, python, folder):
        self.prefix, self.python, self.folder = prefix, python, folder
        self.log = open(folder / "log", "ab")
        self.progress = []
        self.environment = {**os.environ, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0",
                            # Ray listens at the machine's address, and runs what reaches it.
                            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32),
                            "RAY_raylet_start_wait_time_s": "300", "SPARK_LOCAL_IP": "127.0.0.1",
                            "SPARK_NO_DAEMONIZE": "1", "SPARK_LOCAL_DIRS": str(folder), "SPARK_WORKER_DIR": str(folder),
                            "PYSPARK_PYTHON": str(python)}

    def start(self, *command, **options):
        # The mark is behind the prefix: `tailwater run` itself is no part of the job.
        command = [*self.prefix, "env", JOB, *map(str, command)]
        options = {"stdout": self.log, **options}
        return subprocess.Popen(command, stderr=self.log, stdin=subprocess.DEVNULL, env=self.environment, cwd=self.folder,
                                **options)

    def follow(self, driver):
        """Starts a driver and waits until it is warm."""
        process = self.start(self.python, "-c", driver, stdout=subprocess.PIPE)

        def read():
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    at, count = line.split()
                    self.progress.append((float(at), int(count)))

        threading.Thread(target=read, daemon=True).start()
        wait_for(f"{WARM_ROUNDS} pieces of work", lambda: len(self.progress) >= WARM_ROUNDS, process, self.folder / "log")

    def rate(self, begin, end):
        """Returns pieces of work a second between two times."""
        inside = [(at, count) for at, count in self.progress if begin <= at <= end]
        if len(inside) < 2:
            sys.exit(f"the job did no work within {end - begin:.1f} s: {self.folder / 'log'}")
        (first, before), (last, after) = inside[0], inside[-1]
        return (after - before) / (last - first)

    def __exit__(self, *_):
        end_marked(JOB)


class Ray(Cluster):
    MODULE = "ray"

    def __enter__(self):
        self.start(self.python.parent / "ray", "start", "--head", "--block", "--num-cpus=1", f"--port={RAY_PORT}",
                   "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--disable-usage-stats",
                   "--object-store-memory=100000000", f"--temp-dir={self.folder}", f"--plasma-directory={self.folder}")
        wait_for("Ray", lambda: b"runtime started" in (self.folder / "log").read_bytes(), None, self.folder / "log")
        self.follow(RAY_DRIVER)
        return self


class Spark(Cluster):
    MODULE = "pyspark"

    def __enter__(self):
        home = subprocess.run([self.python, "-c", "import pyspark; print(pyspark.__path__[0])"], check=True,
                              stdout=subprocess.PIPE, text=True).stdout.strip()
        spark_class, deploy = f"{home}/bin/spark-class", "org.apache.spark.deploy"
        self.start(spark_class, f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", SPARK_PORT, "--webui-port", 0)
        self.start(spark_class, f"{deploy}.worker.Worker", "--host", "127.0.0.1", "--cores", 1, "--memory", "1g",
                   "--webui-port", 0, f"spark://127.0.0.1:{SPARK_PORT}")
        self.follow(SPARK_DRIVER)
        return self


KINDS = {"ray": Ray, "spark": Spark}
# Jobs without a manager.
OWN = ("linked", "plain")


def wait_for(what, condition, process, log):
    """Waits for a condition; ends the script when the process has ended or START_S have passed."""
    until = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > until or (process and process.poll() is not None):
            sys.exit(f"not in time: {what}; the end of {log}:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.1)


def marked(mark):
    """Returns the processes that carry a mark, and their descendants: a worker that sets its title overwrites its mark."""
    found, children = [], {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
            if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    for pid in found:
        found += [child for child in children.get(pid, []) if child not in found]
    return found


def end_marked(mark):
    """Ends what carries the mark: at first as a service manager does, then by force, since Ray drains for 30 s."""
    for ends, seconds in ((signal.SIGTERM, 3), (signal.SIGKILL, 20)):
        until = time.monotonic() + seconds
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, ends)
        while time.monotonic() < until:
            if not marked(mark):
                return
            time.sleep(0.1)
    sys.exit(f"could not end: {marked(mark)}")


def census(lent):
    """Returns the number of the job's processes and threads, and what of them is no batch work."""
    processes, threads, astray = marked(JOB), 0, []
    for pid in processes:
        with contextlib.suppress(OSError):
            name = pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
            for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
                tid = int(task.name)
                threads += 1
                if os.sched_getscheduler(tid) != os.SCHED_IDLE or not os.sched_getaffinity(tid) <= {lent}:
                    astray.append(f"{name} {pid}/{tid}")
            weight = pathlib.Path(f"/proc/{pid}/autogroup")
            if weight.exists() and not weight.read_text().strip().endswith("nice 19"):
                astray.append(f"{name} {pid}: {weight.read_text().strip()}")
    return {"processes": len(processes), "threads": threads, "astray": astray}


class Bench:
    """What all points have in common: programs, cores, load."""

    def __init__(self, arguments, folder):
        self.arguments, self.folder = arguments, folder
        self.programs = arguments.programs
        self.own, self.lent = sorted(os.sched_getaffinity(0))[:2]

    def program(self, name):
        return str(self.programs / name)

    def load(self, *options):
        """Returns the command of the load, whose figures go to a file."""
        rate = round(self.arguments.load / 100 * 1e6 / SERVICE_US)
        seconds = self.arguments.seconds + WARM_UP_S
        return [self.program("tailwater"), "load", *options, "--rate", str(rate), "--service", f"const:{SERVICE_US}us",
                "--duration", f"{seconds}s", "--warm-up", f"{WARM_UP_S}s", "--core", str(self.own), "--quiet",
                "--json", str(self.folder / "load.json")]

    def measure(self, load, programs, job):
        """Runs a load against programs that are started behind it; returns figures of the service, and the job's rate."""
        loading = subprocess.Popen(load, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        running = []
        try:
            running += [subprocess.Popen(program, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for program in programs]
            said, _ = loading.communicate(timeout=self.arguments.seconds + 120)
        finally:
            for process in [loading, *running]:
                process.terminate()
                try:
                    process.wait(timeout=30)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        if loading.returncode:
            sys.exit(f"the load failed: {said[-1000:]}")
        run = json.loads((self.folder / "load.json").read_text())["points"][0]["runs"][0]
        if not run["report"]["p99_us"]:
            sys.exit(f"the service answered nothing: {said[-1000:]}")
        begin = run["started_unix_s"] + WARM_UP_S
        rate = job.rate(begin, begin + self.arguments.seconds) if job else None
        return {"p99_us": run["report"]["p99_us"], "lost": run["report"]["lost"], "rate": rate}

    def run(self, *options):
        return [self.program("tailwater"), "run", "--iokernel", suite.SOCKET, *options, "--"]

    def measure_on_tailwater(self, job, *beside):
        load = self.load(ADDRESS, "--over", "port", "--iokernel", suite.SOCKET)
        service = self.run("--name", "spin", "--kthreads", "1", "--ip", ADDRESS.split(":")[0])
        return self.measure(load, [[*service, self.program("tailwater-spin")], *beside], job)

    def beside_linked(self):
        linked = self.run("--name", "linked", "--kthreads", "1", "--class", "best-effort")
        return self.measure_on_tailwater(None, [*linked, self.program("tailwater-swaptions")])

    def beside_plain(self):
        return self.measure_on_tailwater(None, [*self.run("--batch"), str(self.arguments.python), "-c", PLAIN])

    def beside_cluster(self, kind):
        found = {}
        with contextlib.ExitStack() as stack:
            # A job has to find an IOKernel, outlives it, and meets the one that the load brings.
            with suite.IoKernel("--share-cores", "--core", str(self.own), "--managed-cores", str(self.lent)):
                job = stack.enter_context(self.cluster(kind, self.run("--batch")))
            found["tailwater"] = self.measure_on_tailwater(job)
            found["census"] = census(self.lent)
        found["linux"] = self.measure_on_linux(kind)
        return found

    def measure_on_linux(self, kind):
        prefix = ["chrt", "--idle", "0", "taskset", "-c", str(self.lent)]
        service = [self.program("tailwater-spin"), "--linux", "--listen", LINUX_ADDRESS, "--core", str(self.lent)]
        with self.cluster(kind, prefix) as job:
            return self.measure(self.load(LINUX_ADDRESS), [service], job)

    def cluster(self, kind, prefix):
        # A short name: Ray's sockets are below it.
        return KINDS[kind](prefix, self.arguments.python, pathlib.Path(tempfile.mkdtemp(prefix="job-", dir=self.folder)))


def spread(values):
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def describe(rounds, jobs):
    """Prints what the rounds have in common."""
    own = {kind: [each[kind]["p99_us"] for each in rounds] for kind in OWN}
    for kind, values in own.items():
        print(f"{kind}: p99 {spread(values)} us")
    for job in jobs:
        here, linux = ([each[job][system] for each in rounds] for system in ("tailwater", "linux"))
        counted = [each[job]["census"] for each in rounds]
        print(f"{job}: p99 {spread([point['p99_us'] for point in here])} us, on Linux "
              f"{spread([point['p99_us'] for point in linux])} us")
        rate = [point["rate"] / other["rate"] for point, other in zip(here, linux)]
        for kind, values in own.items():
            tail = [point["p99_us"] / value for point, value in zip(here, values)]
            print(f"  p99 over that beside {kind}: {spread(tail)}, aim at most 1.10")
        print(f"  rate of the job over that in SCHED_IDLE on Linux: {spread(rate)}, aim at least 0.95")
        most = max(counted, key=lambda each: each["threads"])
        print(f"  {most['processes']} processes with {most['threads']} threads, not batch work: "
              f"{', '.join(sorted({name for each in counted for name in each['astray']})) or 'none'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=KINDS, action="append", help="this cluster only [default: both]")
    parser.add_argument("--rounds", type=int, default=5, help="rounds [default: 5]")
    parser.add_argument("--seconds", type=int, default=10, help="length of a load that counts [default: 10]")
    parser.add_argument("--load", type=float, default=30, help="percent of the lent core [default: 30]")
    parser.add_argument("--programs", type=pathlib.Path, default=suite.TAILWATER.parent, help="folder of Tailwater's programs")
    parser.add_argument("--python", type=pathlib.Path, default=pathlib.Path(sys.executable), help="a Python with ray and pyspark")
    parser.add_argument("--json", type=pathlib.Path, help="write the figures of each round here")
    arguments = parser.parse_args()
    jobs = arguments.only or list(KINDS)
    suite.TAILWATER = arguments.programs / "tailwater"
    if not all((arguments.programs / name).exists() for name in ("tailwater", "tailwater-spin", "tailwater-swaptions")):
        sys.exit("build first: cargo build --release -p tailwater-cli -p tailwater-spin -p tailwater-swaptions")
    for job in jobs:
        if subprocess.run([arguments.python, "-c", f"import {KINDS[job].MODULE}"], stderr=subprocess.DEVNULL).returncode:
            suite.skip(f"{arguments.python} has no {KINDS[job].MODULE}: give another by --python")
    suite.needs("chrt", "taskset", *(["java"] if "spark" in jobs else []))
    if len(os.sched_getaffinity(0)) < 2:
        suite.skip("an IOKernel needs two CPUs")
    # `finally` below runs for these, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    # Of what is started: that of this script stays what it was.
    os.environ.update([MARK.split("=")])
    rounds = []
    folder = pathlib.Path(tempfile.mkdtemp(prefix="tw-"))
    try:
        bench = Bench(arguments, folder)
        for number in range(arguments.rounds):
            each = {"linked": bench.beside_linked(), "plain": bench.beside_plain()}
            for job in jobs:
                each[job] = bench.beside_cluster(job)
            print(f"round {number + 1}: {json.dumps(each)}", flush=True)
            rounds.append(each)
    finally:
        end_marked(MARK)
        shutil.rmtree(folder, ignore_errors=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(rounds, indent=1))
    describe(rounds, jobs)


if __name__ == "__main__":
    main()
