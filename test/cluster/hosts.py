# SPDX-License-Identifier: Apache-2.0
"""Virtual hosts on this machine, made of Linux namespaces. They can be disconnected, frozen and crashed.

    with Cluster(["head", "node0", "node1"]) as cluster:
        running = cluster["node0"].start(["ping", "head"])
        running.wait_for("ttl=")
        cluster.cut(["head"], ["node0", "node1"])

A host has its own network, name, processes, /dev/shm and boot ID; the rest of the file system is
shared, as on a cluster with shared storage. Needs root, iproute2 and util-linux. Everything is a
child of this process and ends with it.
"""
import errno
import fnmatch
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid

HERE = pathlib.Path(__file__).resolve().parent
TOOLS = ("ip", "mount", "nsenter", "setpriv", "ss", "unshare")
DEADLINE_S = 600  # time limit for events that must happen; not used to measure speed
os.environ["PATH"] += ":/usr/sbin:/sbin"


def check(condition, message):
    if not condition:
        raise AssertionError(message)


def wait_until(condition, what, limit_s=DEADLINE_S, failure=AssertionError):
    """failure(text) makes the exception of a timeout. A condition that takes long, because it runs a program, is asked
    for less often: a sixth of the time."""
    deadline = time.monotonic() + limit_s
    begin = time.monotonic()
    while not condition():
        end = time.monotonic()
        if end > deadline:
            raise failure(f"timeout while waiting for: {what}")
        time.sleep(max(0.02, 5 * (end - begin)))
        begin = time.monotonic()


def why_impossible():
    """Returns what this machine lacks for virtual hosts, or None if they can be created."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    trial = ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc", "true"]
    result = subprocess.run(trial, capture_output=True, text=True)
    return result.stderr.strip() if result.returncode else None


def start_process(command, **options):
    """Starts a process that is killed when this process ends."""
    return subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *command], text=True, **options)


def read_ok(process, what):
    answer = process.stdout.readline()
    if answer != "ok\n":
        raise RuntimeError(f"{what}: {answer}{process.stdout.read()}")


class Running:
    """A program on a host. Its output is read continuously, and the time of every line is recorded."""

    def __init__(self, host, command, environment):
        self.host, self.command = host, command
        self.lines = []  # (time.monotonic(), text)
        self.news = threading.Condition()
        self.ended = False
        self.process = start_process(
            [*host.enter(), "--", *map(str, command)], env=dict(os.environ, **environment),
            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            with self.news:
                self.lines.append((time.monotonic(), line.rstrip("\n")))
                self.news.notify_all()
        self.process.wait()
        with self.news:
            self.ended = True
            self.news.notify_all()

    def text(self):
        with self.news:
            return "\n".join(line for _, line in self.lines)

    def failure(self, what):
        return AssertionError(f"{self.host.name}: {what}\n{' '.join(map(str, self.command))}\n{self.text()}")

    def count(self, text):
        with self.news:
            return sum(text in line for _, line in self.lines)

    def wait_for(self, text, count=1, timeout=DEADLINE_S):
        """Waits for the `count`th line that contains `text`, and returns its time."""
        def found():
            times = [at for at, line in self.lines if text in line]
            return times[count - 1] if len(times) >= count else None
        with self.news:
            self.news.wait_for(lambda: found() is not None or self.ended, timeout)
        at = found()
        if at is None:
            raise self.failure(f"'{text}' did not appear {count} times")
        return at

    def wait(self, timeout=DEADLINE_S):
        """Waits for the end. Returns the exit status, or -N if signal N killed the program."""
        with self.news:
            if not self.news.wait_for(lambda: self.ended, timeout):
                raise self.failure("did not end")
        return self.process.returncode

    def expect_status(self, status):
        if self.wait() != status:
            raise self.failure(f"ended with status {self.process.returncode}, expected {status}")


class Host:
    def __init__(self, cluster, name, number):
        self.cluster, self.name, self.number = cluster, name, number
        self.address = f"10.77.0.{number}"
        self.init = None  # pid of its first process in this pid namespace, while the host is up
        self.started = []

    def boot(self):
        (self.cluster.folder / f"{self.name}.boot_id").write_text(f"{uuid.uuid4()}\n")
        unshare = start_process(
            ["unshare", "--net", "--uts", "--ipc", "--mount", "--pid", "--fork", "--mount-proc",
             "--kill-child=KILL", sys.executable, HERE / "host_init.py", self.name, self.cluster.folder],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        read_ok(unshare, f"{self.name} does not start")
        self.unshare = unshare
        children = pathlib.Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children").read_text()
        self.init = int(children)
        self._connect()

    def _connect(self):
        port, mac = f"v{self.number}", f"02:00:00:00:00:{self.number:02x}"
        network = [*self.cluster.enter_network(), "ip", "link"]
        subprocess.run([*network, "add", port, "type", "veth", "peer", "name", "eth0", "address", mac,
                        "netns", str(self.init)], check=True)
        subprocess.run([*network, "set", port, "up"], check=True)
        for command in (["link", "set", "lo", "up"],
                        ["address", "add", f"{self.address}/24", "dev", "eth0"],
                        ["link", "set", "eth0", "up"]):
            subprocess.run([*self.enter_network(), "ip", *command], check=True)
        self.cluster.switch(f"plug {self.number}")

    def enter(self):
        return ["nsenter", "--target", str(self.init), "--mount", "--uts", "--ipc", "--net", "--pid",
                f"--wdns={os.getcwd()}"]

    def enter_network(self):
        """Enters the host's network alone, with the programs and files of this machine."""
        return ["nsenter", "--target", str(self.init), "--net"]

    def start(self, command, environment=None):
        self.started.append(Running(self, command, environment or {}))
        return self.started[-1]

    def processes(self):
        """Pids, in this pid namespace, of all processes except the first."""
        mine = os.readlink(f"/proc/{self.init}/ns/pid")
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                if os.readlink(entry / "ns/pid") == mine and int(entry.name) != self.init:
                    found.append(int(entry.name))
            except OSError:
                continue  # the process has ended
        return found

    def matching(self, text):
        """Pids of the processes whose command line begins with `text`."""
        found = []
        for pid in self.processes():
            try:
                words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ")
            except OSError:
                continue
            if words.startswith(text.encode()):
                found.append(pid)
        return found

    def freeze(self):
        """Stops every process, like a machine that hangs: its kernel still accepts connections."""
        for _ in range(2):  # twice: a process may fork during the first pass
            for pid in self.processes():
                _signal(pid, signal.SIGSTOP)

    def thaw(self):
        for pid in self.processes():
            _signal(pid, signal.SIGCONT)
        self._wake_parents()

    def _wake_parents(self):
        """Continues nsenter, which stops together with its child and is not continued with it."""
        for running in self.started:
            running.process.send_signal(signal.SIGCONT)

    def crash(self):
        """Simulates a power failure: connections are not closed, they become silent."""
        self.cluster.switch(f"unplug {self.number}")
        pids = os.stat(f"/proc/{self.init}/ns/pid").st_ino
        os.kill(self.init, signal.SIGKILL)
        self._wake_parents()
        self.unshare.wait()
        _remove_control_groups(pids)
        self.started.clear()
        self.init = None
        # The kernel removes the link of a deleted network namespace asynchronously.
        subprocess.run([*self.cluster.enter_network(), "ip", "link", "delete", f"v{self.number}"],
                       stderr=subprocess.DEVNULL)


