#!/usr/bin/env python3
"""Draws the diagrams of README, ARCHITECTURE and the book into docs/src/images.

    docs/diagrams/draw.py            writes the files
    docs/diagrams/draw.py --check    fails if a file is not what this script draws
"""

import pathlib
import sys

from svg import Drawing

IMAGES = pathlib.Path(__file__).resolve().parent.parent / "src" / "images"


def pieces():
    """The processes of one machine, and what they share."""
    d = Drawing(900, 470, "IOKernel, programs and cores of one machine")
    for x, kind, name, what in [(20, "svc", "a service", "latency-critical"), (330, "batch", "a batch job", "best-effort")]:
        d.box(x, 20, 270, 170, "plain")
        d.text(x + 135, 42, f"{name} ({what})", bold=True)
        d.box(x + 15, 55, 240, 38, kind, "user threads: your code", size=13)
        d.box(x + 15, 100, 240, 38, kind, "runtime: scheduler, sockets, TCP", size=13)
        for i in range(2):
            d.box(x + 15 + 123 * i, 145, 117, 34, kind, f"kthread {i}", size=13)
        d.arrow([(x + 135, 190), (x + 135, 240)], both=True)
    d.box(20, 240, 580, 66, "mem")
    d.text(310, 262, "shared memory, one private region per program", bold=True)
    d.text(310, 286, "per kthread: grant word, state word, queue positions, ingress ring, egress ring", size=13)
    d.arrow([(310, 306), (310, 340)], both=True)
    d.box(20, 340, 580, 66, "io")
    d.text(310, 362, "IOKernel: one polling thread on core 0", bold=True)
    d.text(310, 386, "switches packets; decides every 5 us who owns which core", size=13)
    d.box(690, 240, 190, 46, "plain", ["Linux's own programs"], size=13)
    d.box(690, 306, 190, 46, "plain", ["network card"], size=13)
    d.box(690, 372, 190, 46, "plain", ["load generator"], size=13)
    d.arrow([(600, 355), (640, 355), (640, 263), (690, 263)], both=True)
    d.text(648, 232, "TAP", size=13, kind="faint", anchor="start")
    d.arrow([(600, 366), (660, 366), (660, 329), (690, 329)], both=True)
    d.text(690, 301, "AF_XDP", size=13, kind="faint", anchor="start")
    d.arrow([(600, 395), (690, 395)], both=True)
    d.text(645, 413, "ports", size=13, kind="faint")
    # Cores.
    d.text(20, 446, "cores:", anchor="start", bold=True)
    d.box(80, 428, 150, 28, "io", "0 polls", size=13)
    d.box(236, 428, 180, 28, "svc", "1 lent to the service", size=13)
    d.box(422, 428, 180, 28, "batch", "2 lent to the batch job", size=13)
    d.text(612, 446, "... an owner changes within 2 us", anchor="start", size=13, kind="faint")
    d.box(640, 20, 240, 170, "plain")
    d.text(760, 42, "never", bold=True)
    for i, line in enumerate(["an interrupt to code that polls", "a blocking call on a lent core", "trust in a byte a program wrote", "a kernel module"]):
        d.text(652, 72 + 27 * i, f"\u2715 {line}", anchor="start", size=12)
    return d


def handoff():
    """A core goes from a batch job to a service. The times are the medians of `tailwater-lab bench handoff`."""
    d = Drawing(900, 400, "A core is handed over without an interrupt")
    lanes = [(70, "IOKernel", "core 0", "io"), (185, "batch kthread", "core 1", "batch"), (300, "service kthread", "core 1", "svc")]
    left, per_us = 210, 400
    at = lambda us: left + per_us * us
    for y, name, core, kind in lanes:
        d.text(16, y, name, anchor="start", bold=True, kind=kind)
        d.text(16, y + 18, core, anchor="start", size=12, kind="faint")
        d.line([(left - 60, y), (885, y)], "thin", width=1)
    # What runs where.
    d.box(at(0) - 60, 172, 60 + per_us * 0.52, 26, "batch", "", radius=2)
    d.text(at(0.29), 189, "a user thread computes", size=12)
    d.box(at(0.52), 172, per_us * 0.13, 26, "batch", "", size=12, radius=2)
    d.box(at(1.46), 287, 885 - at(1.46), 26, "svc", "", size=12, radius=2)
    d.text((at(1.46) + 885) / 2, 304, "runs", size=12)
    d.box(at(0) - 60, 57, 945 - at(0) + 0, 26, "io", "", radius=2)
    d.text(at(0) - 30, 74, "polls", size=12)
    d.text(at(0.85), 74, "polls on; makes no system call and sends no interrupt", size=12)
    # Events.
    d.dot(at(0), 70, "io")
    d.text(at(0), 30, "1  a request waits in the service's ring: lend it core 1", size=13, anchor="start")
    d.arrow([(at(0), 83), (at(0), 287)], "io", dashed=True)
    d.text(at(0.02), 250, "grant: Run(core 1)", size=12, anchor="start", mono=True)
    d.arrow([(at(0.06), 83), (at(0.12), 172)], "io", dashed=True)
    d.text(at(0.12), 128, "grant: Cede(service)", size=12, anchor="start", mono=True)
    d.dot(at(0.52), 185, "batch")
    d.text(at(0.52) - 4, 162, "2  poll point: the owner sees the request and saves its user thread", size=13, anchor="start")
    d.arrow([(at(0.65), 198), (at(0.65), 240), (at(1.46), 287)], "batch")
    d.text(at(0.68), 226, "3  state: Parked; wake if it sleeps; sched_yield", size=13, anchor="start")
    d.dot(at(1.46), 300, "svc")
    d.text(880, 268, "4  state: Running", size=13, anchor="end")
    # Time.
    d.arrow([(left - 60, 350), (888, 350)], "thin")
    for us, label in [(0, "0"), (0.65, "0.65 us: core given up"), (1.46, "1.46 us: the service runs")]:
        d.line([(at(us), 345), (at(us), 355)], "edge")
        d.text(at(us), 373, label, size=13)
    d.text(16, 354, "time (medians)", anchor="start", size=12, kind="faint")
    return d


