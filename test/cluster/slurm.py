"""A real Slurm on the virtual hosts of hosts.py: slurmctld on one of them, a slurmd on each node.

    with Slurm(nodes=2) as slurm:
        job = slurm.sbatch(["--nodes=2", "job.sbatch"])
        job.wait_for("step 3/")
        slurm.scancel(job.id)
        job.wait("CANCELLED")

Needs what hosts.py needs, and the packages slurmctld, slurmd, slurm-client and munge. No daemon,
setting or user of the machine is touched: all files are in the cluster's folder, all run as root.
"""
import os
import re
import shutil
import time

import hosts

PROGRAMS = ("munged", "sbatch", "scancel", "scontrol", "slurmctld", "slurmd", "srun")
HEAD = "head"
# No cgroups, no data base, one munged for all hosts (a socket by path is seen on each of them).
# Times are short: a lost node is noticed after SlurmdTimeout, a requeued job waits for cred_expire.
CONFIGURATION = """\
ClusterName=test
SlurmctldHost={head}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/slurm/state
SlurmdSpoolDir={folder}/slurm/%n
SlurmctldPidFile={folder}/slurm/slurmctld.pid
SlurmdPidFile={folder}/slurm/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=100000,sched_interval=1,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=4
MessageTimeout=3
TCPTimeout=2
KillWait=5
JobRequeue=1
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


def why_impossible():
    """What this machine lacks for Slurm on virtual hosts; None where it can be had."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return hosts.why_impossible() or (f"no {', '.join(missing)} here" if missing else None)


class Job:
    """A submitted job, seen by scontrol and by the file that it writes."""

    def __init__(self, slurm, number, output):
        self.slurm, self.id, self.output = slurm, number, output

    def facts(self):
        """What `scontrol show job` tells, by its words: JobState, ExitCode, Restarts, ..."""
        said = self.slurm.ask(["scontrol", "--oneliner", "show", "job", str(self.id)])
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def failure(self, what):
        left = "".join(f"\n{name}: {words}" for name in self.slurm.nodes
                       for words in self.slurm.left(name))
        return AssertionError(f"job {self.id}: {what}\n{self.facts()}{left}\n{self.text()}")

    def wait_until(self, condition, what, timeout=hosts.DEADLINE_S):
        deadline = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > deadline:
                raise self.failure(f"waited in vain: {what}")
            time.sleep(0.05)

    def wait_for(self, text, count=1):
        """Returns when the job has written that, so many times."""
        def told():
            if self.text().count(text) >= count:
                return True
            if self.facts()["JobState"] in ENDED and self.text().count(text) < count:
                raise self.failure(f"ended before '{text}' had come {count} times")
            return False
        self.wait_until(told, text)

    def wait(self, state="COMPLETED", timeout=hosts.DEADLINE_S):
        """Returns the script's (exit status, signal) when the job has ended, in that state."""
        self.wait_until(lambda: self.facts()["JobState"] in ENDED, "its end", timeout)
        facts = self.facts()
        if facts["JobState"] != state:
            raise self.failure(f"ended {facts['JobState']}, expected {state}")
        return tuple(int(part) for part in facts["ExitCode"].split(":"))


class Slurm:
    def __init__(self, nodes, cpus=4, gpus=0, more=""):
        """gpus: of each node, copies of /dev/null. more: lines for slurm.conf."""
        self.nodes = [f"node{number}" for number in range(nodes)]
        self.cluster = hosts.Cluster([HEAD, *self.nodes])
        self.folder = self.cluster.folder
        self.configuration = self.folder / "slurm.conf"
        self.variables = {"SLURM_CONF": str(self.configuration)}
        self.cpus, self.gpus, self.more = cpus, gpus, more
        self.daemons = {}

    def __enter__(self):
        self.cluster.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.cluster.__exit__()

    def _start(self):
        self._configure()
        head = self.cluster[HEAD]
        folder = self.folder / "slurm"
        (folder / "munge.key").write_bytes(os.urandom(1024))
        (folder / "munge.key").chmod(0o600)
        munged = head.start(["munged", "--foreground", "--force", f"--key-file={folder}/munge.key",
                             f"--socket={self.folder}/munge.socket", f"--pid-file={folder}/munge.pid",
                             f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed"])
        self._until(lambda: (self.folder / "munge.socket").exists(), munged, "munged's socket")
        controller = head.start(["slurmctld", "-D", "-f", self.configuration])
        controller.wait_for("Running as primary controller")
        for name in self.nodes:
            self.start_daemon(name)
        self.srun(["--nodes", str(len(self.nodes)), "true"]).expect_status(0)  # waits for all of them

    def _configure(self):
        (self.folder / "slurm" / "state").mkdir(parents=True)
        lines = CONFIGURATION.format(head=HEAD, folder=self.folder)
        resources = ""
        if self.gpus > 0:
            for gpu in range(self.gpus):
                os.mknod(self.folder / "slurm" / f"gpu{gpu}", 0o20666, os.stat(os.devnull).st_rdev)
            (self.folder / "gres.conf").write_text(
                f"NodeName=node[0-{len(self.nodes) - 1}] Name=gpu"
                f" File={self.folder}/slurm/gpu[0-{self.gpus - 1}]\n")
            lines += "GresTypes=gpu\n"
            resources = f" Gres=gpu:{self.gpus}"
        for name in self.nodes:
            lines += (f"NodeName={name} NodeAddr={self.cluster[name].address} CPUs={self.cpus}"
                      f" RealMemory=2000 State=UNKNOWN{resources}\n")
        self.configuration.write_text(
            f"{lines}{self.more}\nPartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n")

    @staticmethod
    def _until(condition, running, what):
        deadline = time.monotonic() + hosts.DEADLINE_S
        while not condition():
            if time.monotonic() > deadline:
                raise running.failure(f"waited in vain: {what}")
            time.sleep(0.02)

    def start_daemon(self, name):
        """The node's slurmd; again after the host has booted."""
        self.daemons[name] = self.cluster[name].start(
            ["slurmd", "-D", "-N", name, "-f", self.configuration])

    def run(self, command, environment=None):
        """Runs on the head node, as in a terminal there."""
        return self.cluster[HEAD].start(command, {**self.variables, **(environment or {})})

    def srun(self, arguments, environment=None):
        return self.run(["srun", *arguments], environment)

    def ask(self, command):
        """What a command says."""
        running = self.run(command)
        running.expect_status(0)
        return running.text()

    def sbatch(self, arguments, environment=None):
        """Submits; the job's output is in a file of its own."""
        pattern = self.folder / "job-%j.out"
        submission = self.run(["sbatch", "--parsable", f"--output={pattern}", *arguments], environment)
        submission.expect_status(0)
        number = int(submission.text().split()[-1])
        return Job(self, number, self.folder / f"job-{number}.out")

    def scancel(self, *arguments):
        self.ask(["scancel", *map(str, arguments)])

    def left(self, name):
        """Command lines of what runs on a node besides its slurmd."""
        if self.cluster[name].init is None:
            return ["(crashed)"]
        found = []
        for pid in self.cluster[name].processes():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # ended meanwhile
            if words and not words.startswith("slurmd "):
                found.append(words)
        return found
