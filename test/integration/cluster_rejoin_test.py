# SPDX-License-Identifier: Apache-2.0
"""Trainings with --rejoin, --spares and --elastic_replicas on virtual hosts that fail in turn.

    python cluster_rejoin_test.py BIN

BIN holds acclaunch, acc-rendezvous and train_gpt. Each row of FAULTS is what happens to the machines of one job, until
all of them train again. No connection of a host that is lost is closed. The losses are, bit for bit, those of runs with
the same number of machines in each step, and each sample is used once in the steps that are kept. Exits with 77 without virtual hosts. About 15 s of CPU time in two minutes.
"""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "cluster"), str(ROOT / "test" / "support")]
import hosts  # noqa: E402
from hosts import check, wait_until  # noqa: E402
from run_metrics import kept_steps, losses, steps_of, stretches  # noqa: E402

SKIPPED = 77
NODES, SPARES = ["node0", "node1", "node2"], ["node3", "node4"]
PORT = 29500
ENDLESS = 1000000
HEARTBEAT_S = 3
WINDOWS, SEQ_LEN = 40, 16
SPARING = ["--rejoin", "--spares", len(SPARES), "--max_restarts", 5]
REJOINING = ["--rejoin", "--max_restarts", 50]
REPLICAS = ["--elastic_replicas", 1, "--max_restarts", 0, "--shutdown_timeout", 200]

# What happens to the machines of a job, and what is awaited in between.
FAULTS = {
    "partition": [("cut", "node1"), ("lost", "node1"), ("heal", "node1")],
    "partition of rank 0": [("cut", "node0"), ("lost", "node0"), ("heal", "node0")],
    "freeze longer than the heartbeat": [("freeze", "node1"), ("lost", "node1"), ("thaw", "node1")],
    "freeze of rank 0": [("freeze", "node0"), ("lost", "node0"), ("thaw", "node0")],
    "power cut of two in turn": [("lose", "node1"), ("lost", "node1"), ("lose", "node2"), ("join", "node1"),
                                 ("join", "node2")],
    "power cut of a machine and its neighbour": [("lose", "node1"), ("lose", "node2"), ("join", "node2"),
                                                 ("join", "node1")],
    "power cut while it is admitted": [("lose", "node1"), ("lost", "node1"), ("join", "node1"), ("starts", "node1"),
                                       ("lose", "node1"), ("join", "node1")],
    "power cut of another while one is admitted": [("lose", "node1"), ("lost", "node1"), ("join", "node1"),
                                                   ("starts", "node1"), ("lose", "node0"), ("join", "node0")],
    "partition of another while one is admitted": [("lose", "node1"), ("lost", "node1"), ("join", "node1"),
                                                   ("starts", "node1"), ("cut", "node2"), ("lost", "node2"),
                                                   ("heal", "node2")],
    "freeze of another while one is admitted": [("lose", "node1"), ("lost", "node1"), ("join", "node1"),
                                                ("starts", "node1"), ("freeze", "node2"), ("lost", "node2"),
                                                ("thaw", "node2")],
}
# Of them those of machines with different numbers of workers.
UNEVEN = ["freeze longer than the heartbeat", "power cut of two in turn"]


