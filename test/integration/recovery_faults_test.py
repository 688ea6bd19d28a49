#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Faults at every call with which acc-rendezvous changes its log: recovery_faults_test.py PROGRAM FAULTS_LIBRARY

A client stores keys one by one. The daemon is killed, its disk is full, or its disk fails, at the first
call, at the second, and so on. Afterwards a daemon without faults has every key that was acknowledged,
and nothing that was not asked for."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from store_bytes import GET, QUEUE_LEN, QUEUE_PUSH, SET, StoreClient, request

PROGRAM, FAULTS = sys.argv[1:3]
KEYS = [f"/key{i}".encode() for i in range(4)]
FULL, FAILS = "No space left on device", "Input/output error"


def start(state, variables=None):
    """Starts a daemon. Returns the process and its port, which is None if it did not begin to serve."""
    process = subprocess.Popen([PROGRAM, "--port", "0", "--state_dir", state], stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True, env={**os.environ, **(variables or {})})
    line = process.stdout.readline()
    return process, int(line.rsplit(":", 1)[1]) if line else None


def store_until_fault(port):
    """Returns the numbers of keys that were acknowledged and that were sent."""
    acknowledged = sent = 0
    try:
        client = StoreClient(port)
        for key in KEYS:
            sent += 1
            client.send(request(SET, key, b"value of " + key))
            client.send(request(QUEUE_PUSH, b"/queue", key))
            client.ping()
            acknowledged += 1
        client.close()
    except (ConnectionError, OSError):
        pass
    return acknowledged, sent


def number(client, content):
    client.send(content)
    return int.from_bytes(client.read(8), "little")


def strike(fault, at):
    """Returns whether the fault was reached."""
    with tempfile.TemporaryDirectory() as folder:
        state, hit = os.path.join(os.path.realpath(folder), "state"), os.path.join(folder, "hit")
        process, port = start(state, {"LD_PRELOAD": FAULTS, "ASAN_OPTIONS": "verify_asan_link_order=0", "ACC_FAULT": fault,
                                      "ACC_FAULT_AT": str(at), "ACC_FAULT_UNDER": state, "ACC_FAULT_HIT": hit})
        acknowledged, sent = (0, 0) if port is None else store_until_fault(port)
        if not os.path.exists(hit):
            process.kill()
        errors = process.communicate()[1]
        what = f"{fault} at call {at}: {Path(hit).read_text() if os.path.exists(hit) else 'not reached'}{errors}"
        if not os.path.exists(hit):
            assert acknowledged == len(KEYS), what
        elif fault == "kill":
            assert process.returncode == -9, what
        elif process.returncode != -9:
            assert process.returncode == 1, what
            assert (FULL if fault == "ENOSPC" else FAILS) in errors and state in errors, what
        process, port = start(state)
        assert port is not None, what + process.stderr.read()
        client = StoreClient(port)
        found = 0
        for key in KEYS:
            client.send(request(GET, key))
            value = client.read(int.from_bytes(client.read(8), "little"))
            assert value in (b"", b"value of " + key), what
            found += value != b""
        assert acknowledged <= found <= sent, f"{what}: {acknowledged} acknowledged, {found} found, {sent} sent"
        assert acknowledged <= number(client, request(QUEUE_LEN, b"/queue")) <= sent, what
        client.close()
        process.kill()
        process.communicate()
        return os.path.exists(hit)


for fault in ("kill", "ENOSPC", "EIO"):
    at = 1
    while strike(fault, at):
        at += 1
    assert at > 5, f"{fault}: only {at - 1} calls"
    print(f"{fault}: at each of {at - 1} calls")

# A disk that is read-only: reported with its path.
with tempfile.TemporaryDirectory() as folder:
    script = f'mount -t tmpfs -o ro tmpfs {folder} && exec "$@"'
    result = subprocess.run(["unshare", "--mount", "sh", "-c", script, "sh", PROGRAM, "--port", "0", "--state_dir", f"{folder}/state"],
                            capture_output=True, text=True)
    if "unshare failed" in result.stderr or "permission denied" in result.stderr:
        print("without a read-only disk: cannot be mounted")
    else:
        assert result.returncode == 1 and f"{folder}/state: Read-only file system" in result.stderr, result

# A folder that cannot be made: reported with its path, before the daemon serves.
with tempfile.TemporaryDirectory() as folder:
    file = os.path.join(folder, "file")
    Path(file).write_text("")
    process, port = start(os.path.join(file, "state"))
    assert port is None and process.wait() == 2 and file in process.stderr.read()
