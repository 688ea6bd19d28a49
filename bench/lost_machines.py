# SPDX-License-Identifier: Apache-2.0
"""A training run on four virtual machines that loses and regains machines at random moments, beside an undisturbed run.

    python bench/lost_machines.py [--bin build/release/bin] [--steps 600] [--losses 20] [--seed 1]
                                  [--memory_every 5] [--disk_every 50] [--heartbeat 1] [--spare | --replicas]

Each machine has one rank of an elastic job (`--nnodes 2:4`), which trains a small GPT with FULL_SHARD and with each
window of its text once per epoch. A machine is lost at a random step, as in a power cut: no connection is closed. It
boots and joins at a random step before the next loss. One loss in four takes a second machine with it. Prints for each
change the step that was reached, the step that the training resumed from and where that came from, and the time to the
first new step of all machines that are there; then the losses of the last step of both runs, and the proof of
`acclaunch data check`. Exits with 1 if the loss or the proof fails. Needs root.

With --spare the job has four machines and a fifth that waits, and the survivors of a loss keep their processes
(`--rejoin`). The fifth takes the place of the machine that is lost, which waits in turn when it has booted. One machine
is lost at a time. The losses must be those of the undisturbed run, bit for bit.

With --replicas each machine has all state (NO_SHARD), and the survivors of a loss go on without it, with their processes
(`--elastic_replicas 2`), also when it comes back.
"""
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

from elastic import hosts, wait_until
from names import BIN, ROOT, Options
from run_metrics import steps_of

NODES = ["node0", "node1", "node2", "node3"]
SPARE = "node4"
LEAST = 2
LIMIT_S = 300
RESUMING = re.compile(r"\] resuming from step (\d+) \((.*)\)")  # of train_gpt


class Training:
    """A job on the virtual machines, and what it has printed and recorded."""

    def __init__(self, args, cluster, folder, name):
        self.args, self.cluster, self.folder, self.name = args, cluster, folder, name
        self.metrics, self.records = folder / f"{name}.jsonl", folder / f"{name}-records"
        self.launchers, self.all = {}, []
        for node in NODES:
            self.join(node)
        if args.spare:
            self.reach(1)  # so that it comes last
            self.join(SPARE)
            self.launchers[SPARE].wait_for("waiting for a place")

    def reach(self, step):
        wait_until(lambda: self.reached() >= step, LIMIT_S)

    def join(self, node):
        args = self.args
        train = [args.bin / "train_gpt", "--data", self.folder / "text", "--once_per_epoch", "--layers", 2, "--dim",
                 128, "--heads", 4, "--seq_len", 64, "--global_batch", 12, "--lr", 1e-3, "--steps", args.steps,
                 "--checkpoint", self.folder / self.name, "--checkpoint_every", args.disk_every, "--metrics",
                 self.metrics]
        conf = f"last_call_timeout=1,heartbeat_timeout={args.heartbeat}"
        if args.spare or args.replicas:
            how = ["FULL_SHARD", "--rejoin", "--spares", 1, "--max_restarts", args.losses] if args.spare else [
                "NO_SHARD", "--elastic_replicas", LEAST, "--max_restarts", 0]
            command = ["--cpu", "--use_fsdp", "--num_machines", len(NODES), "--num_processes", len(NODES),
                       "--rdzv_backend", "c10d", "--main_process_ip", "head", "--main_process_port", 29500,
                       "--rdzv_conf", conf, "--insecure", "--data_record", self.records, "--fsdp_sharding_strategy",
                       *how, "/bin/sh", "-c", 'echo "a worker starts"; exec "$@"', "sh", *train]
        else:
            command = ["torchrun", "--nnodes", f"{LEAST}:{len(NODES)}", "--nproc-per-node", 1, "--rdzv-backend", "c10d",
                       "--rdzv-endpoint", "head:29500", "--rdzv-id", self.name, "--rdzv-conf", conf, "--insecure",
                       "--data-record", self.records, "--no-python", *train]
        self.launchers[node] = self.cluster[node].start(
            [args.bin / "acclaunch", *command],
            {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD", "PET_RDZV_ID": self.name,
             "ACC_MEMORY_CHECKPOINT_EVERY": str(args.memory_every)})
        self.all.append(self.launchers[node])

    def lose(self, node):
        self.cluster[node].crash()
        del self.launchers[node]

    def boot(self, node):
        self.cluster[node].boot()
        self.join(node)

    def steps(self):
        return list(steps_of(self.metrics))

    def reached(self):
        return max((each["step"] for each in self.steps()), default=-1)

    def await_step(self, step):
        wait_until(lambda: self.reached() >= step or not self.goes_on(), LIMIT_S)
        if self.reached() < step:
            self.fail(f"step {step} was not reached")

    def fail(self, what):
        sys.exit(f"{what}:\n" + "\n".join(each.text()[-3000:] for each in self.launchers.values()))

    def goes_on(self):
        return any(each.process.poll() is None for each in self.launchers.values())

    def resumptions(self):
        """Returns (time, step, place) of each line about them, in the order of time."""
        return sorted((at, int(found[1]), "memory" if found[2] == "memory" else "disk") for launcher in self.all
                      for at, line in list(launcher.lines) if (found := RESUMING.search(line)))


