# SPDX-License-Identifier: Apache-2.0
"""acclaunch --hostfile over real sshd, on virtual hosts that refuse, stop responding and crash.

    python cluster_ssh_test.py BIN [CASE...]      BIN holds acclaunch

Each case has hosts of its own. Four cases run at a time, because they mostly wait for time limits.
After each case no process of the job is left on any host. Prints how long each case took, without
checking it. Exits with 77 without virtual hosts.
"""
import concurrent.futures
import functools
import os
import pathlib
import shutil
import signal
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "test" / "cluster"))
import hosts  # noqa: E402
import sshd  # noqa: E402
from hosts import check  # noqa: E402

SKIPPED = 77
PARALLEL_CASES = 4
NODES = ["node0", "node1", "node2"]
FILE_NAME = "hosts.txt"
# Host of the launcher that starts the others. It runs no workers, so that it can be lost alone.
HOME = "head"
WORKER = """trap 'echo "USR1 at $RANK"' USR1
trap 'echo "TERM at $RANK"; exit 0' TERM
echo "worker $RANK of $WORLD_SIZE on $(hostname)"
while [ ! -e "$1" ]; do sleep 0.1; done
exit $(cat "$1" | sed -n "s/^$RANK: //p")
"""


wait_until = functools.partial(hosts.wait_until, limit_s=2 * hosts.DEADLINE_S)


class Job:
    """acclaunch on the head host, with two workers per node that run until they are told to end."""

    def __init__(self, cluster, programs, folder):
        self.cluster, self.programs, self.folder = cluster, programs, folder
        (folder / "worker.sh").write_text(WORKER)
        self.finish_file = folder / "finish"
        self.nodes = NODES
        self.flags = []
        self.limit = ""  # shell command that sets a limit for the launcher on the head host
        self.program = programs / "acclaunch"
        self.begin = time.monotonic()
        self.started = None

    def start(self, environment=None):
        lines = [f"{name} slots=2\n" for name in self.nodes]
        (self.folder / FILE_NAME).write_text("".join(lines))
        self.started = self.cluster[HOME].start(
            ["sh", "-c", f"cd {self.folder}; {self.limit} exec \"$@\"", "sh", self.program, "--cpu", "--hostfile",
             FILE_NAME, "--num_processes", str(2 * len(self.nodes)), "--monitor_interval", "1",
             *self.flags, "--no_python", shutil.which("sh"), "worker.sh", self.finish_file],
            environment)
        return self.started

    def run(self, environment=None):
        """Starts the job and waits until all workers are running."""
        self.start(environment)
        for rank in range(2 * len(self.nodes)):
            self.started.wait_for(f"worker {rank} of {2 * len(self.nodes)} on")
        self.begin = time.monotonic()
        return self.started

    def finish(self, statuses=""):
        written = self.folder / "written"
        written.write_text(statuses)
        written.rename(self.finish_file)  # workers see the whole text or nothing

    def guardian(self):
        """Pid of the process that the user started, as seen from here."""
        return only(self.cluster[HOME].matching(str(self.program)))

    def client_of(self, name):
        """Pid of the ssh client of that host."""
        for pid in self.cluster[HOME].matching(shutil.which("ssh")):
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if name.encode() in words:
                return pid
        raise AssertionError(f"no ssh to {name}")

    def expect(self, status, *texts):
        """Checks the exit status, the messages, and that no process is left."""
        self.started.expect_status(status)
        for text in texts:
            if text not in self.started.text():
                raise self.started.failure(f"'{text}' is missing")
        self.expect_nothing_left()

    def expect_nothing_left(self):
        alive = [host for host in self.cluster.hosts.values() if host.init is not None]
        for host in alive:
            wait_until(lambda: not left_on(host), f"end of all on {host.name}: {left_on(host)}")


    def expect_one(self, status, *texts):
        """As `expect`, but one of the messages is enough: failures to start that come more than 2 s after the first one
        are not reported."""
        self.expect(status)
        if not any(text in self.started.text() for text in texts):
            raise self.started.failure(f"none of {texts}")


