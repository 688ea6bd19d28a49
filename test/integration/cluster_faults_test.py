# SPDX-License-Identifier: Apache-2.0
"""acclaunch and acc-rendezvous on virtual hosts with delay, packet loss, partitions, freezes, crashes.

    python cluster_faults_test.py BIN      BIN holds acclaunch, acc-rendezvous and train_gpt

Prints how long each step took, without checking it. Exits with 77 without virtual hosts.
"""
import json
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
from cluster_jobs import steps_in  # noqa: E402
from hosts import check, wait_until  # noqa: E402

SKIPPED = 77
DAEMON_HOST, PORT = "head", 29500
NODES = ["node0", "node1", "node2", "node3"]
CONF = "heartbeat_timeout=4,last_call_timeout=1,join_timeout=120"
PARITY = ROOT / "test" / "data" / "parity_gpt"
# Prints its rank and runs until the job is told to finish.
WORKER = """echo "WORLD $WORLD_SIZE RANK $RANK"
while [ ! -e "$1" ]; do sleep 0.2; done
"""


def report(what, since, until):
    print(f"{until - since:7.2f} s  {what}", flush=True)


class Site:
    """The hosts, and the folders of the programs and their files."""

    def __init__(self, cluster, programs, folder):
        self.cluster, self.programs, self.folder = cluster, programs, folder
        (folder / "worker.sh").write_text(WORKER)


class Job:
    """Launchers on several hosts, with one worker each."""

    def __init__(self, site, run_id):
        self.site, self.run_id = site, run_id
        self.launchers = {}
        self.finish_file = site.folder / f"{run_id}.finish"
        self.worker = [shutil.which("sh"), site.folder / "worker.sh", self.finish_file]
        self.variables = {}

    def join(self, name, *flags):
        command = [self.site.programs / "acclaunch", "torchrun", "--nproc-per-node", "1",
                   "--rdzv-id", self.run_id, "--rdzv-conf", CONF, *flags, "--no-python", *self.worker]
        self.launchers[name] = self.site.cluster[name].start(command, self.variables)
        return self.launchers[name]

    def join_elastic(self, names, nnodes="2:4"):
        for name in names:
            self.join(name, "--nnodes", nnodes, "--rdzv-backend", "c10d",
                      "--rdzv-endpoint", f"{DAEMON_HOST}:{PORT}", "--insecure")

    def join_static(self, names):
        for rank, name in enumerate(names):
            self.join(name, "--nnodes", str(len(names)), "--node-rank", str(rank),
                      "--master-addr", names[0], "--master-port", str(PORT))

    def wait_for_round(self, names, size, earlier=None):
        """Waits for a round of this size, and returns the time at which the last of the hosts had its
        worker in it. Rounds counted in `earlier` are ignored."""
        earlier = earlier or {}
        launchers = [self.launchers[name] for name in names]
        return max(launcher.wait_for(f"WORLD {size} ", earlier.get(launcher, 0) + 1)
                   for launcher in launchers)

    def rounds(self, size):
        """Number of rounds of this size that each launcher has had a worker in."""
        return {launcher: launcher.count(f"WORLD {size} ") for launcher in self.launchers.values()}

    def workers_on(self, name):
        pids = self.site.cluster[name].matching(" ".join(map(str, self.worker)))
        check(pids, f"no worker on {name}")
        return pids

    def finish(self):
        """Lets the workers end; all launchers must succeed."""
        self.finish_file.touch()
        for launcher in self.launchers.values():
            launcher.expect_status(0)


def expect_round(job, what, names, size, act):
    """After `act` these hosts continue in a new round of this size."""
    earlier = job.rounds(size)
    begin = time.monotonic()
    act()
    report(f"{what}: {size} machines in a round", begin, job.wait_for_round(names, size, earlier))


def expect_own_end(site, what, name, pids):
    """The workers on a lost machine end, although no other machine can reach it."""
    begin = time.monotonic()
    wait_until(lambda: not set(pids) & set(site.cluster[name].processes()),
               f"{what}: end of the workers")
    report(f"{what}: its workers are gone", begin, time.monotonic())


def slow_and_lossy(site):
    job = Job(site, "slow")
    for name in NODES:
        site.cluster.delay(name, 10)
        site.cluster.loss(name, 2)
    expect_round(job, "40 ms round trip, 4 % loss", NODES, 4, lambda: job.join_elastic(NODES))
    begin = time.monotonic()
    job.finish()
    report("the same: all have ended", begin, time.monotonic())
    site.cluster.heal()


def come_and_go(site):
    """One job whose machines go through all kinds of faults."""
    cluster = site.cluster
    job = Job(site, "elastic")
    few, lost = NODES[:3], NODES[3]
    expect_round(job, "start", few, 3, lambda: job.join_elastic(few))
    expect_round(job, "a late joiner", NODES, 4, lambda: job.join_elastic([lost]))
    expect_round(job, "connections reset", NODES, 4, lambda: cluster.reset(lost, DAEMON_HOST))

    workers = job.workers_on(lost)
    rest = [host for host in cluster.hosts if host != lost]
    expect_round(job, "partition", few, 3, lambda: cluster.cut([lost], rest))
    expect_own_end(site, "partition", lost, workers)
    expect_round(job, "partition heals", NODES, 4, cluster.heal)

    workers = job.workers_on(lost)
    expect_round(job, "freeze", few, 3, cluster[lost].freeze)
    expect_round(job, "thaw", NODES, 4, cluster[lost].thaw)
    expect_own_end(site, "thaw", lost, workers)

    workers = {name: job.workers_on(name) for name in NODES}
    cluster.cut([DAEMON_HOST], NODES)
    for name in NODES:
        expect_own_end(site, f"daemon cut off, {name}", name, workers[name])
    expect_round(job, "daemon back", NODES, 4, cluster.heal)

    expect_round(job, "crash", few, 3, cluster[lost].crash)
    cluster[lost].boot()
    expect_round(job, "boot", NODES, 4, lambda: job.join_elastic([lost]))

    other = Job(site, "other")
    before = job.rounds(4)
    expect_round(other, "another job at the same daemon", NODES, 4, lambda: other.join_elastic(NODES))
    other.finish()
    check(job.rounds(4) == before, "a new round of one job at the end of another")
    job.finish()


