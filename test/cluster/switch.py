# SPDX-License-Identifier: Apache-2.0
"""The network between virtual hosts: an Ethernet switch whose links can be broken.

Runs in its own network namespace. Every port is one end of a veth pair, named "v<number>" after
the host at its other end; the host's MAC address ends in that number. Reads commands from standard
input, one per line, and replies "ok" when a command has taken effect:

    plug N            the interface v<N> exists now    unplug N    disconnects host N
    cut A B           drops all frames between A and B heal        removes all faults
    loss N PERCENT    drops frames to and from N       delay N MS  delays each frame to and from N
    rate A B KBPS     kbit/s in each direction         block A B LOW HIGH
                                                       no TCP connection from A to ports LOW..HIGH of
                                                       B: drops the first packet, as a firewall does

The kernel's own features for this (netem, nftables) are not part of every kernel.
"""
import collections
import heapq
import itertools
import random
import select
import socket
import sys
import time

PACKET_IGNORE_OUTGOING, PACKET_VNET_HDR = 23, 15
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
SOL_PACKET, PACKET_ADD_MEMBERSHIP, PACKET_MR_PROMISC = 263, 1, 1
ETH_P_ALL = 3
VNET_HEADER = 10  # bytes before the frame: virtio header with the work left to the network card
LARGEST = VNET_HEADER + 14 + (1 << 16)


PORT_BUFFER = 16 << 20  # bytes that may wait at a port, for the switch or for the host
LONGEST_QUEUE = 0.2  # seconds of frames queued before a link with a rate; later frames are dropped


def connects_to(frame):
    """Returns the destination port if this frame opens a TCP connection over IPv4, otherwise None."""
    ip = frame[VNET_HEADER + 14:]
    if frame[VNET_HEADER + 12:VNET_HEADER + 14] != b"\x08\x00" or ip[9] != socket.IPPROTO_TCP:
        return None
    tcp = ip[(ip[0] & 15) * 4:]
    is_first = tcp[13] & 0x12 == 0x02  # SYN without ACK
    return int.from_bytes(tcp[2:4], "big") if is_first else None


class Switch:
    def __init__(self):
        self.ports = {}  # number of the host -> socket
        self.cuts = set()
        self.loss = collections.Counter()  # percent
        self.delay = collections.Counter()  # seconds
        self.rate = {}  # pair of hosts -> bits per second in each direction
        self.free_at = collections.Counter()  # (source, target) -> time when a link with a rate becomes idle
        self.blocks = {}  # (source, target) -> range of ports
        self.late = []  # heap of (due time, number of the frame, port, frame)
        self.delayed = itertools.count()
        self.random = random.Random(7)
        self.poll = select.poll()
        self.poll.register(sys.stdin, select.POLLIN)
        self.by_descriptor = {}

    def plug(self, number):
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
        port.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)  # frames keep deferred checksums and segmentation
        port.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        port.bind((f"v{number}", ETH_P_ALL))
        membership = socket.if_nametoindex(f"v{number}").to_bytes(4, sys.byteorder)
        membership += PACKET_MR_PROMISC.to_bytes(2, sys.byteorder) + bytes(10)
        port.setsockopt(SOL_PACKET, PACKET_ADD_MEMBERSHIP, membership)
        # The kernel's default would lose a quarter of the segments that four hosts send at once.
        for buffer in (SO_SNDBUFFORCE, SO_RCVBUFFORCE):
            port.setsockopt(socket.SOL_SOCKET, buffer, PORT_BUFFER)
        port.setblocking(False)
        self.ports[number] = port
        self.by_descriptor[port.fileno()] = number
        self.poll.register(port, select.POLLIN)

    def unplug(self, number):
        if number not in self.ports:
            return
        port = self.ports.pop(number)
        self.poll.unregister(port)
        del self.by_descriptor[port.fileno()]
        port.close()

    def heal(self):
        self.cuts.clear()
        self.loss.clear()
        self.delay.clear()
        self.rate.clear()
        self.blocks.clear()

    def command(self, line):
        name, *numbers = line.split()
        numbers = [int(number) for number in numbers]
        if name == "cut":
            self.cuts.add(frozenset(numbers))
        elif name == "loss":
            self.loss[numbers[0]] = numbers[1]
        elif name == "delay":
            self.delay[numbers[0]] = numbers[1] / 1000
        elif name == "rate":
            self.rate[frozenset(numbers[:2])] = numbers[2] * 1000
        elif name == "block":
            self.blocks[tuple(numbers[:2])] = range(numbers[2], numbers[3] + 1)
        else:
            {"plug": self.plug, "unplug": self.unplug, "heal": self.heal}[name](*numbers)
        print("ok", flush=True)

    def receive(self, source):
        for _ in range(64):  # at most 64 frames, so that other ports are served too
            try:
                frame = self.ports[source].recv(LARGEST)
            except (BlockingIOError, KeyError):
                return
            except OSError:  # the host has crashed
                return
            target = frame[VNET_HEADER + 5]  # last byte of the destination's address
            group = frame[VNET_HEADER] & 1
            for number in list(self.ports) if group else [target]:
                if number != source and number in self.ports:
                    self.forward(source, number, frame)

    def forward(self, source, target, frame):
        if frozenset((source, target)) in self.cuts:
            return
        if connects_to(frame) in self.blocks.get((source, target), ()):
            return
        for end in (source, target):
            if self.random.uniform(0, 100) < self.loss[end]:
                return
        delay = self.delay[source] + self.delay[target]
        if rate := self.rate.get(frozenset((source, target))):
            waiting = max(0.0, self.free_at[source, target] - time.monotonic())
            if waiting > LONGEST_QUEUE:
                return
            delay += waiting + 8 * len(frame) / rate
            self.free_at[source, target] = time.monotonic() + waiting + 8 * len(frame) / rate
        if delay == 0:
            self.send(target, frame)
        else:
            heapq.heappush(self.late, (time.monotonic() + delay, next(self.delayed), target, frame))

    def send(self, target, frame):
        try:
            self.ports[target].send(frame)
        except (OSError, KeyError):
            pass  # its queue is full, or the host has crashed: the frame is lost

    def send_late(self):
        now = time.monotonic()
        while self.late and self.late[0][0] <= now:
            _, _, target, frame = heapq.heappop(self.late)
            self.send(target, frame)

    def run(self):
        print("ok", flush=True)
        while True:
            wait = None
            if self.late:
                wait = max(0.0, self.late[0][0] - time.monotonic()) * 1000 + 1
            for descriptor, _ in self.poll.poll(wait):
                if descriptor != sys.stdin.fileno():
                    self.receive(self.by_descriptor.get(descriptor))
                    continue
                line = sys.stdin.readline()
                if not line:
                    return
                self.command(line)
            self.send_late()


if __name__ == "__main__":
    Switch().run()
