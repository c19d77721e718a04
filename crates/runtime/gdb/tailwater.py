"""User threads of a Tailwater program in gdb. Load with: source crates/runtime/gdb/tailwater.py

    tailwater threads     lists them: id, record, what each does
    tailwater bt ID       the backtrace of a suspended one

Works on live processes, of any build: it reads the symbol TAILWATER_USER_THREADS (crates/runtime/src/records/registry.rs), which
holds the list's head and the offsets in a record. A thread that runs is one of gdb's own: `info threads`, `thread N`, `bt`.
gdb cannot change registers of a core file, so `tailwater bt` works in none; `tailwater threads` does.
"""

import struct

import gdb

# What arch::switch saves, from the saved stack pointer up.
SAVED = ["r15", "r14", "r13", "r12", "rbx", "rbp", "rip"]
PARK_STATES = ["suspended", "suspended, with a token", "parked"]


def words(address, count):
    data = gdb.selected_inferior().read_memory(address, 8 * count).tobytes()
    return struct.unpack("<%dQ" % count, data)


def threads():
    """(id, record, saved stack pointer or None, park state) of every user thread."""
    symbol = int(gdb.parse_and_eval("(unsigned long)&TAILWATER_USER_THREADS"))
    record, rsp, on_cpu, word, link = words(symbol, 5)
    while record:
        identity = words(record + word, 1)[0]
        if identity:
            running = gdb.selected_inferior().read_memory(record + on_cpu, 1)[0] != b"\0"
            saved = None if running else words(record + rsp, 1)[0]
            yield identity >> 2, record, saved, PARK_STATES[identity & 3]
        record = words(record + link, 1)[0]


class Tailwater(gdb.Command):
    """User threads of a Tailwater program."""

    def __init__(self):
        super().__init__("tailwater", gdb.COMMAND_STACK, prefix=True)


class Threads(gdb.Command):
    """List the user threads."""

    def __init__(self):
        super().__init__("tailwater threads", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        for number, record, saved, state in sorted(threads()):
            print("%6d  record %#x  %s" % (number, record, "running" if saved is None else state))


class Backtrace(gdb.Command):
    """Backtrace of the suspended user thread with the given id."""

    def __init__(self):
        super().__init__("tailwater bt", gdb.COMMAND_STACK)

    def invoke(self, argument, from_tty):
        wanted = int(argument)
        found = [saved for number, _, saved, _ in threads() if number == wanted]
        if not found:
            raise gdb.GdbError("there is no user thread %d" % wanted)
        if found[0] is None:
            raise gdb.GdbError("user thread %d is running: look for it with `info threads`" % wanted)
        gdb.execute("select-frame 0")
        before = {name: int(gdb.parse_and_eval("(unsigned long)$" + name)) for name in SAVED + ["rsp"]}
        after = dict(zip(SAVED, words(found[0], len(SAVED))), rsp=found[0] + 8 * len(SAVED))
        try:
            self.load(after)
            gdb.execute("backtrace")
        finally:
            self.load(before)

    @staticmethod
    def load(registers):
        for name, value in registers.items():
            gdb.execute("set $%s = %d" % (name, value))


Tailwater()
Threads()
Backtrace()
