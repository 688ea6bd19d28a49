#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Agents that make acc-rendezvous use as much memory as possible, to test its memory limits.

    memory_limits.py ACC_RENDEZVOUS

The memory must not grow by more than the limits, and two earlier agents must finish their job.
"""
import resource
import struct
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from agent_bytes import HELLO, enter, failure_report, frame, rank_status, status
from attacks import Victim
from daemon import Daemon
from failures import exit_with
from good_agents import BEAT_BACK, DROPPED, ENDS, FORMED, REPORT, SETTLED, WAITING, WELCOME, Agent
from own_network import enter_own_network

MIB = 1 << 20
LIMIT = 64  # MiB; limit of stored data, and of data being transferred
MOST = 2 * LIMIT + 32  # with the overhead of connections and allocator
YEAR = 365 * 24 * 3600 * 1000
REPORT_BYTES = 8 * MIB


def expect_answer(peer):
    """Waits until the server has processed the messages of this peer."""
    size, = struct.unpack("<I", peer.recv(4, 0x100).ljust(4, b"\0"))  # MSG_WAITALL
    body = peer.recv(size, 0x100)
    assert body and body[0] in (WELCOME, WAITING, DROPPED), body[:100]
    return body


def huge_jobs(victim):
    """One job per agent, with the largest number of machines; a set of all ranks needed 3 MiB."""
    with victim.peers(500) as peers:
        for i, peer in enumerate(peers):
            peer.sendall(HELLO + enter(0, run_id=f"huge{i}", machines=(65_536, 65_536), static=True))
        for peer in peers:
            assert expect_answer(peer)[0] == WELCOME


def large_terms(victim):
    """One job per agent, with the largest terms to agree on; together more than the limit."""
    agreed = tuple((f"{i}", "v" * 4_000) for i in range(15))
    refused = 0
    with victim.peers(1_500) as peers:
        for i, peer in enumerate(peers):
            peer.sendall(HELLO + enter(run_id=f"large{i}", machines=(2, 2), agreed=agreed))
        for peer in peers:
            body = expect_answer(peer)
            refused += body[0] == DROPPED
            assert body[0] != DROPPED or b"the server is full" in body, body
    assert 100 < refused < 1_400, refused


def finished_jobs(victim):
    """Finished jobs of disconnected agents, which the server remembers for as long as possible."""
    report = frame(REPORT, b"\1", struct.pack("<I", REPORT_BYTES), b"r" * REPORT_BYTES)
    for i in range(40):
        agent = Agent(victim.port)
        agent.send(enter(run_id=f"over{i}", machines=(1, 2), last_call=0, close=YEAR))
        agent.read_until(FORMED)
        agent.send(report)
        agent.read_until(ENDS)
        agent.read_until(SETTLED)
        agent.socket.close()


def refused_machines(victim):
    """One job whose machines disagree, each with a long host name."""
    with victim.peers(1_500) as peers:
        for i, peer in enumerate(peers):
            peer.sendall(HELLO + enter(0, run_id="refused", machines=(60_000 - i % 2, 60_000), static=True,
                                       host=f"{i}".ljust(1_000, "h"), close=YEAR))
        for peer in peers:
            expect_answer(peer)


def full_statuses(victim):
    """Jobs of one agent whose ranks have all values, the longest names and lines, and a report; 18 MiB and 4 MiB each."""
    workers = 3_000
    names = [f"{i:02}".ljust(31, "n") for i in range(16)]
    full = status([rank_status(rank, rank, 1, names, "c" * 256, "l" * 1_000) for rank in range(workers)])
    report = failure_report("[" + "1," * (2 * MIB - 10) + "1]")
    agents = []
    for i in range(20):
        agents.append(Agent(victim.port))
        agents[-1].send(enter(run_id=f"status{i}", machines=(1, 1), local_world_size=workers, heartbeat=600_000))
        agents[-1].read_until(FORMED)
        for content in (full, report):
            agents[-1].send(content)
            agents[-1].read_until(BEAT_BACK)
    for agent in agents:
        agent.socket.close()


def main():
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    daemon = Daemon(sys.argv[1], "--max_bytes", f"{LIMIT}MiB", "--max_buffered_bytes", f"{LIMIT}MiB")
    victim = Victim(daemon.port, 1)
    good = [Agent(daemon.port) for _ in range(2)]
    for rank, agent in enumerate(good):
        agent.send(enter(rank, run_id="good", machines=(2, 2), heartbeat=600_000))
    for agent in good:
        agent.read_until(FORMED)
    before = daemon.mib("VmHWM")
    failures = []
    for attack in (full_statuses, huge_jobs, large_terms, finished_jobs, refused_machines):
        attack(victim)
        grown = daemon.mib("VmHWM") - before
        print(f"{attack.__name__}: {grown:.0f} MiB more than before")
        if grown > MOST:
            failures.append(f"{attack.__name__}: the server has taken {grown:.0f} MiB, its limits are {MOST}")
    for agent in good:
        agent.send(frame(REPORT, b"\0", struct.pack("<I", 0)))
    for agent in good:
        agent.read_until(SETTLED)
    status = daemon.stop()
    exit_with(failures + ([f"the server ended with {status}"] if status != 0 else []))


if __name__ == "__main__":
    enter_own_network()
    main()