def only(pids):
    check(len(pids) == 1, f"not one process: {pids}")
    return pids[0]


def left_on(host):
    """Processes that are left of a job and of the connections that started it."""
    found = []
    for pid in host.processes():
        try:
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        # A connection's own process; it is called sshd-session since OpenSSH 9.8.
        if state != "Z" and not words.startswith(("sshd: ", "sshd-session: ")):
            found.append(words.replace("\0", " "))
    return found


def all_succeed(job):
    job.run({"CARRIED": "along"})
    job.finish()
    job.expect(0, *[f"worker {2 * i + 1} of 6 on {name}" for i, name in enumerate(NODES)])


def environment_and_folder(job):
    (job.folder / "worker.sh").write_text('echo "have $CARRIED in $PWD"; echo "HOME=$HOME"\n'
                                          'echo "control<$ACC_CONTROL>"; cat\n')
    job.start({"CARRIED": "a 'quoted' \"value\"\n$HOME \\", "HOME": "/nowhere"})
    job.expect(0, "have a 'quoted' \"value\"", f"$HOME \\ in {job.folder}", "control<>",
               "HOME=/root")
    check("HOME=/nowhere" not in job.started.text(), "HOME went along")


def one_fails(job):
    job.run()
    job.finish("0: 0\n1: 0\n2: 0\n3: 7\n4: 0\n5: 0\n")
    job.expect(7, "rank 3: exited with code 7")


def fails_with_the_status_of_ssh(job):
    job.run()
    job.finish("0: 0\n1: 0\n2: 0\n3: 255\n4: 0\n5: 0\n")
    job.expect(255, "rank 3: exited with code 255")
    check("connection to" not in job.started.text(), "a lost connection was reported")


def stopped(number):
    def act(job):
        job.run()
        os.kill(job.guardian(), number)
        # After SIGINT it ends by that signal, so that a loop in a shell ends, too.
        status = -number if number == signal.SIGINT else 128 + number
        job.expect(status, f"stopped by {signal.Signals(number).name}")
    return act


def stopped_twice(job):
    (job.folder / "worker.sh").write_text("trap 'echo deaf' TERM\n" + "\n".join(WORKER.split("\n")[2:]))
    job.run()
    os.kill(job.guardian(), signal.SIGTERM)
    job.started.wait_for("deaf", 6)
    os.kill(job.guardian(), signal.SIGTERM)
    job.expect(128 + signal.SIGTERM, "killing the workers on all machines")


def other_signals(job):
    job.run()
    os.kill(job.guardian(), signal.SIGUSR1)
    for rank in range(6):
        job.started.wait_for(f"USR1 at {rank}")
    job.finish()
    job.expect(0)


def starter_killed(job):
    job.run()
    os.kill(job.guardian(), signal.SIGKILL)
    job.started.wait()
    job.expect_nothing_left()


def client_killed(job):
    job.run()
    os.kill(job.client_of("node1"), signal.SIGKILL)
    job.expect(1, "the connection to machine 1 (node1) is broken: ssh was killed by SIGKILL")


def starters_host_crashes(job):
    job.run()
    job.cluster[HOME].crash()
    job.expect_nothing_left()


def host_crashes(job):
    job.run()
    job.cluster["node2"].crash()
    job.expect(1, "machine 2 (node2) is lost", "machine 2 (node2) does not end")


def host_freezes(job):
    job.run()
    job.cluster["node2"].freeze()
    job.started.expect_status(1)
    job.cluster["node2"].thaw()
    job.expect(1, "machine 2 (node2)")


def starters_network_cut(job):
    job.run()
    job.cluster.cut([HOME], NODES)
    job.started.wait(3 * hosts.DEADLINE_S)
    job.cluster.heal()
    job.expect(1, "the connection to machine 1 (node1) is broken")


