# SPDX-License-Identifier: Apache-2.0
"""Attacks that the server must withstand. Each takes a Victim and leaves nothing in the store."""
import contextlib
import os
import random
import socket
import struct

from agent_bytes import HELLO, end, enter, frame
from store_bytes import (ADD, APPEND, BARRIER, CHECK, GET, LIST_KEYS, MULTI_GET, MULTI_SET, PING, SET,
                         VALIDATE, WAIT, StoreClient, keys_request, multi_set, ping, request, u64)

MIB = 1 << 20
LIMIT = 8 * MIB  # limit of a value
PATIENCE = 120  # timeout in seconds of a peer that waits for an answer or for the end of its connection


class Victim:
    """The server to attack, and the random numbers of one attacker."""

    def __init__(self, port, seed):
        self.port = port
        self.dice = random.Random(seed)
        self.name = f"/bad/{seed}/".encode()

    def connect(self):
        peer = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return peer

    @contextlib.contextmanager
    def peers(self, count):
        with contextlib.ExitStack() as stack:
            yield [stack.enter_context(self.connect()) for _ in range(count)]


def expect_closed(peer):
    """The server must close this connection; data before the end is ignored."""
    with contextlib.suppress(ConnectionResetError):
        while peer.recv(1 << 16):
            pass


def send_and_be_closed(victim, content):
    with victim.connect() as peer:
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            peer.sendall(content)
        expect_closed(peer)


def say_once(victim, content):
    """Sends bytes and shuts down; the server must then close the connection, whatever it answers."""
    with victim.connect() as peer, contextlib.suppress(OSError):
        peer.sendall(content)
        peer.shutdown(socket.SHUT_WR)
        expect_closed(peer)


def strangers(victim):
    """Clients of other protocols that try this port, and random bytes."""
    for hello in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + os.urandom(500),
                  b"SSH-2.0-OpenSSH_9.2\r\n", b"\xff" * 1000, victim.dice.randbytes(5000)):
        say_once(victim, hello)


def bad_magic(victim):
    for content in (b"\0\0\0\0\0", b"\0\xce\xf7\x85\x3d", VALIDATE + VALIDATE, b"\x01" + VALIDATE):
        send_and_be_closed(victim, content + ping(1))


def impossible_lengths(victim):
    for length in (LIMIT + 1, 1 << 40, 1 << 63, (1 << 64) - 1):
        for begin in (b"\1", b"\1" + u64(1) + b"k", bytes([GET]), bytes([APPEND]) + u64(0), bytes([19]) ):
            send_and_be_closed(victim, VALIDATE + begin + u64(length) + b"x" * 100)
    for opcode in (CHECK, WAIT, MULTI_GET, MULTI_SET):
        for count in (131_073, 1 << 40, 1 << 63, (1 << 64) - 1):
            send_and_be_closed(victim, VALIDATE + bytes([opcode]) + u64(count) + u64(1) + b"k")


def truncated_frames(victim):
    """Frames truncated at any position, then a shutdown or a reset."""
    whole = VALIDATE + multi_set([(victim.name + b"t", b"v" * 3000)] * 3)
    for _ in range(30):
        with victim.connect() as peer:
            peer.sendall(whole[:victim.dice.randrange(len(whole) - 1)])
            if victim.dice.random() < 0.5:
                reset_on_close(peer)


def slow_writer(victim):
    """A client that sends one byte at a time must be answered."""
    with victim.connect() as peer:
        for byte in VALIDATE + request(ADD, victim.name + b"slow", number=2) + request(8, victim.name + b"slow"):
            peer.sendall(bytes([byte]))
        answer = b""
        while len(answer) < 16:
            part = peer.recv(16 - len(answer))
            assert part, "the server closed on a slow client"
            answer += part
        assert answer == struct.pack("<2q", 2, 1)


