#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Kills the daemon 20 times during one training with torch on two machines: recovery_training_test.py ACCLAUNCH DAEMON

The first time while rank 1 waits in init_process_group, then before each step while it is in store.wait. The
losses equal those of the same training, which the workers make once more without kills."""
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

ACCLAUNCH, DAEMON = sys.argv[1:3]
KILLS = 20
DEADLINE = 900

WORKER = '''
import os, sys, time
import torch, torch.distributed as dist
folder, rank = sys.argv[1], int(os.environ["RANK"])
def gate(number):
    if rank == 0:
        open(f"{folder}/at{number}", "w").close()
        while not os.path.exists(f"{folder}/go{number}"):
            time.sleep(0.02)
gate(0)
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
for kind in ("disturbed", "undisturbed"):
    torch.manual_seed(rank)
    model = torch.nn.Linear(8, 1)
    for parameter in model.parameters():
        dist.broadcast(parameter.data, 0)
    for step in range(1, %d):
        if kind == "disturbed":
            gate(step)
        if rank == 0:
            store.set(f"{kind} {step}", "go")
        store.wait([f"{kind} {step}"])
        loss = (model(torch.randn(4, 8)) - 1).square().mean()
        for parameter, gradient in zip(model.parameters(), torch.autograd.grad(loss, model.parameters())):
            dist.all_reduce(gradient)
            parameter.data -= 0.1 * gradient / dist.get_world_size()
        dist.barrier()
        print(f"loss {kind} {rank} {step} {loss.item():.9f}", flush=True)
os._exit(0)  # threads of torch's Gloo may abort a process at the interpreter's exit
''' % KILLS


def start_daemon(port, state):
    process = subprocess.Popen([DAEMON, "--port", str(port), "--state_dir", state], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline().startswith("listening on ")
    return process


def train():
    """Returns the losses of both trainings by rank and step, and how often the agents noticed a kill."""
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        (folder / "worker.py").write_text(WORKER)
        port, state = reserved_port(), str(folder / "state")
        daemon = start_daemon(port, state)
        launchers = [subprocess.Popen(
            [ACCLAUNCH, "torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}",
             "--rdzv-id", "job", str(folder / "worker.py"), str(folder)],
            stdout=open(folder / f"out{i}", "w"), stderr=open(folder / f"err{i}", "w"),
            env={**os.environ, "PATH": os.path.dirname(sys.executable) + ":" + os.environ["PATH"], "OMP_NUM_THREADS": "1"})
            for i in range(2)]
        try:
            end = time.monotonic() + DEADLINE
            for number in range(KILLS):
                while not (folder / f"at{number}").exists():
                    said = [(folder / f"err{i}").read_text() for i in range(2)]
                    assert time.monotonic() < end and launchers[0].poll() is None, "\n".join(said)
                    time.sleep(0.02)
                daemon.kill()
                daemon.communicate()
                daemon = start_daemon(port, state)
                (folder / f"go{number}").touch()
            for i, launcher in enumerate(launchers):
                assert launcher.wait(DEADLINE) == 0, (folder / f"err{i}").read_text()
            found = {"disturbed": {}, "undisturbed": {}}
            for i in range(2):
                lines = (folder / f"out{i}").read_text()
                for kind, rank, step, loss in re.findall(r"loss (\w+) (\d) (\d+) (\S+)", lines):
                    found[kind][rank, step] = loss
            gone = sum((folder / f"err{i}").read_text().count("the workers go on") for i in range(2))
        finally:
            for process in [daemon, *launchers]:
                process.kill()
                process.communicate()
    return found["disturbed"], found["undisturbed"], gone


disturbed, undisturbed, gone = train()
assert len(undisturbed) == 2 * (KILLS - 1) and disturbed == undisturbed, f"{disturbed}\n{undisturbed}"
assert gone > 0
print(f"{KILLS} kills, noticed {gone} times by the agents of 2 machines; {len(disturbed)} losses are equal")