def launcher_stopped(job):
    """sshd is running, but the launcher behind it is stopped."""
    job.run()
    for pid in job.cluster["node1"].matching("acc-supervisor"):
        os.kill(pid, signal.SIGSTOP)
    status = job.started.wait(3 * hosts.DEADLINE_S)
    for pid in job.cluster["node1"].matching("acc-supervisor"):
        os.kill(pid, signal.SIGCONT)
    check(status == 1, f"status {status}")
    job.expect(1, "machine 1 (node1) does not end")


def nobody_listens(job):
    sshd.stop(job.cluster["node2"])
    job.start()
    job.expect(2, "machine 2 (node2) cannot be started: ssh: connect to host node2 port 22: "
                  "Connection refused")


def no_such_host(job):
    job.nodes = ["node0", "nowhere", "node2", "neither"]
    job.start()
    job.expect_one(2, "machine 1 (nowhere) cannot be started: ssh: Could not resolve hostname nowhere",
                   "machine 3 (neither) cannot be started: ssh: Could not resolve hostname neither")


def few_open_files(job):
    """The soft limit on open files is too low for one connection per machine."""
    job.limit = "ulimit -Sn 64;"
    job.nodes = [f"nowhere{i}" for i in range(30)]
    job.start()
    job.expect(2, "cannot be started: ssh: Could not resolve hostname nowhere")


def too_few_open_files(job):
    job.limit = "ulimit -n 64;"
    job.nodes = [f"nowhere{i}" for i in range(30)]
    job.start()
    job.started.wait_for("starting 30 machines needs ")
    job.expect(2, "file descriptors, but the hard limit is 64")


def host_is_silent(job):
    job.cluster.cut([HOME], ["node1"])
    job.start()
    job.expect(2, "machine 1 (node1) cannot be started: ssh: connect to host node1 port 22:")


def key_refused(job):
    job.flags = [f"--launcher_args=-F {sshd.folder_of(job.cluster)}/stranger_config"]
    job.start()
    job.expect_one(2, *(f"cannot be started: root@{name}: Permission denied (publickey)" for name in NODES))


def host_key_unknown(job):
    job.flags = ["--launcher_args=-oGlobalKnownHostsFile=/dev/null"]
    job.start()
    job.expect(2, "cannot be started: Host key verification failed.")


def not_installed(job):
    """acclaunch is installed only on the head host."""
    elsewhere = job.folder / "private"
    elsewhere.mkdir()
    job.program = elsewhere / "acclaunch"
    shutil.copy(job.programs / "acclaunch", job.program)
    for name in NODES[1:]:
        sshd.on(job.cluster[name], "mount", "-t", "tmpfs", "tmpfs", elsewhere)
    job.start()
    why = f"no executable acclaunch was found there, neither at {job.program} nor in the PATH of the login shell"
    job.expect_one(2, *(f"machine {machine} (node{machine}) cannot be started: {why}" for machine in (1, 2)))


def no_such_folder(job):
    sshd.on(job.cluster["node2"], "mount", "-t", "tmpfs", "tmpfs", job.folder.parent)
    job.start()
    job.expect(2, f"machine 2 (node2) cannot be started: cannot change to the folder {job.folder}")


def port_in_use(job):
    """One machine fails while the others wait for it."""
    job.cluster["node0"].start([sys.executable, "-c", "import socket, time\n"
                                "s = socket.create_server(('', 29777)); print('has it', flush=True)\n"
                                "time.sleep(600)"]).wait_for("has it")
    job.flags = ["--main_process_port", "29777"]
    job.start()
    job.started.expect_status(2)
    os.kill(only(job.cluster["node0"].matching(sys.executable)), signal.SIGKILL)
    job.expect(2, "machine 0 (node0) cannot be started: ", "29777")


def of_processes(file):
    """Processes of all hosts."""
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            yield (process / file).read_bytes()
        except OSError:  # the process has ended
            pass