def _signal(pid, number):
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _remove_control_groups(pid_namespace):
    """Removes the control groups of a crashed host's launchers; a real crash would remove them.

    Jobs beside this one remove their groups meanwhile: os.walk passes over a folder that is gone, pathlib's glob fails.
    """
    for mount in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified"):
        for parent, names, _ in os.walk(mount):
            for name in fnmatch.filter(names, f"acclaunch-*.{pid_namespace}"):
                for folder, _, _ in os.walk(os.path.join(parent, name), topdown=False):
                    wait_until(lambda: _removed(folder), f"the end of the processes in {folder}")


def _removed(folder):
    try:
        os.rmdir(folder)
    except OSError as error:
        if error.errno != errno.EBUSY:  # for a moment after the end of the last process
            raise
        return False
    return True


class Cluster:
    def __init__(self, names):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-cluster-"))
        self.hosts = {name: Host(self, name, number) for number, name in enumerate(names, 1)}

    def __enter__(self):
        lines = [f"{host.address} {host.name}\n" for host in self.hosts.values()]
        (self.folder / "hosts").write_text("127.0.0.1 localhost\n" + "".join(lines))
        self.network = start_process(
            ["unshare", "--net", sys.executable, HERE / "switch.py"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        read_ok(self.network, "the network does not start")
        for host in self.hosts.values():
            host.boot()
        return self

    def __exit__(self, *_):
        for host in self.hosts.values():
            if host.init is not None:
                host.crash()
        self.network.stdin.close()
        self.network.wait()
        shutil.rmtree(self.folder)

    def __getitem__(self, name):
        return self.hosts[name]

    def switch(self, command):
        self.network.stdin.write(command + "\n")
        self.network.stdin.flush()
        read_ok(self.network, command)

    def enter_network(self):
        return ["nsenter", "--target", str(self.network.pid), "--net"]

    def cut(self, some, others):
        """Drops frames between the two groups of hosts, in both directions."""
        for a in some:
            for b in others:
                self.switch(f"cut {self[a].number} {self[b].number}")

    def loss(self, name, percent):
        self.switch(f"loss {self[name].number} {percent}")

    def delay(self, name, milliseconds):
        """Delays each frame to and from the host, so that a round trip takes twice this time longer."""
        self.switch(f"delay {self[name].number} {milliseconds}")

    def rate(self, a, b, kilobits):
        """Limits the bandwidth between two hosts to this many kbit/s in each direction."""
        self.switch(f"rate {self[a].number} {self[b].number} {kilobits}")

    def block(self, a, b, ports):
        """Drops the first packet of TCP connections from one host to a range of ports of the other."""
        self.switch(f"block {self[a].number} {self[b].number} {ports.start} {ports.stop - 1}")

    def heal(self):
        self.switch("heal")

    def reset(self, a, b):
        """Ends all TCP connections between two hosts with a reset."""
        subprocess.run([*self[a].enter_network(), "ss", "--kill",
                        "--no-header", "--tcp", "dst", self[b].address],
                       check=True, stdout=subprocess.DEVNULL)
