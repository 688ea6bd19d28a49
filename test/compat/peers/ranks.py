# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks, children of this process, which has imported everything."""

import os
import pickle
import re
import signal
import sys
import tempfile
import time
import traceback

LIMIT = float(os.environ.get("PEER_LIMIT", "60"))  # seconds of one test
_ports = iter(range(20000 + os.getpid() % 9000, 60000))


def _described(error):
    frame = traceback.extract_tb(error.__traceback__)[-1]
    place = f"{os.path.basename(frame.filename)}:{frame.lineno} {frame.line}"
    text = f"{type(error).__name__}: {str(error)[:300]} ({place})"
    return re.sub(r"\s+", " ", text)


def _child(function, rank, ranks, port, report, skips):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), LOCAL_RANK=str(rank),
                      WORLD_SIZE=str(ranks), LOCAL_WORLD_SIZE=str(ranks), LOCAL_SIZE=str(ranks))
    try:
        function(rank, ranks)
        outcome = "passed", ""
    except skips as error:
        outcome = "skipped", str(error)
    except BaseException as error:  # noqa: BLE001: whatever the test raises
        traceback.print_exc()
        outcome = "failed", _described(error)
    sys.stdout.flush()
    sys.stderr.flush()
    with open(report, "wb") as file:
        pickle.dump(outcome, file)
    os._exit(0)


def run(function, ranks, skips=()):
    """Calls function(rank, ranks) on each rank. Returns ("passed", "skipped" or "failed", words of the first rank that
    did not pass)."""
    port, pids, ended = next(_ports), {}, {}
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in range(ranks):
            pid = os.fork()
            if pid == 0:
                _child(function, rank, ranks, port, f"{folder}/{rank}", skips)
            pids[pid] = rank
        deadline = time.monotonic() + LIMIT
        while pids and time.monotonic() < deadline:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid not in pids:
                time.sleep(0.02)
                continue
            rank = pids.pop(pid)
            path = f"{folder}/{rank}"
            if os.path.exists(path):
                with open(path, "rb") as file:
                    ended[rank] = pickle.load(file)
            else:
                ended[rank] = "failed", f"rank {rank} ended with status {status}"
            if ended[rank][0] == "failed":  # the others may wait for it
                deadline = min(deadline, time.monotonic() + 4)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    for kind in ("failed", "skipped"):
        for rank in sorted(ended):
            if ended[rank][0] == kind:
                return ended[rank]
    return ("failed", f"ranks {sorted(pids.values())} hang") if pids else ("passed", "")