class Training:
    """workers: by node, if it has more than one."""

    def __init__(self, cluster, programs, folder, name, steps, strategy, flags=(), nodes=NODES, workers=None):
        self.cluster, self.programs, self.folder, self.name, self.steps = cluster, programs, folder, name, steps
        self.metrics, self.strategy, self.flags, self.machines = folder / f"{name}.jsonl", strategy, flags, len(nodes)
        self.records = folder / f"{name}-records"
        self.workers = workers or {}
        self.ranks = sum(self.workers.get(node, 1) for node in nodes)
        self.launchers, self.all = {}, []
        for node in nodes:
            self.join(node)

    def join(self, node):
        if self.cluster[node].init is None:
            self.cluster[node].boot()
        train = [self.programs / "train_gpt", "--data", self.folder / "text", "--layers", 1, "--heads", 2, "--dim", 16,
                 "--seq_len", SEQ_LEN, "--global_batch", 12, "--once_per_epoch", "--lr", "1e-3", "--steps", self.steps, "--checkpoint",
                 self.folder / self.name, "--checkpoint_every", ENDLESS, "--metrics", self.metrics]
        together = ["--rdzv_backend", "c10d", "--rdzv_endpoint", f"head:{PORT}", "--rdzv_id",
                    f"{self.name} {self.steps}", "--rdzv_conf",
                    f"heartbeat_timeout={HEARTBEAT_S},join_timeout=200", "--insecure"]
        self.launchers[node] = self.cluster[node].start(
            [self.programs / "acclaunch", "torchrun", "--nnodes", self.machines, "--nproc_per_node",
             self.workers.get(node, 1), *(together if self.machines > 1 else []), *self.flags,
             *(["--data-record", self.records] if self.flags else []),
             "--no_python", "/bin/sh", "-c", 'echo "a worker starts"; exec "$@"', "sh", *train],
            {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": self.strategy,
             "ACC_MEMORY_CHECKPOINT_EVERY": "1"})
        self.all.append(self.launchers[node])

    def text(self):
        return "\n".join(f"{each.host.name}:\n{each.text()[-5000:]}" for each in self.all)

    def await_steps(self, number):
        """Steps of all machines, after which snapshots and their copies are complete."""
        begin = len(list(steps_of(self.metrics)))

        def made():
            return sum(len(each["ranks"]) == self.ranks for each in list(steps_of(self.metrics))[begin:])

        wait_until(lambda: made() >= number, f"{number} steps of all machines", failure=self.failure)

    def failure(self, what):
        return AssertionError(f"{self.name}: {what}\n{self.text()}")

    def count(self, text):
        return sum(each.count(text) for each in self.all)

    def losses_of(self, node):
        """The number of losses of a machine that others know of. If all have lost the daemon meanwhile, which a busy
        machine did not run for the time of a heartbeat, none says which of them does not come back."""
        return self.count(f"({node}) is lost") + sum(
            each.count("connection to the rendezvous") for each in self.all if each.host.name != node)

    def lose(self, node):
        self.cluster[node].crash()
        return self.launchers.pop(node)

    def come_as_spare(self, node):
        self.join(node)
        self.launchers[node].wait_for("waiting for a place")

    def end(self):
        """All machines save and end."""
        for node in self.launchers:  # the first one is the guardian
            os.kill(min(self.cluster[node].matching(str(self.programs / "acclaunch"))), signal.SIGUSR1)
        for launcher in self.launchers.values():
            launcher.expect_status(0)

    def check_samples(self):
        proof = subprocess.run([self.programs / "acclaunch", "data", "check", self.records], text=True,
                               capture_output=True)
        check(proof.returncode == 0, f"{self.name}: {proof.stdout}{proof.stderr}{self.text()}")

    def check_losses(self):
        """Compares the losses with those of runs with as many machines in each step; of jobs whose ranks may come in
        another order, to rounding. Returns the number of steps."""
        steps = kept_steps(self.metrics)
        found = {number: step["loss"] for number, step in steps.items()}
        parts, error = stretches(steps, 1), 0
        if self.flags != REPLICAS or self.workers:
            found = losses(self.metrics)  # also of the steps that were made again
            parts, error = [(self.machines, max(found))], 1e-4 if self.flags == REPLICAS else 0
        name = f"{self.name}-reference"
        for machines, last in parts:
            peer = Training(self.cluster, self.programs, self.folder, name, last, self.strategy, (), NODES[:machines],
                            self.workers)
            for launcher in peer.all:
                launcher.expect_status(0)
        expected = losses(self.folder / f"{name}.jsonl")
        apart = [number for number, loss in found.items() if abs(loss - expected[number]) > error]
        check(not apart, f"{self.name}: the losses of the steps {apart} differ from those of a run with as many machines "
                         f"in each step, {parts}: {[(found[each], expected[each]) for each in apart[:3]]}\n"
                         f"{self.metrics.read_text()}\n{self.text()}")
        return len(found)