def never_readers(victim):
    """Clients that request much data and read nothing."""
    client = StoreClient(victim.port)
    key = victim.name + b"large"
    client.set(key, b"v" * MIB)
    client.ping()
    with victim.peers(8) as peers:
        for peer in peers:
            peer.settimeout(0.05)
            with contextlib.suppress(OSError):
                peer.sendall(VALIDATE + request(GET, key) * 2000)
        for peer in peers:
            with contextlib.suppress(OSError):
                while True:
                    peer.sendall(ping(1) * 10_000 + bytes([LIST_KEYS]) * 10_000)
    client.delete(key)
    client.close()


def multi_get_bomb(victim):
    """A small request for a reply of gigabytes."""
    client = StoreClient(victim.port)
    key = victim.name + b"bomb"
    client.set(key, b"v" * LIMIT)
    client.ping()
    send_and_be_closed(victim, VALIDATE + keys_request(MULTI_GET, [key] * 100_000))
    client.delete(key)
    client.close()


def half_open(victim):
    """Hundreds of connections that begin a frame and never continue."""
    begins = (b"", b"\0", VALIDATE[:4], VALIDATE, VALIDATE + b"\1", VALIDATE + request(SET, b"k", b"v")[:-1],
              VALIDATE + b"\1" + u64(1) + b"k" + u64(LIMIT), HELLO[:2], HELLO, HELLO + b"\xff\xff")
    with victim.peers(300) as peers:
        for peer in peers:
            peer.sendall(victim.dice.choice(begins))
        StoreClient(victim.port).close()


def flood(victim):
    """Thousands of connections at once, some of them valid clients, which must all be answered."""
    with victim.peers(2000) as peers:
        for peer in peers[::10]:
            peer.sendall(VALIDATE + ping(7))
        for peer in peers[::10]:
            assert peer.recv(4, socket.MSG_WAITALL) == struct.pack("<I", 7)


def reset_on_close(peer):
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def connect_and_reset(victim):
    for _ in range(1000):
        with victim.connect() as peer:
            reset_on_close(peer)
            if victim.dice.random() < 0.3:
                peer.sendall(VALIDATE + keys_request(WAIT, [victim.name + b"never"]))


def waiting_resets(victim):
    """Registered waits of clients that disconnect must be removed."""
    keys = [victim.name + b"%d" % i for i in range(20_000)]
    with victim.peers(5) as peers:
        for peer in peers:
            peer.sendall(VALIDATE + keys_request(WAIT, keys) + ping(3))
            assert peer.recv(4, socket.MSG_WAITALL) == struct.pack("<I", 3)
            peer.sendall(request(BARRIER, victim.name + b"world", number=1 << 62))
            reset_on_close(peer)
    client = StoreClient(victim.port)
    client.delete(victim.name + b"world")
    client.close()


def large_sets(victim):
    """Many clients that set values of 8 MiB at once, in complete and in unfinished frames."""
    clients = [StoreClient(victim.port) for _ in range(4)]
    keys = [victim.name + b"%d" % i for i in range(3)]
    for client in clients:
        client.send(multi_set([(key, b"p" * LIMIT) for key in keys]))
    for client in clients:
        client.ping()
        client.send(multi_set([(key, b"q" * LIMIT) for key in keys])[:-1])
    for client in clients[1:]:
        client.close()
    clients[0].send(b"q")
    for key in keys:
        assert clients[0].get(key)[:1] in (b"p", b"q")
        assert clients[0].delete(key) == 1
    clients[0].close()


def hoarders(victim):
    """Unfinished requests that use all memory for requests: a client with a large request must still
    be served. Not concurrent with other attacks, whose connections would be closed instead."""
    good = StoreClient(victim.port)
    most = multi_set([(b"%d" % i, b"h" * LIMIT) for i in range(63)])[:-1]
    with victim.peers(3) as peers:
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.sendall(VALIDATE + most)
        for piece in (b"a", b"b", b"c"):
            good.set(victim.name, piece * LIMIT)
            assert good.get(victim.name) == piece * LIMIT
    good.delete(victim.name)
    good.close()


