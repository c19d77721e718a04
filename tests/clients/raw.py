"""A program without a runtime, written from docs/src/protocols/control.md and memory.md alone.

Registers, maps its region, and lends its only thread as a kthread. Then it learns a station's MAC address by ARP and
sends it datagrams, each of which the station has to send back; they fill both rings more than once.

Arguments: the IOKernel's control socket, the version of the protocols, the station's address, its UDP port. Prints "ok",
or fails.
"""

import array
import ctypes
import ipaddress
import json
import mmap
import os
import socket
import struct
import sys
import threading
import time

PATIENCE_S = 230
EXCHANGES = 36
RING_BYTES = 32768
LINES = RING_BYTES // 64
# Kinds of the grant word, states of the state word, kinds of records.
RUN, CEDE = 1, 2
PARKED, RUNNING = 0, 1
FRAME, WRAP = 1, 2
OWN_PORT = 4100


class Conversation:
    """The control socket."""

    def __init__(self, address):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(PATIENCE_S)
        self.socket.connect("\0" + address[1:] if address.startswith("@") else address)

    def ask(self, message):
        """Sends a message; returns the answer and the descriptors that came with it."""
        self.socket.send(json.dumps(message).encode())
        data, ancillary, _, _ = self.socket.recvmsg(196608, socket.CMSG_SPACE(16))
        descriptors = array.array("i")
        for level, kind, rights in ancillary:
            assert (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS)
            descriptors.frombytes(rights)
        return json.loads(data), list(descriptors)