def fail(run, faults):
    """Does what a row says, and waits until all machines train again."""
    others = [*NODES, "head"]
    known = {node: run.losses_of(node) for node in NODES}
    started = run.count("a worker starts")
    for what, node in faults:
        host = run.cluster[node]
        if what == "cut":
            run.cluster.cut([node], [each for each in others if each != node])
        elif what == "lost":
            wait_until(lambda: run.losses_of(node) > known[node], f"the loss of {node}", failure=run.failure)
        elif what == "starts":
            run.launchers[node].wait_for("a worker starts")
        elif what == "heal":
            run.cluster.heal()
        else:
            {"freeze": host.freeze, "thaw": host.thaw, "lose": lambda: run.lose(node),
             "join": lambda: run.join(node)}[what]()
    run.await_steps(3)
    if not run.workers and "lose" not in dict(faults):
        check(run.count("a worker starts") == started, f"{run.name}: workers were started again\n{run.text()}")


def spared(cluster, programs, folder):
    run = Training(cluster, programs, folder, "spared", ENDLESS, "FULL_SHARD", SPARING)
    run.await_steps(3)
    for node in SPARES:
        run.come_as_spare(node)
    survivor = run.launchers["node2"]

    # A machine; a spare has its rank.
    run.lose("node1")
    survivor.wait_for("all workers have rejoined", 1)
    run.await_steps(3)

    # Another one, and the spare that takes its place while it does so; then the first one comes back.
    run.lose("node0")
    run.launchers["node4"].wait_for("a worker starts")
    run.lose("node4")
    run.join("node1")
    survivor.wait_for("is lost", 3)
    run.await_steps(3)

    # A spare that is not needed ends with the job.
    run.come_as_spare("node0")
    started = {node: launcher.count("a worker starts") for node, launcher in run.launchers.items()}
    check(started == {"node0": 0, "node1": 1, "node2": 1, "node3": 1}, f"workers were started again: {started}")
    spare = run.launchers.pop("node0")
    run.end()
    spare.expect_status(0)
    check(spare.count("a spare that was not needed"), spare.text())
    return run


def main():
    if why := hosts.why_impossible():
        print(f"skipped: {why}")
        return SKIPPED
    programs = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-rejoin-"))
    # No file of the source tree: machines that join later, and the runs to compare with, must read the same.
    (folder / "text").write_bytes(random.Random(7).randbytes(WINDOWS * SEQ_LEN + 1))
    try:
        with hosts.Cluster(["head", *NODES, *SPARES]) as cluster:
            cluster["head"].start([programs / "acc-rendezvous", "--insecure", "--host", "0.0.0.0", "--port", PORT
                                   ]).wait_for(str(PORT))
            for name, strategy, flags, workers, rows in (
                    ("rejoining", "FULL_SHARD", REJOINING, {}, FAULTS), ("replicas", "NO_SHARD", REPLICAS, {}, FAULTS),
                    ("rejoining, uneven", "FULL_SHARD", REJOINING, {"node1": 2}, UNEVEN),
                    ("replicas, uneven", "NO_SHARD", REPLICAS, {"node1": 2}, UNEVEN)):
                run = Training(cluster, programs, folder, name, ENDLESS, strategy, flags, workers=workers)
                run.await_steps(3)
                for what in rows:
                    began = time.monotonic()
                    fail(run, FAULTS[what])
                    print(f"{name}, {what}: {time.monotonic() - began:.1f} s", flush=True)
                run.end()
                run.check_samples()
                print(f"{name}: {run.check_losses()} steps with the losses expected", flush=True)
            run = spared(cluster, programs, folder)
            run.check_samples()
            print(f"spares: {run.check_losses()} steps with the losses expected", flush=True)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