def moments(args):
    """Returns the steps of losses and of returns: [(step of the loss, machines to lose, step of the return)]."""
    choose = random.Random(args.seed)
    each = args.steps // (args.losses + 1)
    result = []
    present, waiting = list(NODES), SPARE
    for number in range(args.losses):
        begin = (number + 1) * each - each // 2 + choose.randrange(each // 4)
        lost = choose.sample(present, 2 if choose.random() < 0.25 and not args.spare else 1)
        if args.spare:
            present.remove(lost[0])
            present.append(waiting)
            waiting = lost[0]
        result.append((begin, lost, begin + 2 + choose.randrange(each // 3)))
    return result


def change(run, what, act):
    """Makes a change and prints its row, when all machines that are there have made a new step. Returns the seconds
    until then."""
    before, known = run.reached(), len(run.resumptions())
    began = time.time()
    act()

    def first():
        return next((each["time"] for each in run.steps()
                     if each["step"] > before and each["time"] > began
                     and len(each["ranks"]) == min(len(run.launchers), len(NODES))), None)

    wait_until(lambda: first() is not None or not run.goes_on(), LIMIT_S)
    if first() is None:
        run.fail(f"no step of {len(run.launchers)} machines")
    place = ", ".join(f"step {step}, {where}" for _, step, where in run.resumptions()[known:]) or "nothing"
    print(f"{before:5}  {what:22}  {place:24}  {first() - began:6.2f} s", flush=True)
    return first() - began


def disturbed(args, cluster, folder):
    run = Training(args, cluster, folder, "disturbed")
    lost_s = 0.0
    print(" step  change                  resumed from              to the next new step")
    waiting = SPARE
    for at, lost, back in moments(args):
        run.await_step(at)
        if args.spare:
            lost_s += change(run, f"lost {lost[0]}, {waiting} comes", lambda node=lost[0]: run.lose(node))
            run.boot(lost[0])
            run.launchers[lost[0]].wait_for("waiting for a place")
            waiting = lost[0]
            continue
        lost_s += change(run, "lost " + ", ".join(lost), lambda lost=lost: [run.lose(node) for node in lost])
        run.await_step(back)
        lost_s += change(run, "back " + ", ".join(lost), lambda lost=lost: [run.boot(node) for node in lost])
    for launcher in run.launchers.values():
        launcher.expect_status(0)
    if args.spare or args.replicas:
        started = sum(launcher.count("a worker starts") for launcher in run.all)
        print(f"processes of workers: {started}, of which {started - len(NODES)} in the place of lost ones")
        if started != len(NODES) + sum(len(lost) for _, lost, _ in moments(args)):
            sys.exit("bench/lost_machines.py: processes of survivors were started again")
    print(f"time to new steps: {lost_s:.1f} s in {(1 if args.spare else 2) * args.losses} changes; steps made again: "
          f"{len(run.steps()) - len({each['step'] for each in run.steps()})}")
    return run


def undisturbed(args, cluster, folder):
    run = Training(args, cluster, folder, "undisturbed")
    for launcher in run.launchers.values():
        launcher.expect_status(0)
    return run


def main():
    parser = Options(__doc__, bin=BIN, steps=600, losses=20, seed=1, memory_every=5, disk_every=50, heartbeat=1)
    kinds = parser.add_mutually_exclusive_group()
    kinds.add_argument("--spare", action="store_true")
    kinds.add_argument("--replicas", action="store_true")
    args = parser.parse_args()
    if args.steps // (args.losses + 1) < 12:
        sys.exit("bench/lost_machines.py: a loss needs at least 12 steps")
    if why := hosts.why_impossible():
        sys.exit(f"bench/lost_machines.py: {why}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-lost-"))
    texts = sorted((ROOT / "docs").glob("*.md"))  # a copy: each machine that joins reads the same
    (folder / "text").write_bytes(b"".join(each.read_bytes() for each in texts))
    try:
        with hosts.Cluster(["head", *NODES, SPARE]) as cluster:
            cluster["head"].start([args.bin / "acc-rendezvous", "--insecure", "--host", "0.0.0.0", "--port",
                                   29500]).wait_for("29500")
            began = time.time()
            peer = undisturbed(args, cluster, folder)
            middle = time.time()
            run = disturbed(args, cluster, folder)
            print(f"whole run: {time.time() - middle:.1f} s, undisturbed {middle - began:.1f} s")
            last, expected = run.steps()[-1], peer.steps()[-1]
            apart = abs(last["loss"] - expected["loss"]) / expected["loss"]
            print(f"loss of step {last['step']}: {last['loss']:.7f}, undisturbed {expected['loss']:.7f}: "
                  f"{apart:.1e} apart")
            if args.spare:
                losses = {each["step"]: each["loss"] for each in run.steps()}
                peers = {each["step"]: each["loss"] for each in peer.steps()}
                if any(loss != peers[step] for step, loss in losses.items()):
                    sys.exit("bench/lost_machines.py: the losses differ from those of an undisturbed run")
            proof = subprocess.run(
                [args.bin / "acclaunch", "data", "check", run.records], capture_output=True, text=True)
            print((proof.stdout + proof.stderr).rstrip())
        if proof.returncode or last["step"] != expected["step"] or apart > 1e-3:
            sys.exit("bench/lost_machines.py: the run differs from an undisturbed one")
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
