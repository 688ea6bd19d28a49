# SPDX-License-Identifier: Apache-2.0
"""elastic_replicas_test.py ACCLAUNCH PROGRAM DAEMON AT_OPEN|PACKAGE: machines that leave a job of replicas and return.
PROGRAM: train_gpt with the library AT_OPEN, or train_replicas.py or train_engine.py with the Python package.

Each launcher of a job stands for a machine. The workers of the others keep their processes. The losses equal those of
runs with the same number of machines in each step, bit for bit, and those of train_gpt in an undisturbed run of one
worker to rounding. Each sample is used once in the steps that are kept."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

from memory_machines_test import (ACCLAUNCH, DEADLINE, FLAGS, TRAIN_GPT, Rejoining, end_well, run_to_the_end, text_of,
                                  use_python)
from run_metrics import kept_steps, losses, stretches


def check_samples(record):
    proof = subprocess.run([ACCLAUNCH, "data", "check", record], text=True, timeout=DEADLINE, capture_output=True)
    assert proof.returncode == 0, proof.stdout + proof.stderr
    print(proof.stdout, end="", flush=True)


def replicas_leave_and_return(folder, count, workers, strategy, every, changes):
    """changes: numbers of launchers that are killed; None for a machine that joins."""
    machines = Rejoining(folder, count, workers, strategy, 1000000, "disturbed",
                         flags=["--elastic_replicas", 1, "--max_restarts", 0, "--shutdown_timeout", 300,
                                "--memory_checkpoint_every", every, "--data_record", folder / "record"])
    try:
        machines.train()
        present = count
        for change in changes:
            rejoined = len(re.findall("all workers have rejoined", machines.output()))
            if change is None:
                machines.add()
            else:
                machines.lose_for_good(change)
            present += 1 if change is None else -1
            machines.wait_for("all workers have rejoined", rejoined + present - (change is None))
            machines.train()
        survivors = [each for each in machines.running if each.returncode is None]
        for each in survivors:
            each.send_signal(signal.SIGUSR1)  # saves and ends
        end_well(machines)
        text = machines.output()
        for number in range(len(machines.files)):
            assert len(machines.pids(number)) == workers, (number, text)
    finally:
        machines.stop()
    steps = kept_steps(folder / "disturbed.jsonl")
    found = {number: step["loss"] for number, step in steps.items()}
    for number, last in stretches(steps, workers):
        run_to_the_end(folder, number, workers, strategy, last, "reference")
    reference = losses(folder / "reference.jsonl")
    for step, loss in found.items():
        assert loss == reference[step], (step, stretches(steps, workers), loss, reference[step])
    if not TRAIN_GPT.endswith(".py"):  # other tests compare what these train with one worker
        run_to_the_end(folder, 1, 1, "NO_SHARD", max(found), "undisturbed")
        undisturbed = losses(folder / "undisturbed.jsonl")
        for step, loss in found.items():
            assert abs(loss - undisturbed[step]) < 1e-4, (step, loss, undisturbed[step])
    check_samples(folder / "record")
    print(*re.findall(r"resuming from[^\n]*|starting anew[^\n]*", text), sep="\n", flush=True)


def a_save_ends_when_a_machine_joins(folder, at_open):
    """Rank 0 holds its first save, which has no name yet, until the others have heard that a machine joins."""
    run, held, released = folder / "run", folder / "held", folder / "released"
    hold = f"! ls {run} 2>&1 | grep -q acc-tmp || (touch {held}; until [ -e {released} ]; do sleep 0.05; done)"
    machines = Rejoining(folder, 2, 1, "NO_SHARD", 0, "saving", program=[
        "env", f"LD_PRELOAD={at_open}", f"ACC_OPEN_UNDER={run}", "ACC_OPEN_AT=1", f"ACC_OPEN_RUN={hold}",
        f"ACC_OPEN_HIT={folder / 'hit'}", "ACC_OPEN_RANK=0", TRAIN_GPT, *text_of(folder), "--steps", 1000000,
        "--checkpoint", run, "--checkpoint_every", 5, "--total_limit", 9, "--metrics", folder / "metrics"],
        flags=["--elastic_replicas", 1, "--max_restarts", 0, "--shutdown_timeout", 300, "--save_async",
               "--fsdp_state_dict_type", "SHARDED_STATE_DICT", "--num_machines", 3, "--num_processes", 3,
               "--rdzv_conf", "join_timeout=200,last_call_timeout=1"])
    try:
        machines.wait_until(held.exists, "the first save")
        machines.add()
        machines.wait_for("has joined: the next round has 3 machines; the workers go on", 1)
        assert not (run / "checkpoint_0").exists()
        released.touch()
        machines.wait_for("all workers have rejoined", 2)
        machines.wait_for("tokens/s", len(re.findall("tokens/s", machines.output())) + 1)
        for each in machines.running:
            each.send_signal(signal.SIGUSR1)  # saves and ends
        end_well(machines)
        text = machines.output()
    finally:
        machines.stop()
    assert "older checkpoints stay" not in text, text
    assert (run / "checkpoint_0" / "acc_checkpoint.json").exists(), text


def main():
    if TRAIN_GPT.endswith(".py"):
        use_python(sys.argv[4])
        cases = [(2, 1, "NO_SHARD", 1, [1, None]), (2, 2, "HYBRID_SHARD", 3, [0, None])]
    else:
        with tempfile.TemporaryDirectory() as temporary:
            a_save_ends_when_a_machine_joins(pathlib.Path(temporary), sys.argv[4])
        print("ok a save ends when a machine joins", flush=True)
        cases = [(2, 1, "NO_SHARD", 1, [1, None, 0, None]), (3, 1, "NO_SHARD", 4, [0, 2, None, None]),
                 (2, 2, "NO_SHARD", 1, [0, None]), (3, 2, "HYBRID_SHARD", 1, [1, 0, None])]
    for case in cases:
        with tempfile.TemporaryDirectory() as temporary:
            replicas_leave_and_return(pathlib.Path(temporary), *case)
        print("ok", *case, flush=True)
        os.environ["TORCH_OPTIMIZER"] = "1"  # of the next case, which imports torch._dynamo
        FLAGS[:] = ["torch._dynamo" if each == "torch" else each for each in FLAGS]


if __name__ == "__main__":
    main()
