# SPDX-License-Identifier: Apache-2.0
"""Encodes the TCPStore protocol; a client that checks every reply."""
import itertools
import os
import socket
import struct

VALIDATE = bytes.fromhex("00cef7853c")
(SET, COMPARE_SET, GET, ADD, CHECK, WAIT, NUM_KEYS, DELETE_KEY, APPEND, MULTI_GET, MULTI_SET,
 CANCEL_WAIT, PING, QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, LIST_KEYS, BARRIER) = range(1, 19)


def u64(number):
    return struct.pack("<Q", number)


def string(content):
    return u64(len(content)) + content


def request(opcode, *strings, number=None):
    tail = b"" if number is None else struct.pack("<q", number)
    return bytes([opcode]) + b"".join(map(string, strings)) + tail


def keys_request(opcode, keys):
    return bytes([opcode]) + u64(len(keys)) + b"".join(map(string, keys))


def multi_set(pairs):
    return bytes([MULTI_SET]) + u64(len(pairs)) + b"".join(string(k) + string(v) for k, v in pairs)


def ping(nonce):
    return bytes([PING]) + struct.pack("<I", nonce)


class StoreClient:
    """A blocking client. Checks every reply that has a fixed value."""

    nonces = itertools.count(os.getpid() << 8)

    def __init__(self, port, host="127.0.0.1"):
        self.socket = socket.create_connection((host, port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.send(VALIDATE)
        self.ping()

    def close(self):
        self.socket.close()

    def send(self, content):
        self.socket.sendall(content)

    def read(self, count):
        content = b""
        while len(content) < count:
            part = self.socket.recv(count - len(content))
            if not part:
                raise ConnectionError(f"the server closed after {len(content)} bytes of {count}")
            content += part
        return content

    def integer(self):
        return struct.unpack("<q", self.read(8))[0]

    def string(self):
        return self.read(self.integer())

    def ping(self):
        nonce = next(self.nonces) & 0xFFFFFFFF
        self.send(ping(nonce))
        assert self.read(4) == struct.pack("<I", nonce)

    def set(self, key, value):
        self.send(request(SET, key, value))

    def get(self, key):
        self.wait([key])
        self.send(request(GET, key))
        return self.string()

    def add(self, key, delta):
        self.send(request(ADD, key, number=delta))
        return self.integer()

    def wait(self, keys):
        self.send(keys_request(WAIT, keys))
        assert self.read(1) == b"\0"

    def barrier(self, key, world_size):
        self.send(request(BARRIER, key, number=world_size))
        assert self.read(1) == b"\0"

    def multi_set(self, pairs):
        self.send(multi_set(pairs))

    def multi_get(self, keys):
        self.send(keys_request(MULTI_GET, keys))
        return [self.string() for _ in keys]

    def delete(self, key):
        self.send(request(DELETE_KEY, key))
        return self.integer()
