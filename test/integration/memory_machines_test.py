# SPDX-License-Identifier: Apache-2.0
"""memory_machines_test.py ACCLAUNCH TRAIN_GPT DAEMON: machines that are lost while train_gpt keeps snapshots in memory.

Each launcher of a job stands for a machine. One is killed with its workers, another one joins in its place, and the job
resumes from the memory of the others, with the losses of an undisturbed run."""

import json
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from daemon import Daemon  # noqa: E402

ACCLAUNCH, TRAIN_GPT, DAEMON = sys.argv[1:4]
DEADLINE = 300  # seconds; far more than a busy machine needs


class Machines:
    """The launchers of one job, with their output in files."""

    def __init__(self, folder, count, workers, flags, program):
        self.folder, self.running, self.files = folder, [], []
        self.daemon = Daemon(DAEMON, "--insecure")
        self.command = [
            ACCLAUNCH, "--cpu", "--use_fsdp", "--num_machines", count, "--num_processes", count * workers,
            "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1", "--main_process_port", self.daemon.port,
            "--rdzv_conf", "join_timeout=200", "--max_restarts", 5, "--restart_backoff", 0, *flags, *program]
        for _ in range(count):
            self.add()

    def add(self):
        self.files.append(self.folder / f"output{len(self.files)}")
        with open(self.files[-1], "w") as output:
            self.running.append(subprocess.Popen(list(map(str, self.command)), stdout=output, stderr=output))

    def output(self):
        return "".join(each.read_text() for each in self.files)

    def wait_for(self, pattern, times):
        end = time.monotonic() + DEADLINE
        while len(re.findall(pattern, self.output())) < times:
            assert time.monotonic() < end, f"no {times} times {pattern} in\n{self.output()}"
            assert any(each.poll() is None for each in self.running), self.output()
            time.sleep(0.05)

    def stop(self):
        for each in self.running:
            if each.poll() is None:
                each.kill()
            each.wait()
        self.daemon.stop()


def losses(path):
    """The losses by step; the last one of a step that was made twice. A killed rank may leave half a line."""
    made = {}
    for line in path.read_text().splitlines():
        try:
            step = json.loads(line)
        except ValueError:
            continue
        made[step["step"]] = step["loss"]
    return made


def a_lost_machine_is_replaced(folder, count, workers, strategy, lost, message):
    draw = random.Random(7)
    (folder / "text").write_bytes(bytes(draw.randrange(256) for _ in range(40 * 16 + 1)))
    train = [TRAIN_GPT, "--data", folder / "text", "--layers", 1, "--heads", 2, "--dim", 16, "--seq_len", 16,
             "--global_batch", 12, "--lr", "1e-3"]
    flags = ["--fsdp_sharding_strategy", strategy, "--memory_checkpoint_every", 1]
    machines = Machines(folder, count, workers, flags, [
        *train, "--steps", 1000000, "--checkpoint", folder / "run", "--checkpoint_every", 1000000, "--metrics",
        folder / "metrics"])
    try:
        machines.wait_for("tokens/s", 3)
        for number in lost:
            machines.running[number].send_signal(signal.SIGKILL)
            machines.running[number].wait()
            machines.add()
        machines.wait_for(message, 1)
        machines.wait_for("tokens/s", len(re.findall("tokens/s", machines.output())) + 1)  # it trains again
        survivors = [each for i, each in enumerate(machines.running) if i not in lost]
        for each in survivors:
            each.send_signal(signal.SIGUSR1)  # saves and ends
        for each in survivors:
            assert each.wait(DEADLINE) == 0, machines.output()
        text = machines.output()
    finally:
        machines.stop()
    found = losses(folder / "metrics")
    if "starting anew" not in message:
        assert sorted(found) == list(range(1, max(found) + 1)), sorted(found)
    subprocess.run(list(map(str, [
        ACCLAUNCH, "--cpu", "--use_fsdp", "--num_processes", count * workers, "--fsdp_sharding_strategy", strategy,
        *train, "--steps", max(found), "--metrics", folder / "undisturbed"])), check=True, timeout=DEADLINE,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for step, loss in losses(folder / "undisturbed").items():
        assert abs(found[step] - loss) < 1e-4, (step, found[step], loss)
    print(re.search(r"resuming from.*|starting anew.*", text)[0], flush=True)


for case in (
    (2, 2, "FULL_SHARD", [1], r"in memory \(nothing on disk.*2 snapshots from other machines"),
    (3, 1, "FULL_SHARD", [1], r"in memory \(nothing on disk.*1 snapshots from other machines"),
    (2, 2, "HYBRID_SHARD", [0], r"in memory \(nothing on disk.*snapshots from other machines"),
    (3, 1, "FULL_SHARD", [0, 1], "starting anew: nothing on disk, step .* in memory lacks rank"),
):
    with tempfile.TemporaryDirectory() as temporary:
        a_lost_machine_is_replaced(pathlib.Path(temporary), *case)
    print("ok", *case[:4], flush=True)
