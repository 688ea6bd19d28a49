#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the seeds of the fuzz targets: make_corpus.py FOLDER (in this folder: corpus).

Sources: the recorded exchanges of PyTorch's TCPStore (test/data/tcpstore), the messages of one agent
(docs/protocol.md), and files that torch.save and Python's pickle wrote. Inputs that fuzzing has found
are not changed."""

import collections
import io
import json
import pickle
import struct
import sys
import zipfile
from pathlib import Path

TEST = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TEST / "support"))
from agent_bytes import HELLO, end, enter, frame, i32, text

TORCH_SAVE = TEST / "data/checkpoints/torch_save"
VECTORS = TEST / "data/tcpstore/vectors.json"
WHOLE = bytes(8)  # eight lengths of pieces, see Cuts in input.hpp: all bytes at once
CUT = bytes([1, 2, 3, 5, 8, 13, 0, 1])
SMALL = 4096  # limit in bytes: larger seeds make the fuzzer slow


def store_seeds():
    """Yields name, chunks of (connection, bytes) with handshakes, and replies."""
    for vector in json.loads(VECTORS.read_text()):
        if "steps" in vector:
            chunks = [(step["conn"], bytes.fromhex(step["send_hex"])) for step in vector["steps"]]
        else:
            chunks = [(0, bytes.fromhex(vector["client_sends_hex"]))]
        if chunks[0][1][0] != 0:  # recorded without the handshake
            chunks.insert(0, (0, bytes.fromhex("00cef7853c")))
        if sum(len(sent) for _, sent in chunks) <= SMALL:
            replies = bytes.fromhex(vector.get("server_replies_hex", ""))
            yield vector["kind"] + "_" + vector["name"], chunks, replies


def status(rank=1, step=7, loss=2.5, name="accuracy", line="step 7"):
    """Message type 8 with one rank."""
    metrics = (b"\1" + struct.pack("<q", step) + b"\1" + struct.pack("<d", loss) + b"\0" * 8
               + struct.pack("<I", 1) + text("activations") + struct.pack("<q", 4096)
               + struct.pack("<I", 1) + text(name) + struct.pack("<d", 0.5))
    return frame(8, struct.pack("<I", 1), i32(rank, 0, 4711), b"\1", metrics, b"\1" + struct.pack("<q", 20),
                 b"\1" + struct.pack("<q", 1 << 20), b"\1" + struct.pack("<d", 99.5), b"\0\0", text("all_gather 7, waiting"), b"\1" + struct.pack("<q", 3000),
                 struct.pack("<I", 1) + text(line))


def agent_frames():
    return [enter(None), enter(1), enter(only_asks=True), enter(agreed=()), frame(1, struct.pack("<H", 29501)), frame(2), end(3), frame(4),
            frame(5, b"\1", text("a report")), frame(6), frame(7), enter(agent="01" * 16, in_round=3), status(), status(loss=float("nan")),
            frame(9, text("{}"))]


def meaningless_frames():
    """Returns well-formed frames with ranks, sizes and times that a receiver must refuse."""
    role = i32(0, 2, 0)
    one_machine = struct.pack("<3I", 1, 1, 2) + text("host") + struct.pack("<H", 29500) + text("") + role
    return [enter(local_world_size=2**31 - 1), enter(local_world_size=0), enter(-1), enter(heartbeat=4),
            enter(machines=(1, 65_537)), enter(close=-1), frame(1, b"\0\0"),
            frame(0, struct.pack("<2q", 0, 5000), b"\0", struct.pack("<q", 0)),
            frame(0, struct.pack("<2q", 5000, 5000), b"\0", struct.pack("<q", 0)), frame(0, struct.pack("<2q", 1000, 5000), b"\0", struct.pack("<q", -1)),
            status(rank=-1), status(name="a b"), status(step=-1), status(line="x" * 1024),
            enter(agent="x" * 32), enter(in_round=-1),
            frame(3, i32(0, 0, -1) + one_machine), frame(3, i32(0, 0, 77) + one_machine),
            frame(3, i32(0, 0, 0) + struct.pack("<I", 0) + text("host") + struct.pack("<H", 29500) + text("") + role),
            enter(secret="x" * 32), frame(3, i32(0, 0, 0) + one_machine[:-16] + text("0" * 31) + role),
            enter(role="r" * 1025), frame(3, i32(0, 0, 0) + one_machine[:-12] + i32(1, 2, 0))]


def server_frames():
    sizes = struct.pack("<3I", 2, 1, 2) + struct.pack("<2I", 1, 3)  # runs of equal sizes
    formed = i32(1, 0, 0) + sizes + text("host") + struct.pack("<H", 29500) + text("0" * 32) + i32(0, 5, 0)
    settled = (b"\1" + i32(1) + text("host") + i32(1) + b"\1\0" + text("rank 1 failed")
               + struct.pack("<I", 1) + i32(0) + text("host") + text("a report") + b"\1")
    return [frame(0, struct.pack("<2q", 1000, 5000), b"\1", struct.pack("<q", 1000)), frame(1), frame(2, text("waiting")),
            frame(3, formed), end(4), frame(5), frame(6, settled), frame(7, b"\3", text("silent"))]


def seeds():
    for name, chunks, replies in store_seeds():
        if replies:
            yield "store_replies", name, bytes([7, 0, 1, 3, 4, 7, 8, 10]) + replies
        by_client = b"".join(struct.pack("<BH", conn, len(sent)) + sent for conn, sent in chunks)
        yield "store_clients", name, CUT + by_client
        if len(chunks) <= 2:
            yield "store_frames", name, CUT + chunks[-1][1]
    number, value, released = struct.pack("<q", 1), struct.pack("<q", 1) + b"v", b"\0"
    answers = (released + value, number, b"\0", released, value, number, number, number + value,
               released + value * 2, released + number + value, number + value, number, released,
               b"gnip", value + number + b"\0" + value)  # in the order of call() in store_replies.cpp
    for i, answer in enumerate(answers):
        yield "store_replies", f"call_{i}", bytes([2, i, 6]) + answer + number
    for i, sent in enumerate(agent_frames() + server_frames()):
        yield "agent_messages", f"frame_{i}", sent
    for i, sent in enumerate(meaningless_frames()):
        yield "agent_messages", f"meaningless_{i}", sent
    for name, cuts in (("whole", WHOLE), ("cut", CUT)):
        yield "agent_session", name, cuts + HELLO + b"".join(agent_frames())
    numbers = ("0", "-12", " \t+7x", "+-3", "9223372036854775807", "-9223372036854775809")
    for i, number in enumerate(numbers):
        yield "decimal", f"number_{i}", number.encode()
    machine = bytes([0, 0, 0, 1, 0, 2, 0, 5, 2, 4, 5, 3, 0, 1])  # event, agent, fields of enter() in jobs.cpp
    due, report, lose, raw_enter = bytes([10, 0]), bytes([5, 0, 0]), bytes([7, 1]), enter()
    yield "jobs", "one_round", machine * 2 + due + report * 2
    yield "jobs", "lost_and_back", machine * 2 + due + lose + due + machine + due + report
    yield "jobs", "raw", bytes([9, 0, len(raw_enter)]) + raw_enter + due


def proof_seeds():
    keep = struct.pack("<HB", 0xffff, 0) * 5  # changes nothing in the honest handshake
    proof = b"p" * 32
    yield "proofs", "stranger", keep + CUT + b"\xa5acp\1\1" + struct.pack("<H", 3) + b"job" + b"n" * 32 + proof
    yield "proofs", "administrator", keep + CUT + b"\xa5acp\1\3\0\0" + b"n" * 32 + proof
    yield "proofs", "other_version", keep + CUT + b"\xa5acp\2"
    yield "proofs", "changed_role", struct.pack("<HB", 5, 2) + keep[3:]
    yield "proofs", "changed_result", keep[:9] + struct.pack("<HB", 1, 1) + keep[:3]


def watching_seeds():
    """Requests to the HTTP API, and lines that workers report."""
    head = "GET {} HTTP/1.1\r\nHost: a\r\n"
    requests = {
        "jobs": head.format("/api/v1/jobs") + "\r\n",
        "pipelined": (head.format("/healthz") + "\r\n") * 3 + head.format("/metrics") + "Accept: application/openmetrics-text\r\n\r\n",
        "part": head.format("/api/v1/jobs/a%20job/ranks?from=1&limit=2") + "\r\n",
        "stream": head.format("/api/v1/jobs/a%20job/events") + "Accept: text/event-stream\r\nLast-Event-ID: 1\r\n\r\nGET",
        "close": "HEAD /api/v1/jobs/a%20job/rounds HTTP/1.0\r\n\r\nGET / HTTP/1.1\r\n\r\n",
        "body": "POST /api/v1/jobs HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
        "chunked": head.format("/") + "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
        "bad_percent": head.format("/api/v1/jobs/%zz/history") + "\r\n",
        "malformed": "GET  / HTTP/9.9\r\n: \r\n\r\n",
        "history": head.format("/api/v1/jobs/a%20job/history") + "\r\n" + head.format("/api/v1/events?after=x") + "Accept: text/event-stream\r\n\r\n",
    }
    for name, request in requests.items():
        yield "http_requests", name, CUT + request.encode()
    lines = {
        "usual": '{"step": 12, "loss": 3.21, "lr": 3e-4, "grad_norm": NaN, "tokens_per_s": Infinity, "memory": {"a": 1, "b": null}}\n',
        "several": '{"loss": 1}\n\n[1]\n{"a": "text", "b": [1], "c": true}\n{"step": -1, "memory_bytes": 1e300}\n{"torn": 1',
        "names": '{"": 1, "%s": 2, "a b": 3, "memory.": 4, "memory.x": 5}\n' % ("n" * 40),
        "long": '{"x": 1' + " " * 5000 + "}\n{}\n",
        "nested": "[" * 2000 + "\n" + '{"a":' * 500 + "1" + "}" * 500 + "\n",
    }
    for name, line in lines.items():
        yield "report_lines", name, CUT + line.encode()


def data_seeds():
    def line(**values):
        return json.dumps(values, separators=(",", ":")) + "\n"

    def attempt(name="a", start=None, at=(0, 0, 0), samples=(10,), last_batch="partial"):
        return line(kind="attempt", version=1, name="", attempt=name, rank=0, world_size=1, time=1.5, seed=1, shuffle=True,
                    last_batch=last_batch, sources=[{"samples": each, "weight": 1, "per_block": 1} for each in samples],
                    at=at, **{"from": start})

    def batch(first, after, *samples, **more):
        return line(kind="batch", at=[*first, 0], next=[*after, 0], size=len(samples), padding=0,
                    samples=[[0, first[0], samples]], **more)

    yield "data_records", "resumed", (attempt() + batch((0, 0), (0, 5), *range(5)) + batch((0, 5), (0, 8), 5, 6, 7)
                                      + attempt("a.2", "a", (0, 5, 0)) + batch((0, 5), (1, 0), *range(5, 10))).encode()
    yield "data_records", "stream", (attempt(samples=(-1,)) + batch((0, 0), (0, 2), 0, 1, hashes=[2**64 - 1, 3])).encode()
    yield "data_records", "mixture", (attempt(samples=(3, -1)) + line(
        kind="batch", at=[0, 0, 0], next=[0, 4, 0], size=4, padding=0, samples=[[0, 0, [2, 0]], [1, 0, [0, 1]]])).encode()
    yield "data_records", "packed", (attempt() + line(
        kind="packed", at=[0, 0, 0], next=[0, 1, 3], size=1, pieces=[[0, 4, 0, 5, 5], [0, 7, 0, 3, 9]])).encode()
    yield "data_records", "lost", (attempt() + batch((0, 0), (0, 5), 0, 1, 1, 3, 4) + batch((0, 5), (1, 0), 5, 6, 11)
                                   + '{"kind":"bat').encode()


def journal_seeds():
    entry = bytes([3, 2]) + b"ab" + bytes([2]) + b"cd"
    long_entry = bytes([4, 200]) + b"k" * 200 + bytes([130]) + b"v" * 130
    yield "journal", "content", bytes([0]) + entry + bytes([5, 200, 1]) + b"k" * 200 + bytes([0])
    yield "journal", "too_long", bytes([0]) + entry + bytes([5, 0xff, 0xff, 0xff, 0x7f])
    groups = bytes([1]) + entry * 2 + bytes([0]) + long_entry + bytes([2]) + entry * 3
    for name, damage in (("whole", [1, 0, 0, 0]), ("cut_header", [0, 7, 0, 0]), ("cut", [0, 60, 0, 0]),
                         ("cut_long", [0, 200, 1, 0]), ("flipped_size", [1, 32, 0, 1]),
                         ("flipped_end", [1, 183, 1, 128]), ("flipped_salt", [1, 17, 0, 64])):
        yield "journal", name, bytes([1, *damage]) + groups


def checkpoint_seeds():
    shared = ["é", -1, 2**40, 2**62]
    value = {"a": (shared, shared, 1.5), "b": b"\0\xff", "c": [None, True, {}, {7}, ()],
             "d": collections.OrderedDict(x=frozenset([8]))}
    for protocol in range(6):
        yield "pickles", f"protocol_{protocol}", pickle.dumps(value, protocol)
    tensors = (TORCH_SAVE / "tensors.pt").read_bytes()
    yield "pickles", "tensors", zipfile.ZipFile(io.BytesIO(tensors)).read("tensors/data.pkl")
    yield "archives", "torch", tensors
    plain = io.BytesIO()
    with zipfile.ZipFile(plain, "w") as archive:
        archive.writestr(zipfile.ZipInfo("any/data.pkl"), b"N.")
        archive.writestr(zipfile.ZipInfo("any/data/0"), b"")
        archive.comment = b"a comment"
    yield "archives", "plain", plain.getvalue()


def main():
    folder = Path(sys.argv[1])
    for target, name, content in (*seeds(), *proof_seeds(), *watching_seeds(), *data_seeds(), *journal_seeds(),
                                  *checkpoint_seeds()):
        (folder / target).mkdir(parents=True, exist_ok=True)
        (folder / target / name).write_bytes(content)


if __name__ == "__main__":
    main()
