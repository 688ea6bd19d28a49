#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares acc-rendezvous with PyTorch's TCPStore server and with a server that only moves bytes.

    bench/rendezvous.py [--python PYTHON] [--rounds 9] [--seconds 0.5] [--only ops,join,memory,rounds,tls]

Each line of the output starts fresh server processes. They are measured in short turns in random order,
so that other load on the machine affects all of them equally; the values are medians. "bare"
(rendezvous/bare_server.cpp) sends prepared replies and shows how much could still be gained. The load
generator is one thread in a closed loop (rendezvous/store_load.cpp). CPU seconds are those of all
threads of the server. PyTorch's server asks the name service for the name of each client's address: it
stalls if the resolver of the machine does not answer.
"""
import contextlib
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile

from launchers import json_lines, kib
from names import BIN, Options, some_of

TORCH = """
import datetime, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", 0, None, True, datetime.timedelta(seconds=300),
                      wait_for_workers=False)
print(f"listening on 127.0.0.1:{store.port}", flush=True)
sys.stdin.read()
"""

# torchrun's agents as threads of one process: each does what an agent of torchrun does to form a round.
TORCH_ROUND = """
import sys, threading, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler
port, count = sys.argv[1:3]
def handler():
    parameters = RendezvousParameters("c10d", f"127.0.0.1:{port}", "bench", int(count), int(count),
                                      local_addr="127.0.0.1", is_host="0")
    backend, store = create_backend(parameters)
    return create_handler(store, backend, parameters)
handlers = [handler() for _ in range(int(count))]
threads = [threading.Thread(target=each.next_rendezvous) for each in handlers]
start = time.perf_counter()
for thread in threads: thread.start()
for thread in threads: thread.join()
print((time.perf_counter() - start) * 1000, flush=True)
import os; os._exit(0)
"""

AIMS = """aims: 95 % of bare's operations and at least torch's; half of torch's CPU time per operation, or
      within 15 % of bare's; a million pipelined operations per second; p99 at 4096 connections within
      10 % of bare's; 1024 clients joined in 55 ms; 4 KB per idle connection; a round of 10,000
      agents in 2 s; 1024 agents joined by TLS in 2 s"""

PARTS = ("ops", "join", "memory", "rounds", "tls")
MIXES = [(1, 1), (64, 1), (512, 1), (4096, 1), (1, 16), (64, 16), (512, 16)]
JOINS = [64, 256, 1024]
ROUNDS = [1_000, 10_000]
TORCH_AGENTS = 16
TLS_AGENTS = 1024
HELD = 4096
KEYS = 1_000_000


def servers(program, python):
    """Returns a dict from name to the command of a server that prints the port it listens on."""
    found = {"acc": [program, "--port", "0"], "bare": [str(BIN / "bare_server")]}
    if python:
        found["torch"] = [python, "-c", TORCH]
    else:
        print("no comparison with torch: neither --python nor ACC_PEERS_PYTHON is given", file=sys.stderr)
    return found


class Server:
    def __init__(self, command):
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"})
        said = self.process.stdout.readline().decode()
        if "listening on" not in said:
            raise SystemExit(f"{command[0]} did not start: {said}")
        self.port = said.rsplit(":", 1)[1].strip()
        self.pid = self.process.pid

    def rss(self):
        """Returns the resident memory in bytes."""
        return kib(self.pid, "status", "VmRSS") * 1024

    def end(self):
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def serving(command):
    server = Server(command)
    try:
        yield server
    finally:
        server.end()


def load(server, *args):
    return json_lines([BIN / "store_load", server.port, *args])[-1]


def mix(server, connections, in_flight, seconds):
    return load(server, "mix", connections, in_flight, seconds, server.pid)


def join(server, clients, how):
    return load(server, "join", clients, how)


def idle_connections(server):
    load(server, "join", 1, "barrier")
    before = server.rss()
    holder = subprocess.Popen([str(BIN / "store_load"), server.port, "hold", str(HELD)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    holder.stdout.readline()
    figure = (server.rss() - before) / HELD
    holder.communicate()
    return {"bytes": figure}


def stored_keys(server):
    load(server, "join", 1, "barrier")
    before = server.rss()
    load(server, "fill", KEYS)
    return {"bytes": (server.rss() - before) / KEYS}


def round_of(server, agents, *token):
    return json_lines([BIN / "agents_load", server.port, agents, *token])[-1]


def torch_round(server, python):
    command = [python, "-c", TORCH_ROUND, server.port, str(TORCH_AGENTS)]
    return float(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.split()[-1])


def rounds(commands, repeats, python):
    """Measures how long agents take to form a round: acclaunch's at acc-rendezvous, torch's at torch's."""
    for agents in [TORCH_AGENTS, *ROUNDS]:
        runs = []
        for _ in range(repeats):
            with serving(commands["acc"]) as server:
                runs.append(round_of(server, agents))
        first, following = (statistics.median(run[figure] for run in runs)
                            for figure in ("first_ms", "next_ms"))
        print(f"round of {agents} agents: {first:.1f} ms; after the loss of one {following:.1f} ms")
        if agents == TORCH_AGENTS and python:
            with serving(commands["torch"]) as server:
                peer = torch_round(server, python)
            print(f"    torch's agents, already connected: {peer:.0f} ms, {peer / first:.0f}x")


