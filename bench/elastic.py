# SPDX-License-Identifier: Apache-2.0
"""A training run that loses a machine and gains one, on virtual machines, compared with torchrun.

    python bench/elastic.py [--bin build/release/bin] [--python PYTHON] [--steps S] [--limit SECONDS]

Three machines with one rank each train a small GPT with checkpoints. One machine crashes (as in a power
cut: no connection is closed), and the other two resume from the last checkpoint. Then it boots and
joins, and all three resume. The losses are compared with those of an uninterrupted run. PYTHON needs
torch; without it the peer is left out. A run that has not resumed after --limit seconds is stopped.
Needs root.

The peer makes only sums over all ranks instead of training steps. It runs with
TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1. Without it, torch 2.13 accepts no machine after the first round,
because the other machines do not publish the address that the new one waits for, and the job ends a
minute later.
"""
import os
import pathlib
import shutil
import sys
import tempfile
import time

from names import BIN, ROOT, Options

sys.path[:0] = [str(ROOT / "test" / "cluster"), str(ROOT / "test" / "support")]
import hosts  # noqa: E402
from run_metrics import steps_of  # noqa: E402

NODES = ["node0", "node1", "node2"]
LOST = "node1"
# The smallest program that fails with a lost rank: it repeats a sum over all ranks.
TORCH_WORKER = """
import datetime, os, sys, time, torch, torch.distributed as dist
timeout = float(sys.argv[1])
dist.init_process_group("gloo", **({"timeout": datetime.timedelta(seconds=timeout)} if timeout else {}))
step = 0
while True:
    dist.all_reduce(torch.ones(1 << 17))
    step += 1
    if dist.get_rank() == 0:
        print(f"STEP {step} WORLD {dist.get_world_size()}", flush=True)
    time.sleep(0.1)
"""


class Run:
    """One elastic job, with one launcher per virtual machine."""

    def __init__(self, cluster, command, variables):
        self.cluster, self.command, self.variables = cluster, command, variables
        self.launchers = {}
        for name in NODES:
            self.join(name)

    def join(self, name):
        self.launchers[name] = self.cluster[name].start(self.command(name), self.variables)

    def crash_and_boot(self, steps, limit):
        """Returns the seconds from the crash, and from the new launcher's start, to the next step; None if
        there was none. steps() returns (time, ranks) of each step."""
        wait_until(lambda: len(steps()) >= 15, limit)
        crashed = time.time()
        self.cluster[LOST].crash()
        down = self.next_step(steps, crashed, 2, limit)
        if down is None:
            return None, None
        wait_until(lambda: sum(ranks == 2 for _, ranks in steps()) >= 15, limit)
        self.cluster[LOST].boot()
        joined = time.time()
        self.join(LOST)
        return down, self.next_step(steps, joined, 3, limit)

    @staticmethod
    def next_step(steps, since, ranks, limit):
        def found():
            return next((at - since for at, count in steps() if at > since and count == ranks), None)
        wait_until(lambda: found() is not None, limit)
        return found()


def wait_until(condition, limit):
    deadline = time.monotonic() + limit
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)


def seconds(value, limit):
    return f"{value:8.2f} s" if value is not None else f"  > {limit:.0f} s"


def ours(args, folder, name, conf):
    metrics = folder / f"{name}.jsonl"
    program = [args.bin / "train_gpt", "--data", ROOT / "docs", "--layers", 2, "--dim", 128,
               "--heads", 4, "--seq_len", 64, "--global_batch", 8, "--lr", 1e-3,
               "--steps", args.steps, "--checkpoint", folder / name, "--checkpoint_every", 10,
               "--metrics", metrics]

    def command(_):
        return [args.bin / "acclaunch", "torchrun", "--nnodes", "2:3", "--nproc-per-node", 1,
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "head:29500", "--rdzv-id", name,
                "--rdzv-conf", conf, "--no-python", *program]
    return metrics, command


