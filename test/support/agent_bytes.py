# SPDX-License-Identifier: Apache-2.0
"""Encodes messages of the agent protocol (docs/protocol.md)."""
import struct

HELLO = b"\xacacc\x09"


def text(value):
    content = value.encode()
    return struct.pack("<I", len(content)) + content


def frame(kind, *fields):
    body = bytes([kind]) + b"".join(fields)
    return struct.pack("<I", len(body)) + body


def i32(*values):
    return struct.pack(f"<{len(values)}i", *values)


def enter(machine_rank=None, run_id="job", machines=(1, 2), last_call=30_000, heartbeat=5_000,
          agreed=(("the program", "train"), ("--zero_stage", "3")), only_asks=False, static=False,
          close=30_000, host="host", local_world_size=2, pid=4711,
          secret="00112233445566778899aabbccddeeff", role="default", agent="", in_round=None):
    """Message type 0: run id, terms, times in ms, machine, rounds and restarts so far, only_asks, agent, round."""
    terms = (bytes([static]) + i32(machines[1], machines[0], 0, 3) + struct.pack("<I", len(agreed))
             + b"".join(text(name) + text(value) for name, value in agreed))
    times = struct.pack("<5q", 600_000, last_call, heartbeat, 95_000, close)
    rank = b"\0" if machine_rank is None else b"\1" + i32(machine_rank)
    machine = (rank + text(host) + text("10.0.0.1") + struct.pack("<H", 29500)
               + i32(local_world_size, pid) + b"\0" + text(secret) + text(role))
    return frame(0, text(run_id), terms, times, machine, i32(0, 0),
                 bytes([only_asks]), text(agent), b"\0" if in_round is None else b"\1" + i32(in_round))


def end(kind):
    return frame(kind, i32(1), text("host"), i32(1), b"\1", b"\0", text("rank 1 failed"))


def number(code, value):
    """An optional that has this value."""
    return b"\1" + struct.pack("<" + code, value)


def rank_status(rank, local_rank, step, names=("parameters", "optimizer"), collective="all_reduce", line="a line"):
    """One running rank of `status`, with every value that a rank can have; `names`: of memory and of other values."""
    scalars = number("q", step) + b"".join(number("d", 0.1 * i + step) for i in range(9))
    memory = b"".join(text(name) + struct.pack("<q", 1 << 30) for name in names)
    values = b"".join(text(name) + struct.pack("<d", 0.5) for name in names)
    size = struct.pack("<I", len(names))
    machine = number("q", 10) + number("q", 1 << 31) + number("d", 99.5) + number("d", 88.0) + number("q", 1 << 34)
    return (i32(rank, local_rank, 1000 + rank) + b"\1" + scalars + size + memory + size + values + machine
            + text(collective) + b"\0" + struct.pack("<I", 1) + text(line))


def status(ranks):
    """Message type 8: a list of `rank_status`."""
    return frame(8, struct.pack("<I", len(ranks)), *ranks)


def failure_report(json):
    """Message type 9."""
    return frame(9, text(json))
