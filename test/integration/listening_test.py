#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Addresses on which launchers listen, by their flags, in a network namespace with its own /etc/hosts.

    listening_test.py BIN_FOLDER

Each row starts launchers, waits until they listen, and compares the addresses of all listening
sockets. Exits with 77 if network or mount namespaces cannot be created.
"""
import os
import socket
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from own_network import enter_own_network

SKIPPED = 77
PORT = 29511
OWN, OWN6, FOREIGN = "10.9.0.1", "fd00:9::1", "192.0.2.1"
NODE = "node0.test"  # resolves to 127.0.1.1, as on Debian
HERE = "here.test"  # resolves to OWN
ALL = {"0.0.0.0", "::"}
UP = "echo worker-up; exec sleep 1000"
# A worker that connects to its store like torch, by the system's name resolution.
REACH = ("python3 -c 'import os, socket; e = os.environ; "
         "socket.create_connection((e[\"MASTER_ADDR\"], int(e[\"MASTER_PORT\"]))); print(\"reached\")'")
HOSTS = f"127.0.0.1 localhost\n127.0.1.1 {NODE}\n{OWN} {HERE}\n"


def listening():
    """Addresses of all listening TCP sockets of this network namespace."""
    found = set()
    for path, family in (("/proc/net/tcp", socket.AF_INET), ("/proc/net/tcp6", socket.AF_INET6)):
        if not os.path.exists(path):
            continue
        for line in Path(path).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                words = bytes.fromhex(fields[1].split(":")[0])
                raw = b"".join(struct.pack(">I", *struct.unpack("<I", words[i:i + 4]))
                               for i in range(0, len(words), 4))
                found.add(socket.inet_ntop(family, raw))
    return found


class Launcher:
    """acclaunch with its own /etc/hosts."""

    def __init__(self, arguments, script, hosts, errors):
        self.errors = errors
        self.process = subprocess.Popen(
            ["unshare", "-m", "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"', hosts,
             BIN / "acclaunch", *arguments, "/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True)

    def wait_for_error(self, text):
        while text not in self.said():
            assert self.process.poll() is None, self.said()
            time.sleep(0.02)  # poll interval for a file that another process writes

    def wait_for_output(self, text):
        line = ""
        while text not in line:
            line = self.process.stdout.readline()
            assert line, self.said()

    def said(self):
        return Path(self.errors.name).read_text()


def torchrun(*flags):
    return ["torchrun", *flags, "--no-python"]


def static(address, rank=0):
    return torchrun("--nnodes", "2", "--node-rank", str(rank), "--master-addr", address, "--master-port", str(PORT))


def c10d(address, *more):
    return torchrun("--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{address}:{PORT}", "--insecure", *more)


def accelerate(*flags):
    return ["launch", "--cpu", *flags]


def several(address, rank=0):
    return accelerate("--num_machines", "2", "--num_processes", "2", "--machine_rank", str(rank),
                      "--main_process_ip", address, "--main_process_port", str(PORT))


WARNING = "is open: any client that reaches it can read and write every key and join every job"
UNCONNECTED = "is not connected to, because one machine needs no rendezvous"
ELSEWHERE = (f"this is machine 0, but --main_process_ip {FOREIGN} resolves to {FOREIGN}, "
             "which is not an address of this machine")
# Name, launchers, addresses, expected text on stderr, unexpected text on stderr. A single launcher of
# two machines waits for the other one; otherwise the workers run.
ROWS = [
    ("static, loopback", [static("127.0.0.1")], {"127.0.0.1"}, [], [WARNING]),
    ("static, localhost", [static("localhost")], {"127.0.0.1"}, [], [WARNING]),
    ("static, an own address", [static(OWN)], {OWN}, ["waiting for machine rank 1; 1 of 2 machines are here: machine rank 0", WARNING],
     [ELSEWHERE]),
    ("static, an own name", [static(HERE)], {OWN}, [WARNING], []),
    ("static, IPv6 in brackets", [static(f"[{OWN6}]")], {OWN6}, [WARNING], []),
    ("static, IPv6", [static(OWN6)], {OWN6}, [WARNING], []),
    ("static, a name that is 127.0.1.1 here", [static(NODE)], ALL, [WARNING], [ELSEWHERE]),
    ("static, another machine's address", [static(FOREIGN)], ALL, [WARNING, ELSEWHERE], []),
    ("static, an unknown name", [static("nobody.test")], ALL, [WARNING, "cannot look up --main_process_ip nobody.test"], []),
    ("accelerate, loopback", [several("127.0.0.1")], {"127.0.0.1"}, [], [WARNING]),
    ("accelerate, an own address", [several(OWN)], {OWN}, [WARNING], []),
    ("accelerate, IPv6 in brackets", [several(f"[{OWN6}]")], {OWN6}, [WARNING], []),
    ("deepspeed, IPv6 in brackets",
     [["deepspeed", "--no_ssh", "--node_rank", "0", "--hostfile", "HOSTFILE", "--master_addr", f"[{OWN6}]",
       "--master_port", str(PORT), "--no_python", "--no_local_rank"]], {OWN6}, [WARNING], []),
    ("c10d, loopback", [c10d("127.0.0.1")], {"127.0.0.1"}, [], [WARNING]),
    ("c10d, an own address", [c10d(OWN)], {OWN}, [], [WARNING]),
    ("c10d, IPv6", [c10d(f"[{OWN6}]")], {OWN6}, [], [WARNING]),
    ("c10d, --local-addr", [c10d(OWN, "--local-addr", "127.0.0.1")], {OWN, "127.0.0.1"}, [], [WARNING]),
    ("c10d, a name that is 127.0.1.1 here", [c10d(NODE)], ALL, [WARNING], []),
    ("static, two machines", [static(OWN), static(OWN, 1)], {OWN}, [WARNING], []),
    ("static, two machines by brackets", [static(f"[{OWN6}]"), static(f"[{OWN6}]", 1)], {OWN6}, [WARNING], []),
    ("accelerate, two machines", [several(OWN), several(OWN, 1)], {OWN}, [WARNING], []),
    ("c10d, two machines", [c10d(OWN), c10d(OWN)], {OWN}, [], [WARNING]),
    ("c10d, two machines by name", [c10d(HERE), c10d(HERE)], {OWN}, [], [WARNING]),
    ("one machine, torchrun", [torchrun("--nproc-per-node", "2")], {"127.0.0.1"}, [], [WARNING]),
    ("one machine, standalone", [torchrun("--standalone", "--nproc-per-node", "2")], {"127.0.0.1"}, [], [WARNING]),
    ("one machine, an address", [torchrun("--nproc-per-node", "2", "--master-addr", OWN, "--master-port", str(PORT))],
     {OWN}, [], [WARNING]),
    ("one machine, all interfaces",
     [torchrun("--nproc-per-node", "2", "--master-addr", "0.0.0.0", "--master-port", str(PORT))],
     {"0.0.0.0"}, [WARNING], []),
    ("one machine, c10d", [torchrun("--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{OWN}:{PORT}")],
     {"127.0.0.1"}, [UNCONNECTED], [WARNING]),
    ("one machine, accelerate with c10d",
     [accelerate("--num_processes", "2", "--rdzv_backend", "c10d", "--main_process_ip", OWN, "--main_process_port", str(PORT))],
     {"127.0.0.1"}, [UNCONNECTED], [WARNING]),
    ("one machine, the default port is in use", [accelerate("--num_processes", "2")], {"127.0.0.1"},
     ["port 29500 is in use by"], [WARNING]),
    ("one machine, the default port is in use, quiet",
     [accelerate("--quiet", "--num_processes", "2", "--status_port", str(PORT))], {"127.0.0.1"}, [],
     ["acclaunch:", "port"]),
    ("one machine, quiet, a free port to watch at", [accelerate("--quiet", "--num_processes", "2", "--status_port", "0")],
     {"127.0.0.1"}, ["the job can be watched at http://127.0.0.1:"], [WARNING]),
    ("one machine, accelerate", [accelerate("--num_processes", "2")], {"127.0.0.1"}, [], [WARNING]),
    ("one machine, accelerate with an address", [accelerate("--num_processes", "2", "--main_process_ip", OWN)],
     {"127.0.0.1"}, [], [WARNING]),
    ("one machine, deepspeed", [["deepspeed", "--num_gpus", "2", "--no_python", "--no_local_rank"]], {"127.0.0.1"}, [], [WARNING]),
]

# Lines for localhost in /etc/hosts, and the addresses on which a store at localhost listens.
LOCALHOSTS = [
    ("as IPv4 written as IPv6", "::ffff:127.0.0.1 localhost\n", {"127.0.0.1"}),
    ("as IPv6 alone", "::1 localhost\n", {"::1"}),
    ("as IPv4 alone", "127.0.0.1 localhost\n", {"127.0.0.1"}),
    ("twice", "127.0.0.1 localhost\n::1 localhost\n", {"127.0.0.1", "::1"}),
    ("not at all", "127.0.0.1 other\n", {"127.0.0.1"}),
]


def file_of(stack, text):
    file = stack.enter_context(tempfile.NamedTemporaryFile("w+"))
    file.write(text)
    file.flush()
    return file


def check_row(name, launchers, expected, said, unsaid, hosts=HOSTS):
    with ExitStack() as stack:
        hosts_file = file_of(stack, hosts)
        hostfile = file_of(stack, f"{HERE} slots=1\nother.test slots=1\n")
        jobs = []
        if "the default port is in use" in name:
            stack.enter_context(socket.create_server(("127.0.0.1", 29500)))
        for arguments in launchers:
            arguments = [hostfile.name if each == "HOSTFILE" else each for each in arguments]
            jobs.append(Launcher(arguments, UP, hosts_file.name, file_of(stack, "")))
        try:
            is_alone = len(launchers) == 1 and not name.startswith(("one machine", "localhost"))
            for job in jobs:
                if is_alone:
                    job.wait_for_error("waiting for machine")
                else:
                    job.wait_for_output("worker-up")
            found = listening()
            assert found == expected, f"{name}: listens on {found}, expected {expected}\n{jobs[0].said()}"
            for text in said:
                assert text in jobs[0].said(), f"{name}: does not say {text!r}\n{jobs[0].said()}"
            for text in unsaid:
                assert text not in jobs[0].said(), f"{name}: says {text!r}\n{jobs[0].said()}"
        finally:
            for job in jobs:
                job.process.terminate()
            for job in jobs:
                job.process.wait()
                job.process.stdout.close()
        print(f"{name}: {', '.join(sorted(found))}")


def check_localhost(name, hosts, expected):
    check_row(f"localhost {name}", [torchrun("--nproc-per-node", "2")], expected, [], [], hosts)
    with ExitStack() as stack:
        hosts_file = file_of(stack, hosts)
        script = f"{REACH} && MASTER_ADDR=localhost TORCHELASTIC_RESTART_COUNT=1 {BIN / 'store_key'} key"
        commands = [[torchrun("--nproc-per-node", "2")], [static("localhost"), static("localhost", 1)],
                    [c10d("localhost"), c10d("localhost")]]
        for launchers in commands:
            jobs = [Launcher(each, script, hosts_file.name, file_of(stack, "")) for each in launchers]
            for job in jobs:
                out, _ = job.process.communicate()
                assert job.process.returncode == 0 and "reached" in out, f"{name}: {launchers}\n{out}{job.said()}"


def collect(failures, check, *arguments):
    """Reports all rows that fail, not only the first one."""
    try:
        check(*arguments)
    except AssertionError as error:
        failures.append(error)
        print("broken:", error, flush=True)


def has_ipv6():
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((OWN6, 0))
            return True
        except OSError:
            return False


def main():
    subprocess.run(["ip", "address", "add", OWN + "/32", "dev", "lo"], check=True)
    subprocess.run(["ip", "address", "add", OWN6 + "/128", "dev", "lo", "nodad"], check=False)
    with_ipv6 = has_ipv6()
    failures = []
    for name, launchers, expected, said, unsaid in ROWS:
        if not with_ipv6 and "IPv6" in name + str(OWN6 in expected):
            print(f"{name}: left out, no IPv6 here")
            continue
        collect(failures, check_row, name, launchers, expected if with_ipv6 else expected - {"::"}, said, unsaid)
    for name, hosts, expected in LOCALHOSTS:
        if with_ipv6 or "::1" not in expected:
            collect(failures, check_localhost, name, hosts, expected)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    BIN = Path(sys.argv[1]).resolve()
    can_mount = subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0
    if not can_mount or os.geteuid() != 0 or not enter_own_network():
        print("no network or mount namespace can be made here")
        sys.exit(SKIPPED)
    main()
