# SPDX-License-Identifier: Apache-2.0
"""Well-behaved agents: two agents that run one job after the other."""
import socket
import struct
import threading

from agent_bytes import HELLO, enter, frame
from good_clients import GoodPeers

REJOIN, BEAT, END, FORCE_STOP, REPORT, LEAVE = range(1, 7)
WELCOME, BEAT_BACK, WAITING, FORMED, ENDS, KILL_WORKERS, SETTLED, DROPPED = range(8)
NUM_AGENTS = 2


class Agent:
    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(HELLO)

    def send(self, content):
        self.socket.sendall(content)

    def read_until(self, wanted):
        """Returns the next message of this type; only messages about waiting may precede it."""
        while True:
            size, = struct.unpack("<I", self.socket.recv(4, socket.MSG_WAITALL).ljust(4, b"\0"))
            body = self.socket.recv(size, socket.MSG_WAITALL)
            assert size > 0 and len(body) == size, f"closed instead of message {wanted}"
            if body[0] == wanted:
                return body[1:]
            assert body[0] in (WELCOME, WAITING, BEAT_BACK), (wanted, body)


class GoodAgents(GoodPeers):
    """One job per round: agents join, send heartbeats, report, and get the round's result."""

    def start(self, rank):
        return None

    def walk(self, _, rank, number):
        agent = Agent(self.port)
        agent.send(enter(rank, run_id=f"good{number}", machines=(NUM_AGENTS, NUM_AGENTS), heartbeat=600_000))
        round_number, restarts, machine_rank, num_runs, run = struct.unpack_from("<3i2I", agent.read_until(FORMED))
        assert (round_number, restarts, machine_rank) == (0, 0, rank)
        assert (num_runs, run) == (1, NUM_AGENTS)
        agent.send(frame(BEAT))
        agent.read_until(BEAT_BACK)
        agent.send(frame(REPORT, b"\0", struct.pack("<I", 0)))
        settled = agent.read_until(SETTLED)
        assert settled[0] == 0, settled  # no error ended the round
        agent.socket.close()
