#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`acc-rendezvous ctl` with a running daemon: administration_test.py DAEMON"""
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from agent_bytes import HELLO, enter
from daemon import Daemon
from failures import exit_with

DAEMON = sys.argv[1]
WELCOME, FORMED, ENDS, DROPPED = 0, 3, 4, 7
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


class Agent:
    """A machine of a job, in one round with itself."""

    def __init__(self, port, run_id, host):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=240)
        self.socket.sendall(HELLO + enter(run_id=run_id, host=host, machines=(1, 1)))

    def read(self, count):
        content = b""
        while len(content) < count:
            part = self.socket.recv(count - len(content))
            if not part:
                return b""
            content += part
        return content

    def next(self, kind):
        """Returns the next message of this kind; b"" at the end of the connection."""
        while head := self.read(4):
            body = self.read(struct.unpack("<I", head)[0])
            if body[0] == kind:
                return body
        return b""


def ctl(where, *words, token=None, status=0):
    environment = {**os.environ, **({"ACC_RENDEZVOUS_TOKEN_FILE": str(token)} if token else {})}
    run = subprocess.run([DAEMON, "ctl", where, *words], capture_output=True, text=True, timeout=240, env=environment)
    check(run.returncode == status, f"ctl {words}: exit status {run.returncode}, expected {status}: {run.stderr}")
    return run.stdout + run.stderr


def jobs(folder):
    path = f"unix:{folder}/control"
    daemon = Daemon(DAEMON, "--host", f"127.0.0.1,{path}", "--log_level", "error")
    check(ctl(path, "list") == "no jobs\n", "no jobs")
    first, second = Agent(daemon.port, "one", "node1"), Agent(daemon.port, "two", "node2")
    check(first.next(FORMED) and second.next(FORMED), "both jobs run")
    listed = ctl(path, "list")
    check("one: in round, 1 rounds, 1 machines\n  node1 10.0.0.1 rank 0 workers 2 pid 4711 running\ntwo:" in listed,
          f"list, found {listed}")

    ctl(path, "drain")
    check(b"drains it" in Agent(daemon.port, "three", "node3").next(DROPPED), "no new job while draining")
    check("draining true" in ctl(path, "dump"), "the dump says so")
    ctl(path, "resume")
    check(Agent(daemon.port, "three", "node3").next(FORMED), "new jobs again")

    ctl(path, "end", "one", "maintenance at noon")
    check(b"ended by an administrator: maintenance at noon" in first.next(ENDS), "the job is told why it ends")
    ctl(path, "evict", "two", "node2", "a broken GPU")
    check(b"evicted by an administrator: a broken GPU" in second.next(DROPPED), "the machine is told why")
    check(second.next(WELCOME) == b"", "its connection ends")
    dump = ctl(path, "dump")
    check("keys 0" in dump and "peer 127.0.0.1: " in dump and "one: in round" in dump, f"dump, found {dump}")

    for words, message in ((("end", "none"), 'no job has the run id "none"'),
                           (("evict", "one", "elsewhere"), "has the host name or address"),
                           (("evict", "one"), "usage: evict RUN_ID HOST"), (("fly",), "expected list, dump")):
        check(message in ctl(path, *words, status=1), f"{words}: expected {message!r}")
    check("expected HOST:PORT" in ctl("nowhere", "list", status=2), "a wrong address")
    # A plain port serves no administrator: every user of this machine can connect.
    with socket.create_connection(("127.0.0.1", daemon.port), timeout=240) as stranger:
        stranger.sendall(b"\xadadm\1" + struct.pack("<I", 5) + b"list\0")
        check(stranger.recv(1) == b"", "no administration on a plain port")
    daemon.stop()


def restarts(folder):
    """A killed daemon that is started again still drains."""
    path = f"unix:{folder}/again"
    flags = ["--host", f"127.0.0.1,{path}", "--log_level", "error", "--state_dir", f"{folder}/state"]
    for command, drains in (("drain", True), ("resume", False)):
        daemon = Daemon(DAEMON, *flags)
        ctl(path, command)
        daemon.process.kill()
        daemon.process.wait()
        daemon = Daemon(DAEMON, *flags)
        check(f"draining {str(drains).lower()}" in ctl(path, "dump"), f"{command} is in the log")
        refused = b"drains it" in Agent(daemon.port, f"after {command}", "node1").next(DROPPED if drains else FORMED)
        check(refused == drains, f"a new job after {command} and a restart")
        daemon.process.kill()
        daemon.process.wait()


def tokens(folder):
    token = Path(folder) / "token"
    token.write_text("t" * 32 + "\n")
    token.chmod(0o600)
    old, job = Path(folder) / "old", Path(folder) / "job"
    old.write_text(token.read_text())
    daemon = Daemon(DAEMON, "--token_file", str(token), "--log_level", "critical")
    address = f"127.0.0.1:{daemon.port}"
    check(ctl(address, "list", token=token) == "no jobs\n", "an administrator with the token")
    check("ACC_RENDEZVOUS_TOKEN_FILE must name" in ctl(address, "list", status=2), "no token")
    job.write_text(subprocess.run([DAEMON, "job-token", "one"], capture_output=True, text=True, check=True,
                                  env={**os.environ, "ACC_RENDEZVOUS_TOKEN_FILE": str(token)}).stdout)
    check("the token is for one job only" in ctl(address, "list", token=job, status=2), "a job's token")

    check(subprocess.run([DAEMON, "rotate-token", str(token)]).returncode == 0, "rotate-token")
    lines = token.read_text().splitlines()
    check(len(lines) == 2 and len(lines[0]) == 64 and lines[1] == "t" * 32, f"token file: {len(lines)} lines")
    check(token.stat().st_mode & 0o777 == 0o600, "only its user can read the token file")
    new = copy_of(folder, lines[0])
    reload(daemon, address, old)
    for accepted in (old, new):
        ctl(address, "list", token=accepted)
    token.write_text(lines[0] + "\n")
    reload(daemon, address, new)
    check("the server refuses the token" in ctl(address, "list", token=old, status=2), "the old token is refused")
    token.write_text("short\n")
    reload(daemon, address, new)
    ctl(address, "list", token=new)
    daemon.stop()


def reload(daemon, address, token):
    """The daemon reads the signal between connections."""
    daemon.process.send_signal(signal.SIGHUP)
    for _ in range(3):
        ctl(address, "list", token=token)


def copy_of(folder, text):
    path = Path(folder) / "copy"
    path.write_text(text + "\n")
    path.chmod(0o600)
    return path


with tempfile.TemporaryDirectory() as folder:
    jobs(folder)
    restarts(folder)
    tokens(folder)
exit_with(failures)
