#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Misbehaving and well-behaved clients of one acc-rendezvous.

    store_abuse.py ACC_RENDEZVOUS [--seconds N] [--seed N] [--any-memory]

The well-behaved clients must be served correctly. Afterwards the server must have closed all
connections and released their memory. --any-memory: skip the check of memory, for a server that was
built with a sanitizer, which keeps freed memory.
"""
import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "support"))
from agent_bytes import HELLO, enter
from attacks import ATTACKS, Victim, hoarders
from daemon import Daemon
from failures import exit_with
from good_agents import NUM_AGENTS, GoodAgents
from good_clients import GoodClients
from own_network import enter_own_network
from store_bytes import VALIDATE, WAIT, keys_request, ping

MIB = 1 << 20
NUM_ATTACKERS = 3
NUM_CLIENTS = 6
# Largest memory that one attacker can make the server use at once; see attacks.py.
MIB_AN_ATTACKER = 700
MIB_LEFT = 64  # memory that the allocator may keep


def stop_with_company(server):
    """Stops the server while clients are connected, which must not delay it."""
    with Victim(server.port, "last").peers(3) as (stranger, client, agent):
        stranger.sendall(VALIDATE[:1])
        client.sendall(VALIDATE + keys_request(WAIT, [b"never"]) + ping(1))
        client.recv(4)
        agent.sendall(HELLO + enter(run_id="last", machines=(2, 2)))
        agent.recv(1)
        return server.stop()


def attack(port, seed, attacks, end, report):
    """One attacker: makes its share of the attacks, then random ones, until the time is over."""
    victim = Victim(port, seed)
    done = Counter()
    while done.total() < len(attacks) or time.monotonic() < end:
        turn = done.total()
        each = attacks[turn] if turn < len(attacks) else victim.dice.choice(ATTACKS)
        try:
            each(victim)
        except Exception as error:  # reported at the end
            report.put((done, f"attack {each.__name__}, seed {seed}: {error!r}"))
            return
        done[each.__name__] += 1
    report.put((done, None))


def run_attackers(port, seconds, seed):
    """Returns how often each attack was made, and the errors."""
    report = multiprocessing.Queue()
    end = time.monotonic() + seconds
    attackers = [multiprocessing.Process(target=attack, args=(port, seed + i, ATTACKS[i::NUM_ATTACKERS], end, report))
                 for i in range(NUM_ATTACKERS)]
    for attacker in attackers:
        attacker.start()
    done, failures = Counter(), []
    for _ in attackers:
        counts, failure = report.get()
        done += counts
        failures += [failure] if failure else []
    for attacker in attackers:
        attacker.join()
    return done, failures


def wait_until_left_alone(server, num_descriptors):
    """Waits until the server has noticed that all clients are gone; ctest's timeout limits the wait."""
    while server.process.poll() is None and server.num_descriptors() > num_descriptors:
        time.sleep(0.05)


def wait_until_memory_is_returned(server, most):
    """Returns the MiB in use as soon as they are at most `most`, otherwise after 30 seconds: the server returns freed
    memory a second after it was freed."""
    end = time.monotonic() + 30
    while (now := server.mib("VmRSS")) > most and time.monotonic() < end:
        time.sleep(0.1)
    return now


def abuse(options):
    server = Daemon(options.program, "--host", "127.0.0.1")
    num_descriptors, before = server.num_descriptors(), server.mib("VmRSS")
    clients, agents = GoodClients(server.port, NUM_CLIENTS), GoodAgents(server.port, NUM_AGENTS)
    done, failures = run_attackers(server.port, options.seconds, options.seed)
    hoarders(Victim(server.port, "hoard"))
    for good in (clients, agents):
        good.finish()
        failures += good.failures
    if server.process.poll() is not None:
        return failures + [f"the server ended with {server.process.returncode}"]
    wait_until_left_alone(server, num_descriptors)
    peak, most_left = server.mib("VmHWM"), before + MIB_LEFT
    after = server.mib("VmRSS") if options.any_memory else wait_until_memory_is_returned(server, most_left)
    print(f"{done.total()} attacks, {clients.num_rounds} rounds of {NUM_CLIENTS} good clients, "
          f"{agents.num_rounds} jobs of good agents; memory "
          f"{before:.0f} MiB before, {peak:.0f} at most, {after:.0f} after")
    print(", ".join(f"{name} {count}" for name, count in sorted(done.items())))
    if not options.any_memory and peak > before + NUM_ATTACKERS * MIB_AN_ATTACKER:
        failures.append("more memory than the limits allow")
    if not options.any_memory and after > most_left:
        failures.append("memory is not given back")
    status = stop_with_company(server)
    return failures + ([f"the server ended with {status}"] if status != 0 else [])


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("program", type=os.path.abspath)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--any-memory", action="store_true")
    options = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    exit_with(abuse(options))


if __name__ == "__main__":
    enter_own_network()
    main()