def our_run(args, cluster, folder, name, conf, broken):
    metrics, command = ours(args, folder, name, conf)
    variables = {"ACCELERATE_USE_FSDP": "true", "FSDP_SHARDING_STRATEGY": "FULL_SHARD"}
    run = Run(cluster, command, variables)
    times = None
    if broken:
        times = run.crash_and_boot(
            lambda: [(each["time"], len(each["ranks"])) for each in steps_of(metrics)], args.limit)
    for launcher in run.launchers.values():
        launcher.expect_status(0)
    return list(steps_of(metrics)), times


def torch_run(args, cluster, folder, name, timeout):
    script = folder / "worker.py"
    script.write_text(TORCH_WORKER)

    def command(host):
        return [args.python, "-m", "torch.distributed.run", "--nnodes", "2:3", "--nproc-per-node", 1,
                "--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29600", "--rdzv-id", name,
                "--rdzv-conf", "last_call_timeout=1", "--local-addr", cluster[host].address,
                "--max-restarts", 3, script, timeout]
    run = Run(cluster, command, {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})

    def steps():
        wall = time.time() - time.monotonic()
        return [(at + wall, int(line.split()[-1])) for launcher in list(run.launchers.values())
                for at, line in list(launcher.lines) if "STEP" in line]
    times = run.crash_and_boot(steps, args.limit)
    for host in NODES:  # no other code ends these processes
        if cluster[host].init is not None:
            cluster[host].crash()
        cluster[host].boot()
    return times


def show_losses(lines, unbroken):
    print("\nround  ranks  steps     from        to          first loss  last loss  furthest from the"
          " unbroken run's")
    rounds = []
    for line in lines:
        last = rounds[-1][-1] if rounds else line
        if line["step"] != last["step"] + 1 or len(line["ranks"]) != len(last["ranks"]):
            rounds.append([])
        rounds[-1].append(line)
    for number, steps in enumerate(rounds):
        furthest = max(abs(each["loss"] - unbroken[each["step"]]) for each in steps)
        begin, end = (each["time"] - lines[0]["time"] for each in (steps[0], steps[-1]))
        print(f"{number:5}  {len(steps[0]['ranks']):5}  {steps[0]['step']:3}..{steps[-1]['step']:<4}"
              f"  {begin:6.2f} s .. {end:6.2f} s  {steps[0]['loss']:10.5f}  {steps[-1]['loss']:9.5f}"
              f"  {furthest:.1e}")
    again = len(lines) - len({line["step"] for line in lines})
    print(f"repeated steps: {again}\n")


def main():
    args = Options(__doc__, bin=BIN, python=os.environ.get("ACC_PEERS_PYTHON"), steps=200, limit=120.0).parse_args()
    if why := hosts.why_impossible():
        sys.exit(f"bench/elastic.py: {why}")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-elastic-"))
    rows = []
    try:
        with hosts.Cluster(["head", *NODES]) as cluster:
            daemon = [args.bin / "acc-rendezvous", "--host", "0.0.0.0", "--port", 29500]
            cluster["head"].start(daemon).wait_for("29500")
            lines, _ = our_run(args, cluster, folder, "unbroken", "last_call_timeout=1", False)
            unbroken = {line["step"]: line["loss"] for line in lines}
            for heartbeat in (5, 1):
                conf = f"last_call_timeout=1,heartbeat_timeout={heartbeat}"
                lines, times = our_run(args, cluster, folder, f"heartbeat{heartbeat}", conf, True)
                show_losses(lines, unbroken)
                rows.append((f"acclaunch, heartbeat_timeout={heartbeat}", times))
            for timeout in (0, 10) if args.python else ():
                name = f"torchrun, collectives' timeout {timeout or 1800} s"
                rows.append((name, torch_run(args, cluster, folder, f"torch{timeout}", timeout)))
    finally:
        shutil.rmtree(folder)
    print(f"{'':42}  crash to next step  join to next step")
    for name, (down, up) in rows:
        again = "-" if down is None else seconds(up, args.limit)
        print(f"{name:42}  {seconds(down, args.limit):>18}  {again:>17}")


if __name__ == "__main__":
    main()
