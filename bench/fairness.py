#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Delay of heartbeats while other clients load acc-rendezvous.

    bench/fairness.py [--bin build/release/bin] [--only healthz,hello,...] [--seconds 5] [--realtime]

A job of 20 agents and 20,000 ranks is connected by a Unix socket. One of the agents in turn sends a heartbeat
every 20 ms, and every second each agent reports its ranks. Meanwhile other processes are the load:

    idle      nobody
    healthz   700 connections without a token that pipeline GET /healthz, at a server with a token
    hello     ClientHellos on ever new connections, of which 4,000 stay open
    large     the same, the messages announce 128 KiB and stop after 16 KiB
    ranks     200 readers of all ranks, without a pause
    metrics   50 readers of /metrics, without a pause
    http      1,100 idle HTTP connections; the status of a further GET /healthz is printed
    connects  ever new connections that send nothing, of which 4,000 stay open
    store     100 store clients that pipeline commands
    waiters   4,000 store clients that wait for one key, which is set again and again
    slow      200 readers of all ranks that hardly read
    bodies    200 connections that send POST with a large body
    streams   200 streams of events

Each load runs at a fresh server. Printed are the median, the 99th percentile and the maximum of the delay, the
number of heartbeats, and the server's memory. --realtime gives the server and the measuring process priority
over the load and over other programs (needs root): the delay is then that of the server's own loop, and up to
50 ms where the server needs all time of a core, because the kernel stops such processes for 50 ms per second.
"""
import multiprocessing
import os
import pathlib
import selectors
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from launchers import kib
from names import BIN, ROOT, Options

sys.path.insert(0, str(ROOT / "test/support"))
import agent_bytes  # noqa: E402
import store_bytes  # noqa: E402

AGENTS, WORKERS = 20, 1000
BEAT = agent_bytes.frame(2)
SERVER_BEAT, FORMED = 1, 3
INTERVAL = 0.02
LIMIT = 120  # seconds for an answer


class Agent:
    def __init__(self, path, number):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(LIMIT)
        self.socket.connect(path)
        self.number = number
        self.buffer = b""
        self.send(agent_bytes.HELLO + agent_bytes.enter(number, machines=(AGENTS, AGENTS), local_world_size=WORKERS,
                                                        host=f"host{number}", heartbeat=600_000, agreed=()))

    def send(self, content):
        self.socket.sendall(content)

    def expect(self, kind):
        """Returns the body of the next message of that kind."""
        while True:
            if len(self.buffer) >= 4:
                size = struct.unpack_from("<I", self.buffer)[0]
                if len(self.buffer) >= 4 + size:
                    body, self.buffer = self.buffer[4:4 + size], self.buffer[4 + size:]
                    if body[0] == kind:
                        return body
                    continue
            part = self.socket.recv(1 << 16)
            if not part:
                raise ConnectionError("the server has closed the connection of an agent")
            self.buffer += part


def status(machine_rank, step):
    first = machine_rank * WORKERS
    return agent_bytes.status([agent_bytes.rank_status(rank, rank - first, step)
                               for rank in range(first, first + WORKERS)])


def job(path):
    """Agents of a formed round, by machine rank, whose ranks have reported."""
    agents = [Agent(path, i) for i in range(AGENTS)]
    for agent in agents:
        agent.expect(FORMED)
    for rank, agent in enumerate(agents):  # ranks are given in the order of arrival
        agent.send(status(rank, 0))
        agent.expect(SERVER_BEAT)
    return agents


def measure(agents, seconds):
    reports = [status(rank, 1) for rank in range(AGENTS)]
    delays = []
    begin = time.perf_counter()
    next_report = begin + 1
    while time.perf_counter() < begin + seconds or len(delays) < 5:
        agent = agents[len(delays) % AGENTS]
        sent = time.perf_counter()
        agent.send(BEAT)
        agent.expect(SERVER_BEAT)
        delays.append(time.perf_counter() - sent)
        if sent >= next_report:
            next_report = sent + 1
            for reporting, report in zip(agents, reports):
                reporting.send(report)
                reporting.expect(SERVER_BEAT)
        time.sleep(max(0.0, sent + INTERVAL - time.perf_counter()))
    return delays


# Loads: what each of two processes does until it is ended.


def connected(port, receive_buffer=None):
    while True:
        client = socket.socket()
        if receive_buffer:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        try:
            client.connect(("127.0.0.1", port))
            client.setblocking(False)
            return client
        except OSError:
            client.close()
            time.sleep(0.01)


def pipeline(port, ready, count, content, first=b"", reads=True, receive_buffer=None, once=False):
    """`count` connections that send `content` again and again, as far as the server reads it; `once`: each sends it
    when the answer to the last one has ended."""
    selector = selectors.DefaultSelector()
    both = selectors.EVENT_READ | selectors.EVENT_WRITE if reads else selectors.EVENT_WRITE

    def add():
        client = connected(port, receive_buffer)
        client.send(first + (content if once else b""))
        selector.register(client, selectors.EVENT_READ if once else both, [b""])

    for _ in range(count):
        add()
    ready.release()
    while True:
        for key, events in selector.select():
            try:
                if events & selectors.EVENT_READ and not key.fileobj.recv(1 << 20):
                    raise ConnectionResetError
                if events & selectors.EVENT_WRITE:
                    rest = key.data[0] or content
                    key.data[0] = rest[key.fileobj.send(rest):]
            except BlockingIOError:
                pass
            except OSError:
                selector.unregister(key.fileobj)
                key.fileobj.close()
                add()


def pile(port, ready, count, content):
    """Ever new connections that send `content`, of which the last `count` stay open."""
    clients = []
    ready.release()
    while True:
        client = connected(port)
        try:
            client.send(content)
        except OSError:
            pass
        clients.append(client)
        if len(clients) > count:
            clients.pop(0).close()


def hold(port, ready, count, content):
    """Connections that send `content` and stay open."""
    clients = [connected(port) for _ in range(count)]
    for client in clients:
        client.send(content)
    ready.release()
    while True:
        time.sleep(1)


def wake(port, ready, count):
    """Waits of many clients for one key, and one client that sets and deletes it."""
    wait = store_bytes.keys_request(store_bytes.WAIT, [b"key"])
    waiters = [connected(port) for _ in range(count)]
    for client in waiters:
        client.send(store_bytes.VALIDATE + wait)
    setter = store_bytes.StoreClient(port)
    ready.release()
    while True:
        setter.send(store_bytes.request(store_bytes.SET, b"key", b"v")
                    + store_bytes.request(store_bytes.DELETE_KEY, b"key"))
        setter.read(8)
        for client in waiters:
            client.setblocking(True)
            client.recv(1)
            client.send(wait)


def client_hello():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()


HEALTH = b"GET /healthz HTTP/1.1\r\n\r\n"
RANKS = b"GET /api/v1/jobs/job/ranks HTTP/1.0\r\n\r\n"
COMMANDS = store_bytes.request(store_bytes.SET, b"key", b"v" * 32) + store_bytes.request(store_bytes.GET, b"key")
# By name: true if the server has a token; what the processes do.
LOADS = {
    "idle": (False, None),
    "healthz": (True, lambda *at: pipeline(*at, 350, HEALTH * 10_000)),
    "hello": (True, lambda *at: pile(*at, 2000, client_hello())),
    "large": (True, lambda *at: pile(*at, 2000, b"\x16\3\1\x40\0\1\1\xff\xff" + bytes(16_380))),
    "ranks": (False, lambda *at: pipeline(*at, 100, RANKS, once=True)),
    "metrics": (False, lambda *at: pipeline(*at, 25, b"GET /metrics HTTP/1.0\r\n\r\n", once=True)),
    "http": (False, lambda *at: hold(*at, 550, HEALTH)),
    "connects": (False, lambda *at: pile(*at, 2000, b"")),
    "store": (False, lambda *at: pipeline(*at, 50, COMMANDS * 5000, first=store_bytes.VALIDATE)),
    "waiters": (False, lambda *at: wake(*at, 2000)),
    "slow": (False, lambda *at: pipeline(*at, 100, RANKS * 100, reads=False, receive_buffer=4096)),
    "bodies": (False, lambda *at: pipeline(*at, 100, b"POST / HTTP/1.1\r\nContent-Length: 100000000\r\n\r\n"
                                           + b"x" * 10_000_000)),
    "streams": (False, lambda *at: hold(*at, 100, b"GET /api/v1/events HTTP/1.1\r\nAccept: text/event-stream\r\n\r\n")),
}


def health_of(port):
    client = connected(port)
    client.settimeout(LIMIT)
    client.send(HEALTH)
    return client.recv(100).split(b"\r\n")[0].decode() or "closed"


def prefer():
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))


def run(args, name, folder):
    has_token, work = LOADS[name]
    path = f"{folder}/{name}"
    token = pathlib.Path(folder) / "token"
    token.write_text("t" * 32)
    token.chmod(0o600)
    flags = ["--token_file", token] if has_token else []
    daemon = subprocess.Popen([args.bin / "acc-rendezvous", "--port", "0", "--host", "127.0.0.1", "--host", f"unix:{path}",
                               "--log_level", "error", *flags], stdout=subprocess.PIPE, text=True,
                              preexec_fn=prefer if args.realtime else None)
    processes = []
    try:
        port = next(int(line.rsplit(":", 1)[1]) for line in daemon.stdout if "127.0.0.1" in line)
        agents = job(path)
        ready = multiprocessing.Semaphore(0)
        for _ in range(2 if work else 0):
            processes.append(multiprocessing.Process(target=work, args=(port, ready), daemon=True))
            processes[-1].start()
        for _ in processes:
            ready.acquire(timeout=LIMIT)
        if args.realtime:
            prefer()
        delays = sorted(1000 * delay for delay in measure(agents, args.seconds))
        print(f"{name:9} {statistics.median(delays):9.1f} {delays[int(len(delays) * 0.99)]:9.1f} {delays[-1]:9.1f}"
              f" {len(delays):7} {kib(daemon.pid, 'status', 'VmHWM') / 1024:9.0f}", flush=True)
        if name == "http":
            print(f"          GET /healthz: {health_of(port)}", flush=True)
    except OSError as error:
        print(f"{name:9} {error}", flush=True)
    finally:
        if args.realtime:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        for process in processes:
            process.kill()
            process.join()
        daemon.kill()
        daemon.wait()


def main():
    args = Options(__doc__, bin=BIN, only=list(LOADS), seconds=5.0, realtime=False).parse_args()
    print(f"{AGENTS} agents, {AGENTS * WORKERS} ranks; delay of a heartbeat in ms, memory in MiB")
    print(f"{'load':9} {'median':>9} {'99 %':>9} {'maximum':>9} {'beats':>7} {'memory':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for name in args.only:
            run(args, name, folder)


if __name__ == "__main__":
    main()