def tls(commands, repeats):
    """Compares a round of agents that join by TLS, with the proof of a token, with a plain one."""
    with tempfile.TemporaryDirectory() as folder:
        token = os.path.join(folder, "token")
        with open(token, "w", opener=lambda path, flags: os.open(path, flags, 0o600)) as file:
            file.write("t" * 64)
        seen = {"plain": [], "TLS": []}
        for _ in range(repeats):
            for name, flags, words in (("plain", [], []), ("TLS", ["--token_file", token], [token])):
                with serving([*commands["acc"], *flags]) as server:
                    seen[name].append(round_of(server, TLS_AGENTS, *words)["first_ms"])
    plain, encrypted = (statistics.median(seen[name]) for name in seen)
    print(f"join of {TLS_AGENTS} agents: plain {plain:.1f} ms, TLS {encrypted:.1f} ms, {encrypted / plain:.1f}x")


def compare(title, commands, rounds, measure):
    """Prints one row per metric: each server's median, and the ratio of acc to each other one."""
    seen = {name: [] for name in commands}
    with contextlib.ExitStack() as running:
        started = {name: running.enter_context(serving(command))
                   for name, command in commands.items()}
        for _ in range(rounds):
            for name in random.sample(sorted(started), len(started)):
                seen[name].append(measure(started[name]))
    for figure in seen["acc"][0]:
        medians = {name: statistics.median(run[figure] for run in runs)
                   for name, runs in seen.items()}
        cells = "".join(f"{value:>14,.1f}" for value in medians.values())
        ratios = "".join(f"{medians['acc'] / value:>10.2f}" if value else f"{'':>10}"
                         for name, value in medians.items() if name != "acc")
        print(f"{title:34}{figure:>14}{cells}   {ratios}", flush=True)


def main():
    parser = Options(__doc__, program=str(BIN / "acc-rendezvous"), python=os.environ.get("ACC_PEERS_PYTHON"), rounds=9,
                     seconds=0.5)
    parser.add_argument("--only", default=list(PARTS), type=some_of(PARTS), dest="parts")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    commands = servers(options.program, options.python)
    names = "".join(f"{name:>14}" for name in commands)
    ratios = "".join(f"{'/ ' + name:>10}" for name in commands if name != "acc")
    print(f"medians of {options.rounds}, interleaved\n{AIMS}\n\n{'':48}{names}   {ratios}")
    if "ops" in options.parts:
        for connections, in_flight in MIXES:
            compare(f"{connections} connections, {in_flight} in flight", commands, options.rounds,
                    lambda server: mix(server, connections, in_flight, options.seconds))
    if "join" in options.parts:
        for how in ("add_wait", "barrier"):
            for clients in JOINS:
                compare(f"{clients} clients join, {how}", commands, options.rounds,
                        lambda server: join(server, clients, how))
    if "memory" in options.parts:
        compare(f"each of {HELD} idle connections", commands, 1, idle_connections)
        stores = {name: command for name, command in commands.items() if name != "bare"}
        compare(f"each of {KEYS:,} keys, 16 + 32 bytes", stores, 1, stored_keys)
    if "rounds" in options.parts:
        rounds(commands, min(options.rounds, 5), options.python)
    if "tls" in options.parts:
        tls(commands, min(options.rounds, 5))


if __name__ == "__main__":
    main()