def by_pdsh(job):
    job.flags = ["--launcher", "pdsh"]
    job.run({"NCCL_CARRIED": "along", "WANDB_API_KEY": "a-password"})
    for rank, name in enumerate(NODES):
        check(job.started.count(f"worker {2 * rank} of 6 on {name}") == 1, "ranks follow the list")
    password = b"a-password"
    for line in of_processes("cmdline"):  # neither as text nor in hexadecimal digits
        check(password not in line and password.hex().encode() not in line,
              f"a password is on a command line: {line[:200]}")
    carried = [each for each in of_processes("environ") if b"WANDB_API_KEY=" + password in each]
    check(sum(b"\0RANK=" in each for each in carried) >= 6, "the workers have it")
    job.finish("0: 0\n1: 0\n2: 0\n3: 7\n4: 0\n5: 0\n")
    job.expect(7, "rank 3: exited with code 7")


def pdsh_stopped(job):
    job.flags = ["--launcher", "pdsh"]
    job.run()
    os.kill(job.guardian(), signal.SIGTERM)
    job.expect(128 + signal.SIGTERM, "stopped by SIGTERM")


CASES = {
    "all succeed": all_succeed,
    "environment and folder are passed on": environment_and_folder,
    "one worker fails": one_fails,
    "a worker fails with ssh's own status": fails_with_the_status_of_ssh,
    "SIGTERM": stopped(signal.SIGTERM),
    "SIGINT": stopped(signal.SIGINT),
    "SIGTERM twice": stopped_twice,
    "SIGUSR1": other_signals,
    "starting launcher killed": starter_killed,
    "one ssh killed": client_killed,
    "crash of the starting launcher's host": starters_host_crashes,
    "crash of a host": host_crashes,
    "a host freezes": host_freezes,
    "the starting launcher is cut off": starters_network_cut,
    "a launcher is stopped": launcher_stopped,
    "connection refused": nobody_listens,
    "no such host": no_such_host,
    "few open files": few_open_files,
    "too few open files": too_few_open_files,
    "a host is silent": host_is_silent,
    "key refused": key_refused,
    "host key unknown": host_key_unknown,
    "not installed there": not_installed,
    "no such folder there": no_such_folder,
    "a port in use there": port_in_use,
}
LONG_CASES = {"crash of the starting launcher's host", "crash of a host", "a host freezes",
              "the starting launcher is cut off", "a launcher is stopped"}
PDSH_CASES = {"pdsh: one worker fails": by_pdsh, "pdsh: SIGTERM": pdsh_stopped}


def run_case(name, act, programs):
    with hosts.Cluster([HOME, *NODES]) as cluster:
        sshd.start(cluster)
        with tempfile.TemporaryDirectory(prefix="acc-ssh-") as folder:
            (pathlib.Path(folder) / "job").mkdir()
            job = Job(cluster, programs, pathlib.Path(folder) / "job")
            act(job)
            print(f"{time.monotonic() - job.begin:7.2f} s  {name}", flush=True)


def main(programs, *wanted):
    why_not = hosts.why_impossible() or sshd.why_impossible()
    if why_not:
        print(f"skipped: {why_not}")
        return SKIPPED
    cases = {**CASES, **(PDSH_CASES if shutil.which("pdsh") else {})}
    # Long cases first, so that none of them runs alone at the end. The threads live until all cases
    # have ended: processes of a case are killed when the thread that started them ends.
    names = sorted((name for name in cases if not wanted or name in wanted), key=LONG_CASES.__contains__,
                   reverse=True)
    with concurrent.futures.ThreadPoolExecutor(PARALLEL_CASES) as threads:
        started = [threads.submit(run_case, name, cases[name], pathlib.Path(programs).resolve())
                   for name in names]
    failures = 0
    for name, case in zip(names, started):
        try:
            case.result()
        except AssertionError as error:
            print(f"FAILED: {name}: {error}", flush=True)
            failures += 1
    return 1 if failures else 0


sys.exit(main(*sys.argv[1:]))
