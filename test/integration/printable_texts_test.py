# SPDX-License-Identifier: Apache-2.0
"""External text is escaped: it cannot move the terminal's cursor or begin a new line.

    printable_texts_test.py ACCLAUNCH ACC_RENDEZVOUS SOURCE_FOLDER
"""
import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, RENDEZVOUS = os.path.abspath(sys.argv[1]), os.path.abspath(sys.argv[2])
SOURCE = Path(sys.argv[3]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from agent_bytes import HELLO, frame, i32, text

WELCOME, BEAT, WAITING, FORMED, ENDS, KILL_WORKERS, SETTLED, DROPPED = range(8)
EVIL = "evil\x1b[2J\x9b1m\u202e\nacclaunch: all is well \u00e4\u20ac"
SHOWN = r"evil\x1b[2J\xc2\x9b1m\xe2\x80\xae\x0aacclaunch: all is well " + "\u00e4\u20ac"


def check(what, output, times=1):
    """`times`: required number of occurrences of the text in its escaped form."""
    shown = output.decode()  # the output must stay valid UTF-8
    lines = shown.splitlines()
    assert not set(shown) & {"\x1b", "\x9b", "\u202e", "\x07"}, (what, shown)
    assert not any(line.startswith("acclaunch: all is well") for line in lines), (what, shown)
    assert shown.count(SHOWN) >= times, (what, shown)
    print(f"{what}: {shown.count(SHOWN)} times")


class RogueServer:
    """Answers one agent with given bytes."""

    def __init__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]

    def run(self, flags, *answers):
        """Returns the output of a launcher that connects to this server. None in the replies: wait for
        the agent's next frame that is not a heartbeat."""
        launcher = subprocess.Popen([ACCLAUNCH, "--cpu", "--num_machines", "2", "--num_processes",
                                     "2", "--machine_rank", "1", "--main_process_ip", "127.0.0.1",
                                     "--main_process_port", str(self.port), *flags],
                                    stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        peer, _ = self.listener.accept()
        assert peer.recv(len(HELLO), socket.MSG_WAITALL) == HELLO
        for answer in (None, *answers):
            if answer is not None:
                peer.sendall(answer)
                continue
            kind = BEAT_OF_AGENT
            while kind == BEAT_OF_AGENT:
                size, = struct.unpack("<I", peer.recv(4, socket.MSG_WAITALL))
                kind = peer.recv(size, socket.MSG_WAITALL)[0]
        peer.shutdown(socket.SHUT_WR)
        output, _ = launcher.communicate(timeout=240)
        peer.close()
        return output


BEAT_OF_AGENT = 2
WELCOMES = frame(WELCOME, struct.pack("<2q", 1_000, 20_000), b"\0", struct.pack("<q", 0))
# Round 0, restart 0, machine rank 1; two machines of one worker; the workers' store.
FORMS = frame(FORMED, i32(0, 0, 1), struct.pack("<I", 1), struct.pack("<Ii", 2, 1),
              text("127.0.0.1") + struct.pack("<H", 1) + text("") + i32(1, 2, 0))


def attempt_end(cause):
    return i32(0) + text(EVIL) + i32(1) + b"\0" + bytes([cause]) + text(EVIL)


def settlement(cause):
    machines = i32(0) + text(EVIL) + text("") + i32(1) + text("here") + text("")
    return frame(SETTLED, b"\1" + attempt_end(cause), struct.pack("<I", 2) + machines, b"\0")


def check_other_machines():
    server = RogueServer()
    check("a Waiting text and the reason of Dropped",
          server.run(["--no_python", "true"], WELCOMES, frame(WAITING, text(EVIL)),
                     frame(DROPPED, b"\0", text(EVIL))), 2)
    for cause, what in ((0, "a worker's"), (2, "a machine's"), (3, "a membership's")):
        check(f"{what} end: host and reason, in the lines and in the report",
              server.run(["--no_python", "sleep", "1000"], WELCOMES, FORMS,
                         frame(ENDS, attempt_end(cause)), None, settlement(cause)),
              2)


def run(*words, **variables):
    ran = subprocess.run([ACCLAUNCH, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                         env={**os.environ, **variables}, timeout=240)
    return ran.stdout


def check_files_and_flags(folder):
    check("a flag", run("--cpu", "--mixed_precision", EVIL, "--no_python", "true"))
    check("a variable", run("--no_python", "true", ACC_SIMULATE_GPUS=EVIL))
    config = folder / "config.yaml"
    config.write_text(f"mixed_precision: {ascii_yaml(EVIL)}\n")
    check("a configuration file", run("--config_file", str(config), "--no_python", "true"))
    check("the environment that explain shows",
          run("explain", "--cpu", "--num_processes", "2", "--main_process_port", "29500",
              "--no_python", "true", EVIL))


def ascii_yaml(value):
    escaped = "".join(c if " " <= c < "\x7f" else f"\\U{ord(c):08x}" for c in value)
    return f'"{escaped}"'


def check_workers(folder):
    script = folder / "worker"
    script.write_text('#!/bin/sh\n[ $RANK = 0 ] && exec sleep 1000\n'
                      f'cat "{folder}/error" > $TORCHELASTIC_ERROR_FILE\nexit 3\n')
    script.chmod(0o755)
    escaped = "".join(c if " " <= c < "\x7f" else f"\\u{ord(c):04x}" for c in EVIL)
    (folder / "error").write_text('{"message": {"message": "%s"}}' % escaped)
    output = run("--cpu", "--num_processes", "2", "--no_python", str(script)).decode()
    assert not set(output) & {"\x1b", "\x9b", "\u202e"}, output
    # Further lines of a message are indented.
    assert r"  error     evil\x1b[2J\xc2\x9b1m\xe2\x80\xae" + "\n            acclaunch: all is well" \
        in output, output
    print("an error file: in its place")


def check_daemon():
    def run_daemon(port, **variables):
        return subprocess.run([RENDEZVOUS, "--port", port], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=240,
                              env={**os.environ, **variables}).stdout

    check("a setting of acc-rendezvous", run_daemon(EVIL))
    with socket.create_server(("127.0.0.1", 0)) as taken:  # the port is in use, so the launcher ends after its warning
        log = run_daemon(str(taken.getsockname()[1]), **{"ACC_RENDEZVOUS_\x1b[2J": "1"})
    assert b"\x1b" not in log and rb"ACC_RENDEZVOUS_\x1b[2J is not a setting" in log, log
    print("a line of acc-rendezvous's log: in its place")


if __name__ == "__main__":
    check_other_machines()
    with tempfile.TemporaryDirectory() as name:
        check_files_and_flags(Path(name))
        check_workers(Path(name))
    check_daemon()