def largest_keys(victim):
    key = victim.name.ljust(8192, b"k")
    client = StoreClient(victim.port)
    client.set(key, b"v")
    assert client.get(key) == b"v"
    assert client.delete(key) == 1
    client.wait([])
    client.send(keys_request(CHECK, [victim.name + b"absent"] * 131_072))
    assert client.read(1) == b"\1"
    client.close()
    send_and_be_closed(victim, VALIDATE + request(SET, key + b"k", b"v"))


def noise_after_handshake(victim):
    for hello in (VALIDATE, HELLO, HELLO + enter(run_id="noise")):
        for _ in range(10):
            with victim.connect() as peer:
                with contextlib.suppress(OSError):
                    peer.sendall(hello + victim.dice.randbytes(victim.dice.randrange(1, 2000)))
                    peer.shutdown(socket.SHUT_WR)
                    expect_closed(peer)


def flipped_bits(victim):
    """Valid messages of clients and agents with some flipped bits."""
    rights = (VALIDATE + request(SET, victim.name, b"v") + request(GET, victim.name) + ping(1),
              HELLO + enter(run_id="flipped") + frame(2) + end(3) + frame(5, b"\1", u64(0)[:4]))
    for _ in range(50):
        content = bytearray(victim.dice.choice(rights))
        for _ in range(victim.dice.randrange(1, 4)):
            content[victim.dice.randrange(5, len(content))] ^= 1 << victim.dice.randrange(8)
        say_once(victim, content)


def agents_that_vanish(victim):
    """Agents that enter jobs and disconnect, with or without a goodbye; some send no heartbeats."""
    with victim.peers(100) as peers:
        for i, peer in enumerate(peers):
            job = f"vanish{victim.dice.randrange(5)}"
            peer.sendall(HELLO + enter(run_id=job, machines=(2, 4), last_call=10, heartbeat=500))
            if i % 3 == 0:
                peer.sendall(frame(6))
            if i % 2 == 0:
                reset_on_close(peer)


def silent_agents(victim):
    """Agents that enter and send no heartbeats: the server must drop them."""
    with victim.peers(20) as peers:
        for peer in peers:
            peer.sendall(HELLO + enter(run_id="silent", machines=(30, 30), heartbeat=100))
        for peer in peers:
            expect_closed(peer)


def beats_unread(victim):
    """An agent that requests answers and does not read them."""
    with victim.connect() as peer:
        peer.settimeout(0.05)
        with contextlib.suppress(OSError):
            peer.sendall(HELLO + enter(run_id="beats", machines=(30, 30)))
            while True:
                peer.sendall(frame(2) * 10_000)


def many_jobs(victim):
    """One job per agent, with the longest name; some complete a round."""
    with victim.peers(300) as peers:
        for i, peer in enumerate(peers):
            job = f"many{os.getpid()}.{i}".ljust(1024, "j")
            peer.sendall(HELLO + enter(run_id=job, machines=(1 + i % 2, 2), last_call=0))
            if i % 2 == 0:
                peer.sendall(frame(5, b"\0", struct.pack("<I", 0)))


def agents_out_of_turn(victim):
    """Every message in an unexpected state, also after one that ends the connection."""
    messages = [enter(run_id="turn"), enter(5, run_id="turn"), frame(1, b"\1\0"), frame(2), end(3), frame(4),
                frame(5, b"\0", u64(0)[:4]), frame(6)]
    for _ in range(50):
        with victim.connect() as peer:
            with contextlib.suppress(OSError):
                peer.sendall(HELLO + b"".join(victim.dice.choices(messages, k=6)))
                peer.shutdown(socket.SHUT_WR)
                expect_closed(peer)


ATTACKS = (strangers, bad_magic, impossible_lengths, truncated_frames, slow_writer, never_readers, multi_get_bomb,
           half_open, flood, connect_and_reset, waiting_resets, large_sets, largest_keys, noise_after_handshake,
           flipped_bits, agents_that_vanish, silent_agents, beats_unread, many_jobs, agents_out_of_turn)