def kthread():
    """Values of a kthread's state word."""
    d = Drawing(900, 300, "States of a kthread")
    spots = {"Parked": (60, 110), "Running": (330, 110), "Idle": (600, 40), "Taken": (600, 190)}
    for name, (x, y) in spots.items():
        d.box(x, y, 130, 52, "svc" if name != "Taken" else "io", name, size=16)
    d.arrow([(190, 126), (330, 126)], "svc")
    d.text(260, 116, "sees Run(g+1)", size=13)
    d.arrow([(330, 148), (190, 148)], "svc")
    d.text(260, 168, "sees Cede(g)", size=13)
    d.arrow([(460, 120), (600, 58)], "svc")
    d.text(512, 76, "nothing to run", size=13, anchor="end")
    d.arrow([(600, 82), (460, 140)], "svc")
    d.text(548, 128, "work appeared: CAS", size=12, anchor="start")
    d.arrow([(690, 92), (690, 190)], "io", dashed=True)
    d.text(700, 136, "the IOKernel takes", size=13, anchor="start")
    d.text(700, 154, "the core: CAS", size=13, anchor="start")
    d.arrow([(600, 216), (125, 216), (125, 162)], "svc")
    d.text(360, 206, "sees Cede(g)", size=13)
    d.arrow([(665, 40), (665, 16), (125, 16), (125, 110)], "svc")
    d.text(395, 32, "idle for 50 us, or sees Cede(g)", size=13)
    d.line([(60, 272), (100, 272)], "svc")
    d.text(108, 277, "written by the kthread", anchor="start", size=13)
    d.line([(320, 272), (360, 272)], "io", dashed=True)
    d.text(368, 277, "written by the IOKernel; of the two compare-and-swaps on Idle one succeeds", anchor="start", size=13)
    return d


def phases():
    """Phases in which the IOKernel follows a core."""
    d = Drawing(900, 250, "Phases of a core")
    spots = [("Free", 30), ("Starting", 250), ("Running", 480), ("Ceding", 720)]
    for name, x in spots:
        d.box(x, 90, 140, 52, "io", name, size=16)
    for (x0, x1), label in [((170, 250), "grant"), ((390, 480), "Running seen"), ((620, 720), "decision")]:
        d.arrow([(x0, 116), (x1, 116)], "io")
        d.text((x0 + x1) / 2, 106, label, size=12)
    d.arrow([(790, 142), (790, 196), (320, 196), (320, 142)], "io")
    d.text(555, 189, "Parked seen, or bypass: the successor starts", size=13)
    d.arrow([(550, 90), (550, 40), (100, 40), (100, 90)], "io")
    d.text(325, 33, "Parked seen, of the kthread's own accord", size=13)
    d.arrow([(270, 142), (270, 222), (100, 222), (100, 142)], "io", dashed=True)
    d.text(185, 240, "start-deadline: taken back", size=13)
    return d


