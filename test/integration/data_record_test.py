# SPDX-License-Identifier: Apache-2.0
"""data_record_test.py ACCLAUNCH TRAIN_GPT PACKAGE: kills of workers, restarts, and another number of ranks, of train_gpt
and of a small program in Python. `acclaunch data check` proves from the records that each sample was used once."""

import json
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile

ACCLAUNCH, TRAIN_GPT, PACKAGE = sys.argv[1:4]
DEADLINE = 300  # seconds; far more than a busy machine needs
WORKER = """
import json, os, pathlib, signal, sys, time
from acclaunch import data

folder, last, kill_at = pathlib.Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
order = data.DataOrder(500, seed=3, last_batch="next_epoch")
state = folder / "state.json"
if state.exists():
    order.load_state_dict(json.loads(state.read_text()))
print("begin", rank, *order.position, flush=True)

def meet(step):
    (folder / f"{os.environ['ACC_DATA_ROUND']}.{world_size}.{step}.{rank}").touch()
    names = [folder / f"{os.environ['ACC_DATA_ROUND']}.{world_size}.{step}.{each}" for each in range(world_size)]
    while not all(each.exists() for each in names):
        time.sleep(0.002)

step = 0
while order.position.epoch * 500 + order.position.offset < last:
    step += 1
    batch = order.batch(16)
    part = data.share(batch.size, rank, world_size)
    order.samples(batch, part)
    order.advance(batch, part)
    meet(step)
    now = order.state_dict()
    if step % 5 == 0:
        if rank == 0:
            temporary = folder / "state.tmp"
            temporary.write_text(json.dumps(now))
            temporary.rename(state)
        meet(f"{step}s")
    if [int(os.environ["ACC_DATA_ROUND"]), step, rank] in kill_at:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def launch(*words, status=0):
    done = subprocess.run([ACCLAUNCH, *map(str, words)], text=True, timeout=DEADLINE, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT,
                          env=os.environ | {"PYTHONPATH": PACKAGE, "PYTHON_EXEC": sys.executable})
    assert done.returncode == status, f"status {done.returncode}, expected {status}\n{done.stdout}"
    return done.stdout


def check(*folders, status=0):
    done = subprocess.run([ACCLAUNCH, "data", "check", *map(str, folders)], text=True, timeout=DEADLINE,
                          capture_output=True)
    assert done.returncode == status, f"status {done.returncode}, expected {status}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def kills_of_a_python_program(folder):
    program = folder / "worker.py"
    program.write_text(WORKER)
    record = folder / "record"
    one = folder / "one"
    one.mkdir()
    flags = ["--cpu", "--restart_backoff", "0", "--data_record", record]
    # Round 0: rank 1 is killed between two checkpoints; round 1: rank 0 right after one; round 2 ends.
    launch(*flags, "--num_processes", 3, "--max_restarts", 2, program, one, 700, "[[0, 7, 1], [1, 10, 0]]")
    for name in one.glob("[0-9]*"):
        name.unlink()
    launch(*flags, "--num_processes", 2, program, one, 1100, "[]")
    text = check(record)
    assert "epoch 0: 500 samples, each used once\n" in text, text
    assert "epoch 1: 500 samples, each used once\n" in text, text
    assert "attempts: 4, of which 4 are part of the training" in text, text
    assert text.endswith("proven: no sample was lost or repeated\n"), text

    # Altered records: another number in a kept line, a file that is missing, a damaged line.
    files = sorted(record.iterdir())
    assert len(files) == 3 * 3 + 2, files
    newest = max(files, key=lambda each: json.loads(each.read_text().splitlines()[0])["time"])
    content = newest.read_text()
    lines = content.splitlines()
    batch = json.loads(lines[2])
    batch["samples"][0][2][0] = (batch["samples"][0][2][0] + 1) % 500
    newest.write_text("\n".join([*lines[:2], json.dumps(batch), *lines[3:]]) + "\n")
    text = check(record, status=1)
    assert "not proven: epoch 1: 1 samples were used twice" in text and "1 of 500 samples were not used: " in text, text
    newest.write_text("\n".join([*lines[:3], "{" + lines[3], *lines[4:]]) + "\n")
    text = check(record, status=2)
    assert f"{newest}, line 4: expected a JSON object" in text, text
    newest.write_text(content + '{"kind": "bat')
    assert "is not complete and was left out" in check(record)
    newest.unlink()
    assert "there is no record of rank" in check(record, status=1)
    assert "has no record" in check(folder / "one", status=2)
    assert "cannot read the folder" in check(folder / "none", status=2)


def is_whole(line):
    try:
        return bool(json.loads(line))
    except ValueError:
        return False


def kills_of_train_gpt(folder):
    """Random kills of ranks; each launch has another number of them. The losses are those of an undisturbed run."""
    draw = random.Random(7)
    text = folder / "text"
    text.write_bytes(bytes(draw.randrange(256) for _ in range(40 * 16 + 1)))  # 40 windows of 16 tokens
    train = [TRAIN_GPT, "--data", text, "--layers", 1, "--heads", 2, "--dim", 16, "--seq_len", 16, "--global_batch", 6,
             "--once_per_epoch", "--lr", "1e-3", "--checkpoint_every", 4]

    flags = ["--cpu", "--use_fsdp", "--data_record", folder / "record"]
    saves = ["--checkpoint", folder / "run", "--metrics", folder / "metrics"]

    def made():
        """The steps in the metrics, the last one of each number. A killed rank may leave half a line."""
        lines = (folder / "metrics").read_text().splitlines()
        return {step["step"]: step["loss"] for step in map(json.loads, filter(is_whole, lines))}

    launch(*flags, "--num_processes", 2, *train, *saves, "--steps", 9)
    launch(*flags, "--num_processes", 3, *train, *saves, "--steps", 14)
    victim = subprocess.Popen(
        [ACCLAUNCH, *map(str, flags), "--num_processes", "2", "--max_restarts", "1", "--restart_backoff", "0",
         "/bin/sh", "-c", 'echo begins as $$; exec "$@"', "sh", *map(str, [*train, *saves]), "--steps", "1000000"],
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    pids, is_killed = [], False
    for line in victim.stdout:  # awaits steps, then kills a worker, and after steps of its restart the launcher
        if found := re.search(r"begins as (\d+)$", line):
            pids.append(int(found[1]))
        if "tokens/s" in line and len(pids) == 2 and not is_killed:
            os.kill(pids[1], signal.SIGKILL)
            is_killed = True
        if "tokens/s" in line and len(pids) == 4:
            break
    victim.send_signal(signal.SIGKILL)
    victim.communicate()
    launch(*flags, "--num_processes", 1, *train, *saves, "--steps", max(made()) + 20)
    text = check(folder / "record")
    for epoch in range(2):
        assert f"epoch {epoch}: 40 samples, each used once\n" in text, text
    assert text.endswith("proven: no sample was lost or repeated\n"), text

    losses = made()
    whole = folder / "undisturbed"
    launch("--cpu", "--use_fsdp", "--num_processes", 2, *train, "--steps", 30, "--metrics", whole)
    for line in whole.read_text().splitlines():
        step = json.loads(line)
        assert abs(losses[step["step"]] - step["loss"]) < 1e-4, (step, losses[step["step"]])


for case in (kills_of_a_python_program, kills_of_train_gpt):
    with tempfile.TemporaryDirectory() as temporary:
        case(pathlib.Path(temporary))
    print("ok", case.__name__, flush=True)