class Region:
    """The memory shared with the IOKernel, for one kthread."""

    RINGS = 4096 + 4096
    INGRESS, EGRESS = RINGS, RINGS + RING_BYTES

    def __init__(self, descriptor, doorbell):
        # With all its pages, which are charged to this program.
        self.memory = mmap.mmap(descriptor, os.fstat(descriptor).st_size, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self.doorbell = doorbell
        assert self.memory[:8] == b"tailwatr"
        version, kthreads, lines, attached = struct.unpack_from("<IIII", self.memory, 8)
        # The IOKernel's: of this major number, and of no lower minor one.
        assert version & 0xFFFF == VERSION & 0xFFFF and version >= VERSION, hex(version)
        assert (kthreads, lines, attached) == (1, LINES, 0)
        self.word(20, ctypes.c_uint32).value = 1
        self.grant, self.state = self.word(4096), self.word(4096 + 64)
        self.queue_tail = self.word(4096 + 132, ctypes.c_uint32)
        self.ingress_read, self.egress_read = self.word(4096 + 192), self.word(4096 + 256)
        self.generation, self.read, self.written = 0, 0, 0

    def word(self, offset, kind=ctypes.c_uint64):
        """A word that is loaded and stored whole."""
        return kind.from_buffer(self.memory, offset)

    def attend(self):
        """Does what the grant says; returns once the kthread has a core."""
        while True:
            grant = self.grant.value
            kind, generation = grant >> 16 & 0xFFFF, grant >> 32
            if kind == RUN and generation != self.generation:
                self.generation = generation
                self.state.value = generation << 32 | RUNNING
            elif kind == CEDE and generation == self.generation and self.state.value & 0xFFFFFFFF != PARKED:
                # There is work left.
                self.park()
            if self.state.value & 0xFFFFFFFF == RUNNING:
                return
            assert time.monotonic() < DEADLINE, "no core was lent"
            time.sleep(0.001)

    def park(self):
        self.state.value = self.generation << 32 | PARKED
        os.write(self.doorbell, (1).to_bytes(8, sys.byteorder))

    def header(self, ring, position):
        return self.word(ring + position % LINES * 64)

    @staticmethod
    def lap(position):
        return position // LINES % 64

    def send(self, frame):
        """Puts a frame into the egress ring, when there is room for it."""
        lines = -(-(16 + len(frame)) // 64)
        to_end = LINES - self.written % LINES
        skip = to_end if lines > to_end else 0
        while LINES - self.written + self.egress_read.value < skip + lines + 1:
            self.attend()
            assert time.monotonic() < DEADLINE, "the egress ring stays full"
        if skip:
            self.header(self.EGRESS, 0).value = 0
            marker = (WRAP | self.lap(self.written) << 2) << 16
            self.header(self.EGRESS, self.written).value = marker
            self.written += skip
        at = self.EGRESS + self.written % LINES * 64
        self.memory[at + 8:at + 16] = bytes(8)
        self.memory[at + 16:at + 16 + len(frame)] = frame
        self.header(self.EGRESS, self.written + lines).value = 0
        kind = FRAME | self.lap(self.written) << 2
        self.header(self.EGRESS, self.written).value = len(frame) | kind << 16
        self.written += lines
        os.write(self.doorbell, (1).to_bytes(8, sys.byteorder))

    def receive(self):
        """Returns the next frame of the ingress ring."""
        while True:
            self.attend()
            header = self.header(self.INGRESS, self.read).value
            if header == 0:
                assert time.monotonic() < DEADLINE, "no frame came"
                continue
            length, kind = header & 0xFFFF, header >> 16 & 0xFF
            assert kind >> 2 == self.lap(self.read), (header, self.read)
            if kind & 3 == WRAP:
                self.read += LINES - self.read % LINES
                continue
            assert kind & 3 == FRAME and 14 <= length <= 9018, header
            at = self.INGRESS + self.read % LINES * 64 + 16
            frame = self.memory[at:at + length]
            self.read += -(-(16 + length) // 64)
            self.ingress_read.value = self.read
            return frame


def checksum(header):
    total = sum(struct.unpack(f">{len(header) // 2}H", header))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def datagram(own, station, port, payload):
    """A UDP datagram without checksum, from Ethernet on; `own` and `station` are pairs of MAC and IP address."""
    total = 28 + len(payload)
    addresses = own[1] + station[1]
    start = struct.pack(">BBHHHBB", 0x45, 0, total, 0, 0x4000, 64, 17)
    ip = start + struct.pack(">H", checksum(start + bytes(2) + addresses)) + addresses
    udp = struct.pack(">HHHH", OWN_PORT, port, total - 20, 0)
    return station[0] + own[0] + b"\x08\x00" + ip + udp + payload


def main(address, station, port):
    iokernel = Conversation(address)
    program = {"version": VERSION, "name": "raw", "kthreads": 1, "guaranteed": 0, "class": "latency-critical",
               "ring-bytes": RING_BYTES}
    answer, descriptors = iokernel.ask({"register": program})
    welcome = answer["welcome"]
    assert welcome["mtu"] >= 1400
    region = Region(descriptors[0], descriptors[1])
    answer, _ = iokernel.ask({"kthreads": {"tids": [threading.get_native_id()]}})
    assert answer == "ready", answer
    # One thread of the program is ready to run.
    region.queue_tail.value = 1
    os.write(region.doorbell, (1).to_bytes(8, sys.byteorder))
    region.attend()
    ip = ipaddress.IPv4Address(station).packed
    own = bytes(welcome["mac"]), ipaddress.IPv4Address(welcome["ip"]).packed
    request = b"\xff" * 6 + own[0] + b"\x08\x06" + struct.pack(">HHBBH", 1, 0x0800, 6, 4, 1)
    region.send(request + own[0] + own[1] + bytes(6) + ip)
    reply = region.receive()
    assert reply[12:14] == b"\x08\x06" and reply[28:32] == ip, reply
    peer = reply[22:28], ip
    for number in range(EXCHANGES):
        payload = bytes([number]) * (1300 + number)
        region.send(datagram(own, peer, port, payload))
        back = region.receive()
        assert back[26:30] == ip and back[42:] == payload, back
    region.queue_tail.value = 0
    region.park()
    print("ok")


DEADLINE = time.monotonic() + PATIENCE_S
VERSION = int(sys.argv[2])
main(sys.argv[1], sys.argv[3], int(sys.argv[4]))
