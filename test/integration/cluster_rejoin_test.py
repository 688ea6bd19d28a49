# SPDX-License-Identifier: Apache-2.0
"""A training with --rejoin and --spares on virtual hosts that lose their power.

    python cluster_rejoin_test.py BIN

BIN holds acclaunch, acc-rendezvous and train_gpt. No connection of a host that is lost is closed. Exits with 77 without
virtual hosts.
"""
import json
import os
import pathlib
import shutil
import signal
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "cluster")]
import hosts  # noqa: E402
from hosts import check, wait_until  # noqa: E402

SKIPPED = 77
NODES, SPARES = ["node0", "node1", "node2"], ["node3", "node4"]
PORT = 29500
ENDLESS = 1000000


class Training:
    def __init__(self, cluster, programs, folder, name, steps):
        self.cluster, self.programs, self.folder, self.name, self.steps = cluster, programs, folder, name, steps
        self.metrics, self.launchers, self.all = folder / f"{name}.jsonl", {}, []
        for node in NODES:
            self.join(node)

    def join(self, node):
        train = [self.programs / "train_gpt", "--data", ROOT / "docs", "--layers", 1, "--heads", 2, "--dim", 16,
                 "--seq_len", 16, "--global_batch", 12, "--lr", "1e-3", "--steps", self.steps, "--checkpoint",
                 self.folder / self.name, "--checkpoint_every", ENDLESS, "--metrics", self.metrics]
        self.launchers[node] = self.cluster[node].start(
            [self.programs / "acclaunch", "--cpu", "--use_fsdp", "--fsdp_sharding_strategy", "FULL_SHARD",
             "--num_machines", len(NODES), "--num_processes", len(NODES), "--rdzv_backend", "c10d", "--main_process_ip", "head",
             "--main_process_port", PORT, "--rdzv_conf", "heartbeat_timeout=4,join_timeout=200", "--insecure",
             "--rejoin", "--spares", len(SPARES), "--max_restarts", 5, "--memory_checkpoint_every", 1,
             "/bin/sh", "-c", 'echo "a worker starts"; exec "$@"', "sh", *train], {"PET_RDZV_ID": self.name})
        self.all.append(self.launchers[node])

    def losses(self):
        """By step; the last one of a step that was made twice. A killed rank may leave half a line."""
        made = {}
        for line in self.metrics.read_text().splitlines() if self.metrics.exists() else []:
            try:
                step = json.loads(line)
            except ValueError:
                continue
            made[step["step"]] = step["loss"]
        return made

    def reached(self):
        return max(self.losses(), default=0)

    def await_steps(self, number):
        """Steps after which snapshots and their copies are complete."""
        least = self.reached() + number
        wait_until(lambda: self.reached() >= least, f"step {least}:\n" + "\n".join(each.text() for each in self.all))

    def lose(self, node):
        self.cluster[node].crash()
        return self.launchers.pop(node)

    def come_as_spare(self, node):
        self.join(node)
        self.launchers[node].wait_for("waiting for a place")


def disturbed(cluster, programs, folder):
    run = Training(cluster, programs, folder, "disturbed", ENDLESS)
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
    cluster["node1"].boot()
    run.join("node1")
    survivor.wait_for("is lost", 3)
    run.await_steps(3)

    # A spare that is not needed ends with the job.
    cluster["node0"].boot()
    run.come_as_spare("node0")
    started = {node: launcher.count("a worker starts") for node, launcher in run.launchers.items()}
    check(started == {"node0": 0, "node1": 1, "node2": 1, "node3": 1}, f"workers were started again: {started}")
    for node in ("node1", "node2", "node3"):
        # The first one is the guardian. It saves and ends.
        os.kill(min(cluster[node].matching(str(programs / "acclaunch"))), signal.SIGUSR1)
    for launcher in run.launchers.values():
        launcher.expect_status(0)
    check(run.launchers["node0"].count("a spare that was not needed"), run.launchers["node0"].text())
    return run


def main():
    if why := hosts.why_impossible():
        print(f"skipped: {why}")
        return SKIPPED
    programs = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-rejoin-"))
    try:
        with hosts.Cluster(["head", *NODES, *SPARES]) as cluster:
            cluster["head"].start([programs / "acc-rendezvous", "--insecure", "--host", "0.0.0.0", "--port", PORT
                                   ]).wait_for(str(PORT))
            found = disturbed(cluster, programs, folder).losses()
            for node in NODES:
                if cluster[node].init is None:
                    cluster[node].boot()
            undisturbed = Training(cluster, programs, folder, "undisturbed", max(found))
            for launcher in undisturbed.all:
                launcher.expect_status(0)
            expected = undisturbed.losses()
            apart = [step for step, loss in found.items() if loss != expected[step]]
            check(not apart, f"the losses of the steps {apart} differ from those of an undisturbed run")
            print(f"{len(found)} steps, with the losses of an undisturbed run", flush=True)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
