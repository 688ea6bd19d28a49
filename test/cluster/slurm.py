# SPDX-License-Identifier: Apache-2.0
"""A real Slurm on the virtual hosts of hosts.py: slurmctld on one host, one slurmd on each node.

    with Slurm(nodes=2) as slurm:
        job = slurm.sbatch(["--nodes=2", "job.sbatch"])
        job.wait_for("step 3/")
        slurm.scancel(job.id)
        job.wait("CANCELLED")

Needs the packages slurmctld, slurmd, slurm-client and munge, and the requirements of hosts.py. No
daemon, setting or user of the machine is changed: all files are in the cluster's folder, and all
daemons run as root.
"""
import os
import re
import shutil

import hosts

PROGRAMS = ("munged", "sbatch", "scancel", "scontrol", "slurmctld", "slurmd", "srun")
HEAD = "head"
# No cgroups, no database, one munged for all hosts (they share its socket through the file system).
# Timeouts are short: a lost node is noticed after SlurmdTimeout, a requeued job waits for cred_expire.
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
SlurmdTimeout=30
MessageTimeout=60
TCPTimeout=5
KillWait=5
JobRequeue=1
"""
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


def why_impossible():
    """Returns what this machine lacks for Slurm on virtual hosts, or None."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    return hosts.why_impossible() or (f"not installed: {', '.join(missing)}" if missing else None)


class Job:
    """A submitted job: its state in scontrol and its output file."""

    def __init__(self, slurm, number, output):
        self.slurm, self.id, self.output = slurm, number, output

    def facts(self):
        """Returns the fields of `scontrol show job`: JobState, ExitCode, Restarts, ..."""
        said = self.slurm.ask(["scontrol", "--oneliner", "show", "job", str(self.id)])
        return dict(re.findall(r"(\w+)=(\S*)", said))

    def text(self):
        return self.output.read_text() if self.output.exists() else ""

    def failure(self, what):
        left = "".join(f"\n{name}: {words}" for name in self.slurm.nodes
                       for words in self.slurm.left(name))
        return AssertionError(f"job {self.id}: {what}\n{self.facts()}{left}\n{self.text()}")

    def wait_until(self, condition, what, timeout=hosts.DEADLINE_S):
        hosts.wait_until(condition, what, timeout, self.failure)

    def wait_for(self, text, count=1):
        """Returns when the job has written `text` `count` times."""
        def told():
            if self.text().count(text) >= count:
                return True
            if self.facts()["JobState"] in ENDED and self.text().count(text) < count:
                raise self.failure(f"ended before '{text}' had appeared {count} times")
            return False
        self.wait_until(told, text)

    def wait(self, state="COMPLETED", timeout=hosts.DEADLINE_S):
        """Waits until the job has ended in `state`. Returns the script's (exit status, signal)."""
        self.wait_until(lambda: self.facts()["JobState"] in ENDED, "its end", timeout)
        facts = self.facts()
        if facts["JobState"] != state:
            raise self.failure(f"ended {facts['JobState']}, expected {state}")
        return tuple(int(part) for part in facts["ExitCode"].split(":"))


class Slurm:
    def __init__(self, nodes, cpus=4, gpus=0, more=""):
        """gpus: number per node; each is a copy of /dev/null. more: additional lines for slurm.conf."""
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
        hosts.wait_until(lambda: (self.folder / "munge.socket").exists(), "munged's socket",
                         failure=munged.failure)
        controller = head.start(["slurmctld", "-D", "-f", self.configuration])
        controller.wait_for("Running as primary controller")
        for name in self.nodes:
            self.start_daemon(name)
        self.srun(["--nodes", str(len(self.nodes)), "true"]).expect_status(0)  # waits until all nodes are up

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

    def start_daemon(self, name):
        """Starts the node's slurmd. Call it again after the host has rebooted."""
        self.daemons[name] = self.cluster[name].start(
            ["slurmd", "-D", "-N", name, "-f", self.configuration])

    def run(self, command, environment=None):
        """Runs on the head node, as in a terminal there."""
        return self.cluster[HEAD].start(command, {**self.variables, **(environment or {})})

    def srun(self, arguments, environment=None):
        return self.run(["srun", *arguments], environment)

    def ask(self, command):
        """Runs a command on the head node and returns its output."""
        running = self.run(command)
        running.expect_status(0)
        return running.text()

    def sbatch(self, arguments, environment=None):
        """Submits a job, whose output goes to its own file."""
        pattern = self.folder / "job-%j.out"
        submission = self.run(["sbatch", "--parsable", f"--output={pattern}", *arguments], environment)
        submission.expect_status(0)
        number = int(submission.text().split()[-1])
        return Job(self, number, self.folder / f"job-{number}.out")

    def scancel(self, *arguments):
        self.ask(["scancel", *map(str, arguments)])

    def left(self, name):
        """Returns the command lines of all processes on a node except slurmd."""
        if self.cluster[name].init is None:
            return ["(crashed)"]
        found = []
        for pid in self.cluster[name].processes():
            try:
                with open(f"/proc/{pid}/cmdline", "rb") as file:
                    words = file.read().replace(b"\0", b" ").decode(errors="replace").strip()
            except OSError:
                continue  # the process has ended
            if words and not words.startswith("slurmd "):
                found.append(words)
        return found
