# SPDX-License-Identifier: Apache-2.0
"""acclaunch top: once, as JSON and live on a terminal; over simulated jobs, one of them with 4,096 ranks, and over a
real job on this machine.

    top_test.py ACCLAUNCH SOURCE_FOLDER"""
import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path

ACCLAUNCH, SOURCE = sys.argv[1], Path(sys.argv[2]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
import simulated_api  # noqa: E402
from json_schema import Schema  # noqa: E402

DEADLINE = 240
SCHEMA = Schema(SOURCE / "docs/api.schema.json")


def run(*words):
    done = subprocess.run([ACCLAUNCH, "top", *words], capture_output=True, text=True, timeout=DEADLINE)
    return done.returncode, done.stdout, done.stderr


class Terminal:
    """`acclaunch top` on a terminal of its own."""

    def __init__(self, words, rows, columns, **variables):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ.pop("NO_COLOR", None)
            os.environ |= {"TERM": "xterm"} | variables
            os.execv(ACCLAUNCH, [ACCLAUNCH, "top", *words])
        self.bytes = b""
        self.resize(rows, columns)

    def resize(self, rows, columns):
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def screen(self):
        """The lines of the last whole frame. A frame begins at the top and ends with the erasure of the rest."""
        frames = [frame for frame in self.bytes.decode(errors="replace").split("\x1b[H")[1:] if "\x1b[J" in frame]
        frame = frames[-1].partition("\x1b[J")[0] if frames else ""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\r", "", frame).split("\n")

    def read(self, seconds):
        if not select.select([self.fd], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self.fd, 1 << 16)
        except OSError:
            data = b""
        self.bytes += data
        return bool(data)

    def wait_for(self, is_there, what):
        deadline = time.monotonic() + DEADLINE
        while not is_there(self.screen()):
            assert time.monotonic() < deadline and self.read(DEADLINE), (what, self.screen())

    def press(self, keys):
        os.write(self.fd, keys.encode())

    def end(self):
        while self.read(DEADLINE):
            pass
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def check_once(endpoint):
    status, out, err = run("--rdzv-endpoint", endpoint, "--once")
    assert status == 0, err
    lines = out.splitlines()
    assert re.match(r"JOB +STATE +MACHINES +RANKS +STEP +LOSS +TOKENS/S +SLOWEST +RESTARTS +HEARTBEAT +FOR$", lines[0]), lines[0]
    assert re.match(r"running +running +2/2 +4 +\d+ +1\.\d+ +[12]\d\dk +1 +0/3 +(now|\d.* ago) +1\d min", lines[1]), lines[1]
    assert re.match(r"large +running +512/512 +4096 ", lines[2]), lines[2]
    assert "waits: 1 more machine" in lines and "machine 1 (node1) is lost: no heartbeat for 30 s" in lines
    assert len(re.findall(r"^ *\d+  node\d+ +\d+  (running|failed|lost|starting|stopped) ", out, re.M)) == 4 + 4096 + 4 + 4 + 2
    assert re.search(r"^ +3  node1 .* NaN ", out, re.M), out[:2000]
    assert simulated_api.MARKUP in out
    status, out, err = run("--rdzv-endpoint", endpoint, "failed", "--once")
    assert status == 0 and "running" not in out and "rank 2 (pid 4002 on node1): exited with code 1" in out, out + err


def check_json(endpoint):
    status, out, err = run("--rdzv-endpoint", endpoint, "--json")
    assert status == 0, err
    jobs = json.loads(out)
    assert [job["job"]["id"] for job in jobs] == list(simulated_api.JOBS)
    assert [len(job["ranks"]) for job in jobs] == [4, 4096, 4, 4, 2, 2]
    check_schema(jobs)


def check_schema(jobs):
    for job in jobs:
        assert SCHEMA.faults(job["job"], {"$ref": "#/$defs/job"}) == [], job["job"]
        for rank in job["ranks"][:100]:
            assert SCHEMA.faults(rank, {"$ref": "#/$defs/rank"}) == [], rank


def check_live(endpoint):
    top = Terminal(["--rdzv-endpoint", endpoint, "large", "--interval", "0.2"], rows=12, columns=120)
    first = lambda lines: next((int(line.split()[0]) for line in lines[2:] if re.match(r" *\d+  ", line)), None)  # noqa: E731
    top.wait_for(lambda lines: len(lines) == 12 and first(lines) == 0, "a screen full of ranks")
    assert endpoint in top.screen()[0] and "HEARTBEAT" in top.screen()[2]
    # Fewer columns and more rows: the display follows, and leaves out what is less important.
    top.resize(40, 60)
    top.wait_for(lambda lines: len(lines) == 40 and max(map(len, lines[1:])) <= 60, "the new size")
    assert "LOSS" in top.screen()[2] and "MACHINES" not in top.screen()[2], top.screen()
    top.press("\x1b[6~")
    top.wait_for(lambda lines: (first(lines) or 0) > 20, "the next page")
    top.press("G")
    top.wait_for(lambda lines: any(line.lstrip().startswith("4095 ") for line in lines), "the last rank")
    top.press("g")
    top.wait_for(lambda lines: first(lines) == 0, "the first rank")
    top.press("s")
    top.wait_for(lambda lines: first(lines) == 2049, "the slowest rank first")
    # The server is gone: the last state stays, and the reason is shown.
    simulated_api.stop()
    top.wait_for(lambda lines: "Connection refused" in lines[1] and first(lines) == 2049, "the reason")
    top.press("q")
    assert top.end() == 0
    assert top.bytes.endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l"), top.bytes[-40:]


def check_choice(endpoint):
    """A long name is cut and hides no column; keys choose a job; colours, unless NO_COLOR is set."""
    names = list(simulated_api.JOBS)
    top = Terminal(["--rdzv-endpoint", endpoint, "--interval", "600"], rows=30, columns=100)  # one look: it takes long
    top.wait_for(lambda lines: any(line.startswith(simulated_api.MARKUP[:15]) and "…" in line for line in lines), "a name that is cut")
    assert f"all {len(names)} jobs" in top.screen()[0] and max(map(len, top.screen()[1:])) <= 100, top.screen()
    for column in ("JOB", "STATE", "MACHINES", "RANKS", "STEP", "LOSS", "TOKENS/S", "SLOWEST", "RESTARTS"):
        assert column in top.screen()[2].split(), top.screen()
    for number in (1, 2):
        top.press("\x1b[C")
        top.wait_for(lambda lines: f"job {number} of {len(names)}" in lines[0], "the next job")
        assert [line.split()[0] for line in top.screen()[3:] if line and line.split()[0] in names] == [names[number - 1]], top.screen()
    for key, place in (("\x1b[D", f"job 1 of {len(names)}"), ("h", f"all {len(names)} jobs")):
        top.press(key)
        top.wait_for(lambda lines: place in lines[0], place)
    top.press("q")
    assert top.end() == 0 and b"\x1b[32mrunning" in top.bytes and b"\x1b[31mfailed" in top.bytes
    for words in ([], ["--once"]):
        top = Terminal(["--rdzv-endpoint", endpoint, "running", *words], rows=30, columns=100, NO_COLOR="1")
        top.wait_for(lambda lines: words or len(lines) > 8, "a screen")
        top.press("q")
        assert top.end() == 0 and not re.search(rb"\x1b\[[0-9;]*3[0-7]m", top.bytes), top.bytes
    assert "\x1b" not in run("--rdzv-endpoint", endpoint, "--once")[1]


def check_local():
    job = subprocess.Popen(
        [ACCLAUNCH, "torchrun", "--nproc-per-node", "3", "--max-restarts", "2", "--rdzv-backend", "c10d",
         "--rdzv-endpoint", "localhost:0", "--rdzv-id", "watched", "--no-python", "sh", "-c",
         "echo here; read line; sleep 1000"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for _ in range(3):
        job.stdout.readline()
    for name in ("watched", str(job.pid)):
        status, out, err = run(name, "--json")
        assert status == 0, err
        (watched,) = json.loads(out)
        check_schema([watched])
        assert [rank["rank"] for rank in watched["ranks"]] == [0, 1, 2] and watched["job"]["max_restarts"] == 2
        assert all(rank["resident_bytes"] > 0 for rank in watched["ranks"])
    status, out, err = run("--once")
    assert status == 0 and re.search(r"^watched +running +1/1 +3 ", out, re.M), out + err
    top = Terminal(["watched", "--interval", "0.2"], rows=24, columns=100)
    top.wait_for(lambda lines: len(lines) == 10 and lines[9].split()[0] == "2", "three ranks")
    # A job that ends while it is watched.
    os.kill(job.pid, signal.SIGTERM)
    job.wait()
    job.stdout.close()
    top.wait_for(lambda lines: "no acclaunch on this machine" in lines[1], "the end of the job")
    os.kill(top.pid, signal.SIGTERM)
    assert top.end() == 0 and top.bytes.endswith(b"\x1b[?1049l")
    status, _, err = run("watched", "--once")
    assert status == 2 and 'run ID or Slurm job ID "watched"' in err, err


def check_bad_input(closed):
    for words, expected, message in (
            (["--rdzv-endpoint", "host:port", "--once"], 2, 'expected HOST:PORT, found "host:port"'),
            (["--rdzv-endpoint", f"127.0.0.1:{closed}", "--once"], 1, f"127.0.0.1:{closed}: Connection refused"),
            (["--interval", "0"], 2, "--interval"),
            ([], 2, "top needs a terminal")):
        status, out, err = run(*words)
        assert status == expected and out == "" and message in err, (words, status, err)


def serve_bytes(answer):
    """A server that passes each of its connections with the request's first line to `answer`. Returns its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            client, _ = listener.accept()
            with client:
                try:
                    answer(client, client.recv(4096).decode().splitlines()[0])
                except OSError:
                    pass  # top has seen enough
    threading.Thread(target=serve, daemon=True).start()
    return listener.getsockname()[1]


def check_strange_servers():
    """top ends, with a reason, whatever a server sends."""
    job = {"id": "job", "state": "running"}

    def body(client, content, length=None):
        head = "" if length is None else f"Content-Length: {length}\r\n"
        client.sendall(f"HTTP/1.1 200 OK\r\n{head}\r\n{content}".encode())

    def endless(client, _):
        body(client, "[")
        while True:
            client.sendall(b" " * 1_000_000)

    def with_ranks(total, number):
        def answer(client, line):
            body(client, json.dumps({"total": total, "ranks": [{}] * number} if "/ranks" in line else {"jobs": [job]}))
        return answer

    for answer, message in (
            (endless, "an answer of more than 64 MiB"),
            (with_ranks(10**9, 1), "a job of 1000000000 ranks, expected at most 262144"),
            (with_ranks(1000, 1), "1 ranks in an answer that has more, expected 2000"),
            (lambda client, _: body(client, json.dumps({"jobs": [job] * 10_001})), "a list of at most 10000 jobs"),
            (lambda client, _: body(client, '{"jobs": []}', 100), "the answer is cut off"),
            (lambda client, _: body(client, '{"jobs": ['), "the answer is cut off, or it is not JSON")):
        endpoint = f"127.0.0.1:{serve_bytes(answer)}"
        status, out, err = run("--rdzv-endpoint", endpoint, "--once")
        assert status == 1 and out == "" and f"{endpoint}: " in err and message in err, (message, status, out, err)

    def stays_open(client, _):
        body(client, '{"jobs": []}', 12)
        client.recv(1)  # until top has gone
    status, out, err = run("--rdzv-endpoint", f"127.0.0.1:{serve_bytes(stays_open)}", "--once")
    assert status == 0 and "no job has joined" in out, (status, out, err)


port = simulated_api.serve(SOURCE / "rendezvous/src/page/status.html")
check_strange_servers()
check_once(f"127.0.0.1:{port}")
check_json(f"127.0.0.1:{port}")
status, _, err = run("--rdzv-endpoint", f"127.0.0.1:{port}", "unknown", "--once")
assert status == 2 and "none" in err, err
check_choice(f"127.0.0.1:{port}")
check_live(f"127.0.0.1:{port}")
check_bad_input(port)
check_local()
