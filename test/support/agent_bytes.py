# SPDX-License-Identifier: Apache-2.0
"""Encodes messages of the agent protocol (docs/protocol.md)."""
import struct

HELLO = b"\xacacc\6"


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
          secret="00112233445566778899aabbccddeeff", agent="", in_round=None):
    """Message type 0: run id, terms, times in ms, machine, rounds and restarts so far, only_asks, agent, round."""
    terms = (bytes([static]) + i32(machines[1], machines[0], 0, 3) + struct.pack("<I", len(agreed))
             + b"".join(text(name) + text(value) for name, value in agreed))
    times = struct.pack("<5q", 600_000, last_call, heartbeat, 95_000, close)
    rank = b"\0" if machine_rank is None else b"\1" + i32(machine_rank)
    machine = (rank + text(host) + text("10.0.0.1") + struct.pack("<H", 29500)
               + i32(local_world_size, pid) + b"\0" + text(secret))
    return frame(0, text(run_id), terms, times, machine, i32(0, 0),
                 bytes([only_asks]), text(agent), b"\0" if in_round is None else b"\1" + i32(in_round))


def end(kind):
    return frame(kind, i32(1), text("host"), i32(1), b"\1", b"\0", text("rank 1 failed"))
