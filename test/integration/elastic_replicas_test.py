# SPDX-License-Identifier: Apache-2.0
"""elastic_replicas_test.py ACCLAUNCH TRAIN_GPT DAEMON: machines that leave a job of replicas and come back.

Each launcher of a job stands for a machine. The workers of the others keep their processes. The losses equal those of
runs with the same number of machines in each step, bit for bit, and those of an undisturbed run to rounding."""

import itertools
import pathlib
import re
import signal
import subprocess
import tempfile

from memory_machines_test import ACCLAUNCH, DEADLINE, TRAIN_GPT, Machines, Rejoining, losses, steps_of, text_of


def machines_by_step(path, workers):
    """The number of machines that made each step. If a line is missing, because rank 0 was killed, the others have made
    the step too."""
    made = {step["step"]: len(step["ranks"]) // workers for step in steps_of(path)}
    for step in range(1, max(made) + 1):
        made.setdefault(step, made.get(step - 1))
    return made


def end_well(machines):
    for each in machines.running:
        assert each.returncode is not None or each.wait(DEADLINE) == 0, machines.output()


def run_to_the_end(folder, count, workers, strategy, steps, name):
    """Goes on from the last step that a run of this name has made."""
    output = folder / f"{name}-{steps}"
    output.mkdir()
    flags = ["--fsdp_sharding_strategy", strategy]
    program = [TRAIN_GPT, *text_of(folder), "--steps", steps, "--checkpoint", folder / name, "--checkpoint_every",
               1000000, "--metrics", folder / f"{name}.jsonl"]
    if count == 1:
        subprocess.run(list(map(str, [ACCLAUNCH, "--cpu", "--use_fsdp", "--num_processes", workers, *flags, *program])),
                       check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return
    machines = Machines(output, count, workers, flags, program)
    try:
        end_well(machines)
    finally:
        machines.stop()


def replicas_leave_and_return(folder, count, workers, strategy, every, changes):
    """changes: numbers of launchers that are killed; None for a machine that joins."""
    machines = Rejoining(folder, count, workers, strategy, 1000000, "disturbed",
                         flags=["--elastic_replicas", 1, "--max_restarts", 0, "--shutdown_timeout", 300,
                                "--memory_checkpoint_every", every])
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
    found = losses(folder / "disturbed.jsonl")
    by_step = machines_by_step(folder / "disturbed.jsonl", workers)
    for number, steps in itertools.groupby(sorted(by_step), by_step.get):
        run_to_the_end(folder, number, workers, strategy, max(steps), "reference")
    run_to_the_end(folder, count, workers, strategy, max(found), "undisturbed")
    reference, undisturbed = losses(folder / "reference.jsonl"), losses(folder / "undisturbed.jsonl")
    for step, loss in found.items():
        assert loss == reference[step], (step, by_step, loss, reference[step])
        assert abs(loss - undisturbed[step]) < 1e-4, (step, loss, undisturbed[step])
    print(*re.findall(r"resuming from[^\n]*|starting anew[^\n]*", text), sep="\n", flush=True)


for case in (
    (2, 1, "NO_SHARD", 1, [1, None, 0, None]),
    (3, 1, "NO_SHARD", 4, [0, 2, None, None]),
    (2, 2, "NO_SHARD", 1, [0, None]),
    (3, 2, "HYBRID_SHARD", 1, [1, 0, None]),
):
    with tempfile.TemporaryDirectory() as temporary:
        replicas_leave_and_return(pathlib.Path(temporary), *case)
    print("ok", *case, flush=True)