def lost_from_a_static_job(site, what, lose):
    job = Job(site, f"static-{what}")
    names, lost = NODES[:3], NODES[2]
    job.join_static(names)
    job.wait_for_round(names, 3)
    begin = time.monotonic()
    lose(lost)
    for name in names[:2]:
        job.launchers[name].expect_status(1)
        said = job.launchers[name].text()
        check(lost in said, f"{name} does not name {lost}:\n{said}")
    report(f"static job, {what}: the others have ended", begin, time.monotonic())
    return job


def static_jobs(site):
    cluster = site.cluster
    job = lost_from_a_static_job(site, "freeze", lambda name: cluster[name].freeze())
    cluster["node2"].thaw()
    check(job.launchers["node2"].wait() != 0, "a machine that its job gave up ended well")
    lost_from_a_static_job(site, "crash", lambda name: cluster[name].crash())
    cluster["node2"].boot()


def two_machines_0(site):
    """Two hosts with machine rank 0, each of which would wait for the others."""
    ranks = {"node0": 0, "node1": 0, "node2": 1}
    for address in ("node0", "node1"):
        for order in (list(ranks), list(reversed(ranks))):
            begin = time.monotonic()
            job = Job(site, f"static-twice-{address}-{order[0]}")
            for name in order:
                job.join(name, "--nnodes", "3", "--node-rank", str(ranks[name]),
                         "--master-addr", address, "--master-port", str(PORT))
            for name in order:
                job.launchers[name].expect_status(2)
                said = job.launchers[name].text()
                check("is claimed twice" in said and "node0 (pid" in said and "node1 (pid" in said,
                      f"{name} does not name both:\n{said}")
            report(f"two machines 0, address of {address}, {order[0]} first: all have ended", begin,
                   time.monotonic())


def training(site):
    """A training that loses and gains a machine has the same steps as an uninterrupted one."""
    names = NODES[:3]
    survivors = [names[0], names[2]]
    metrics, checkpoints = site.folder / "metrics.jsonl", site.folder / "checkpoints"
    job = Job(site, "training")
    job.variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
    job.worker = [site.programs / "train_gpt", "--batches", PARITY / "tokens.npy", "--layers", "2",
                  "--heads", "4", "--dim", "64", "--seq_len", "64", "--vocab", "256",
                  "--init_from", PARITY / "init.safetensors", "--lr", "1e-3", "--betas", "0.9,0.95",
                  "--eps", "1e-8", "--weight_decay", "0.1", "--grad_clip", "1.0", "--metrics", metrics,
                  "--checkpoint", checkpoints, "--checkpoint_every", "3"]

    def steps():
        return steps_in(metrics)

    def reach(step, ranks):
        wait_until(lambda: any(each["step"] >= step and len(each["ranks"]) == ranks for each in steps()),
                   f"step {step} by {ranks} ranks")

    def to_workers(number, on):
        """Signals the workers of these hosts. They are stopped before a fault, so that they do not finish before it."""
        for name in on:
            for pid in job.workers_on(name):
                os.kill(pid, number)

    for name in names:
        site.cluster.delay(name, 5)  # steps that take long enough to be interrupted
    job.join_elastic(names, "2:3")
    reach(5, 3)
    to_workers(signal.SIGSTOP, names)
    begin = time.monotonic()
    site.cluster["node1"].crash()
    to_workers(signal.SIGCONT, survivors)
    reach(8, 2)
    report("training, crash: on by two ranks", begin, time.monotonic())
    to_workers(signal.SIGSTOP, survivors)  # their launchers continue them when they end them
    site.cluster["node1"].boot()
    begin = time.monotonic()
    job.join_elastic(["node1"], "2:3")
    reach(12, 3)
    report("training, boot: on by three ranks", begin, time.monotonic())
    for launcher in job.launchers.values():
        launcher.expect_status(0)
    site.cluster.heal()

    golden = json.loads((PARITY / "losses.json").read_text())["single_fp64"]["loss"]
    check({each["step"] for each in steps()} == set(range(1, 21)), "a step is missing")
    for each in steps():
        error = abs(each["loss"] - golden[each["step"] - 1])
        check(error <= 2e-5,
              f"step {each['step']} by {len(each['ranks'])} ranks: its loss is off by {error}")


def main():
    why = hosts.why_impossible()
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-faults-"))
    programs = pathlib.Path(sys.argv[1]).resolve()
    wanted = sys.argv[2:]
    try:
        with hosts.Cluster([DAEMON_HOST, *NODES]) as cluster:
            site = Site(cluster, programs, folder)
            daemon = cluster[DAEMON_HOST].start(
                [programs / "acc-rendezvous", "--host", "0.0.0.0", "--insecure", "--port", PORT])
            daemon.wait_for(str(PORT))
            for scenario in (slow_and_lossy, come_and_go, static_jobs, two_machines_0, training):
                if wanted and scenario.__name__ not in wanted:
                    continue
                scenario(site)
                for name in NODES:
                    wait_until(lambda: not cluster[name].processes(),
                               f"{scenario.__name__}: nothing is left on {name}")
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
