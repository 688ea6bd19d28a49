#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A server and clients of the agent protocol that send well-formed messages with invalid values.

    rogue_rendezvous_test.py BIN_FOLDER

A launcher that connects to such a server names the value, limits its attempts and ends in time. A job
at a daemon with such clients is not affected.
"""
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from agent_bytes import HELLO, enter, frame, i32, text
from daemon import Daemon

BIN = Path(sys.argv[1]).resolve()
MAX_INT = 2**31 - 1


def welcome(beat_interval, silence_limit):
    return frame(0, struct.pack("<2q", beat_interval, silence_limit), b"\0", struct.pack("<q", 0))


WELCOME = welcome(1_000, 5_000)
# Attempts in three seconds, with pauses that double from 10 ms; far fewer than without pauses.
MOST_CONNECTIONS = 40
MOST_BYTES = 100_000


def formed(rank=0, sizes=(1, 1), round_number=0, restarts=0, host="127.0.0.1", port=1,
           secret="0" * 32, role=(1, 2), kept=0):
    runs = struct.pack("<I", len(sizes)) + b"".join(struct.pack("<Ii", 1, size) for size in sizes)
    return frame(3, i32(round_number, restarts, rank), runs, text(host), struct.pack("<H", port),
                 text(secret), i32(*role, kept))


# Values that the server sends, and the launcher's messages.
SERVERS = {
    "no beat interval": (welcome(0, 5_000), "beat_interval is 0 ms, expected 20 to"),
    "a negative interval": (welcome(-5, 5_000), "beat_interval is -5 ms"),
    "an interval beyond the limit": (welcome(5_000, 1_000), "expected less than silence_limit"),
    "rank -1": (WELCOME + formed(rank=-1), "machine_rank is -1, expected 0 to 1"),
    "rank 77": (WELCOME + formed(rank=77), "machine_rank is 77, expected 0 to 1"),
    "no machines": (WELCOME + formed(sizes=()), "the number of machines is 0"),
    "many workers": (WELCOME + formed(sizes=(1, MAX_INT)), "local_world_size is 2147483647, expected 1 to 32767"),
    "other workers": (WELCOME + formed(sizes=(2, 1), role=(0, 3)), "local_world_size of this machine is 2, expected 1"),
    "too many machines": (WELCOME + formed(sizes=(1, 1, 1)), "a round has 3 machines, expected at most 2"),
    "round -1": (WELCOME + formed(round_number=-1), "round is -1, expected 0 to"),
    "no port": (WELCOME + formed(port=0), "store_port is 0, expected 1 to 65535"),
    "no host": (WELCOME + formed(host=""), "store_host is empty"),
    "a short secret": (WELCOME + formed(secret="0" * 31), "secret is not 32 hexadecimal digits"),
    "role rank -1": (WELCOME + formed(role=(-1, 2)), "first_role_rank is -1, expected 0 to"),
    "a small role": (WELCOME + formed(role=(1, 1)), "role_world_size is 1, expected 2 to"),
    "more machines kept than there are": (WELCOME + formed(kept=3), "num_kept is 3, expected 0 to 2"),
    "a secret of two lines": (WELCOME + formed(secret="0" * 15 + "\n" + "0" * 16), "secret is not 32 hexadecimal digits"),
    "the end only": (WELCOME, "the server closed it"),
}

# The same from a server after the round has begun: job and workers end.
ENDS = frame(4, i32(0), text("host"), i32(300), b"\0\0", text("over"))
SETTLED = frame(6, b"\0", struct.pack("<I", 1), i32(7), text("host"), text(""), b"\0")
ROUNDS = {
    "a second round": (WELCOME + formed() + formed(round_number=1), "a round is formed before the last one is over"),
    "an exit status of 300": (WELCOME + formed() + ENDS, "exit_status is 300, expected 0 to 255"),
    "a report of machine 7": (WELCOME + formed() + SETTLED, "machine_rank of a report is 7, expected less than 2"),
}

# Values with which a job cannot be created or joined.
CLIENTS = [enter(local_world_size=MAX_INT), enter(local_world_size=-1), enter(-1), enter(heartbeat=4),
           enter(heartbeat=0), enter(machines=(1, 65_537)), enter(machines=(5, 2)), enter(close=-1),
           enter(pid=-1), enter(run_id="r" * 1_025), enter(secret="0" * 31)]


class RogueServer(threading.Thread):
    """Answers each hello with the same bytes, then shuts down its side of the connection."""

    def __init__(self, answer):
        super().__init__(daemon=True)
        self.answer = answer
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.num_connections = self.num_bytes = 0

    def run(self):
        while True:
            peer, _ = self.socket.accept()
            self.num_connections += 1
            with peer:
                try:
                    self.num_bytes += len(peer.recv(1 << 16))
                    peer.sendall(self.answer)
                    peer.shutdown(socket.SHUT_WR)
                    while received := peer.recv(1 << 16):
                        self.num_bytes += len(received)
                except OSError:
                    pass


def launcher(port, conf="join_timeout=3,is_host=0", run_id="job"):
    return subprocess.Popen(
        [BIN / "acclaunch", "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
         "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", conf, "--rdzv-id", run_id, "--no-python",
         "/bin/sh", "-c", "echo rank $RANK of $WORLD_SIZE"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def check_rogue_rounds():
    for name, (answer, expected) in ROUNDS.items():
        server = RogueServer(answer)
        server.start()
        job = launcher(server.socket.getsockname()[1])
        out, err = job.communicate(timeout=240)
        print(f"{name}: status {job.returncode}")
        assert job.returncode == 1 and expected in err, (name, job.returncode, out, err)


def check_own_values():
    """A launcher whose own settings are out of range names the setting."""
    job = subprocess.run([BIN / "acclaunch", "torchrun", "--nnodes", "65537", "--node-rank", "0", "--master-addr",
                          "127.0.0.1", "--no-python", "/bin/true"], capture_output=True, text=True, timeout=240)
    assert job.returncode == 2 and "num_machines is 65537, expected 1 to 65536" in job.stderr, job


def check_rogue_servers():
    runs = []
    for name, (answer, expected) in SERVERS.items():
        server = RogueServer(answer)
        server.start()
        runs.append((name, expected, server, launcher(server.socket.getsockname()[1])))
    for name, expected, server, job in runs:
        out, err = job.communicate(timeout=240)
        print(f"{name}: status {job.returncode}, {server.num_connections} connections, {server.num_bytes} bytes")
        assert job.returncode == 124 and out == "", (name, job.returncode, out, err)
        assert expected in err, (name, expected, err)
        assert 1 < server.num_connections <= MOST_CONNECTIONS, (name, server.num_connections)
        assert server.num_bytes <= MOST_BYTES, (name, server.num_bytes)


def check_rogue_clients():
    daemon = Daemon(BIN / "acc-rendezvous")
    try:
        first = launcher(daemon.port, "join_timeout=60")
        line = ""
        while "1 of 2 are here" not in line:
            line = first.stderr.readline()
            assert line, "the first machine has ended"
        for content in CLIENTS:
            with socket.create_connection(("127.0.0.1", daemon.port), timeout=240) as rogue:
                rogue.sendall(HELLO + content)
                assert rogue.recv(1) == b"", "the server answers a client without meaning"
        second = launcher(daemon.port, "join_timeout=60")
        outs = [job.communicate(timeout=240)[0] for job in (first, second)]
        ranks = {out.split("] ")[-1] for out in outs}
        assert ranks == {"rank 0 of 2\n", "rank 1 of 2\n"}, outs
        assert first.returncode == second.returncode == 0
    finally:
        assert daemon.stop() == 0


check_rogue_servers()
check_rogue_rounds()
check_own_values()
check_rogue_clients()