def packets():
    """The way of a frame from one program to another."""
    d = Drawing(900, 430, "One copy from ring to ring")
    d.box(20, 20, 200, 200, "plain")
    d.text(120, 42, "program A", bold=True)
    d.box(35, 55, 170, 40, "svc", "user thread: send", size=13)
    d.box(35, 105, 170, 40, "svc", "network stack", size=13)
    d.arrow([(120, 95), (120, 105)])
    d.box(35, 168, 170, 40, "mem", "egress ring", size=13)
    d.arrow([(120, 145), (120, 168)])
    d.box(680, 20, 200, 200, "plain")
    d.text(780, 42, "program B", bold=True)
    d.box(695, 55, 170, 40, "batch", "user thread: recv", size=13)
    d.box(695, 105, 170, 40, "batch", "network stack", size=13)
    d.arrow([(780, 105), (780, 95)])
    d.box(695, 168, 170, 40, "mem", "ingress ring", size=13)
    d.arrow([(780, 168), (780, 145)])
    d.text(870, 160, "in place, 32 at a time", size=11, kind="faint", anchor="end")
    d.box(255, 250, 390, 160, "io")
    d.text(450, 272, "IOKernel", bold=True)
    steps = [
        "1  copy the first line (48 bytes) to private memory",
        "2  check it: source MAC and IP, lengths, firewall",
        "3  destination MAC: which program",
        "4  flow hash: which of 128 flow groups, which kthread",
        "5  copy the rest; publish the record",
    ]
    for i, step in enumerate(steps):
        d.text(272, 298 + 23 * i, step, anchor="start", size=13)
    d.arrow([(120, 208), (120, 330), (255, 330)], "mem")
    d.arrow([(645, 330), (780, 330), (780, 208)], "mem")
    d.text(188, 322, "polled", size=12, kind="faint")
    d.text(715, 322, "the one copy", size=12, kind="faint")
    d.arrow([(255, 380), (150, 380)], "io", both=True)
    d.box(30, 360, 120, 40, "plain", "port", size=13)
    # The ring.
    d.text(450, 40, "a ring: 64-byte lines, no head index", size=13, bold=True)
    x = 262
    for label, width, kind in [("header + frame", 150, "mem"), ("header + frame", 100, "mem"), ("0", 42, "plain"), ("free", 84, "plain")]:
        d.box(x, 55, width, 34, kind, label, size=12, radius=0)
        x += width
    d.text(450, 112, "a record takes whole lines and never wraps; the next", size=12, kind="faint")
    d.text(450, 128, "header is cleared before this record's is written", size=12, kind="faint")
    d.text(450, 175, "full: the IOKernel drops and counts at an ingress ring,", size=12, kind="faint")
    d.text(450, 191, "and a socket call waits at an egress ring", size=12, kind="faint")
    return d


def tls():
    """A user thread's stack, and the registers that lead to its thread-local storage."""
    d = Drawing(900, 400, "A user thread's stack and thread-local storage")
    d.text(330, 26, "one slot of memory per user thread", bold=True)
    rows = [
        (40, 44, "mem", ["thread control block: self pointer, stack guard"]),
        (84, 56, "mem", ["static thread-local storage", "errno, thread_local!, C's __thread"]),
        (140, 56, "svc", ["record: id, saved stack pointer, state"]),
        (196, 100, "svc", ["stack, grows downwards", "callee-saved registers while switched out"]),
        (296, 36, "plain", ["never touched: no memory"]),
        (332, 40, "batch", ["guard page"]),
    ]
    for y, h, kind, lines in rows:
        d.box(150, y, 360, h, kind, lines, size=13, radius=0)
    d.text(140, 52, "high", anchor="end", size=12, kind="faint")
    d.text(140, 368, "low", anchor="end", size=12, kind="faint")
    d.box(20, 69, 84, 30, "plain", "FS base", size=13)
    d.arrow([(104, 84), (150, 84)])
    d.box(20, 240, 84, 30, "plain", "RSP", size=13)
    d.arrow([(104, 255), (150, 255)])
    d.text(62, 117, "wrfsbase,", size=11, kind="faint")
    d.text(62, 131, "at each switch", size=11, kind="faint")
    d.text(330, 392, "a fault in the guard page ends the process and names the thread", size=12, kind="faint")
    d.box(590, 40, 290, 152, "plain")
    d.text(735, 62, "kthread (OS thread)", bold=True)
    d.box(605, 75, 260, 34, "io", "per-kthread data: run queue, caches", size=13)
    d.box(605, 114, 260, 34, "mem", "the OS thread's own TLS", size=13)
    d.text(735, 168, "used by the allocator, with preemption off", size=12, kind="faint")
    d.box(590, 215, 84, 30, "plain", "GS base", size=13)
    d.arrow([(632, 215), (575, 200), (575, 92), (605, 92)])
    d.text(684, 227, "set once per kthread; read by", anchor="start", size=12, kind="faint")
    d.text(684, 243, "assembly again after a switch", anchor="start", size=12, kind="faint")
    notes = [
        "A switch saves six registers and loads those of",
        "the next thread, its stack pointer and FS base.",
        "A thread that moves to another kthread keeps its",
        "thread-locals. What belongs to the kthread is",
        "found through GS and differs after the move.",
    ]
    for i, note in enumerate(notes):
        d.text(570, 286 + 21 * i, note, anchor="start", size=13)
    return d


def main():
    drawings = {f.__name__: f().finish() for f in [pieces, handoff, kthread, phases, packets, tls]}
    stale = []
    for name, text in drawings.items():
        path = IMAGES / f"{name}.svg"
        if "--check" not in sys.argv:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(path.name)
    if stale:
        sys.exit(f"run docs/diagrams/draw.py: {', '.join(stale)} in docs/src/images differ from what it draws")
    print(f"{len(drawings)} diagrams")


if __name__ == "__main__":
    main()
