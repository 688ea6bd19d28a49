# SPDX-License-Identifier: Apache-2.0
"""memory_machines_test.py ACCLAUNCH PROGRAM DAEMON [PACKAGE [TRAINED …]]: machines that are lost while train_gpt keeps
snapshots in memory, or train_engine.py with the Python package.

Each launcher of a job stands for a machine. One is killed with its workers, another one joins in its place, and the job
resumes from the memory of the others, with the losses of an undisturbed run."""

import importlib.util
import os
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
from run_metrics import losses, steps_of  # noqa: E402

ACCLAUNCH, TRAIN_GPT, DAEMON = sys.argv[1:4]
DEADLINE = 900  # seconds; far more than a busy machine needs
FLAGS = []  # of all jobs
os.environ["OMP_NUM_THREADS"] = "1"  # with the launcher's choice, sums of ranks on one machine and on two would differ


class Machines:
    """The launchers of one job, with their output in files. metrics: the file of the program's --metrics."""

    join_timeout = 600  # seconds

    def __init__(self, folder, count, workers, flags, program, metrics=None):
        self.folder, self.metrics, self.running, self.files = folder, metrics, [], []
        self.daemon = Daemon(DAEMON, "--insecure")
        self.command = [
            ACCLAUNCH, "--cpu", "--use_fsdp", "--num_machines", count, "--num_processes", count * workers,
            "--rdzv_backend", "c10d", "--main_process_ip", "127.0.0.1", "--main_process_port", self.daemon.port,
            "--rdzv_conf", f"join_timeout={self.join_timeout}", "--max_restarts", 5, "--restart_backoff", 0, *FLAGS,
            *flags, *program]
        for _ in range(count):
            self.add()

    def add(self):
        self.files.append(self.folder / f"output{len(self.files)}")
        with open(self.files[-1], "w") as output:
            self.running.append(subprocess.Popen(list(map(str, self.command)), stdout=output, stderr=output))

    def output(self):
        return "".join(each.read_text() for each in self.files)

    def wait_until(self, condition, what):
        end = time.monotonic() + DEADLINE
        while not condition():
            assert time.monotonic() < end, f"no {what} in\n{self.output()}"
            assert any(each.poll() is None for each in self.running), self.output()
            time.sleep(0.05)

    def wait_for(self, pattern, times):
        self.wait_until(lambda: len(re.findall(pattern, self.output())) >= times, f"{times} times {pattern}")

    def train(self, count=5):
        """Waits for more steps. The lines of progress come every two seconds, in which it makes hundreds."""
        begin = time.time()
        self.wait_until(lambda: sum(step["time"] > begin for step in steps_of(self.metrics)) >= count, "more steps")

    def stop(self):
        for each in self.running:
            if each.poll() is None:
                each.kill()
            each.wait()
        self.daemon.stop()


def text_of(folder):
    draw = random.Random(7)
    (folder / "text").write_bytes(bytes(draw.randrange(256) for _ in range(40 * 16 + 1)))
    return ["--data", folder / "text", "--layers", 1, "--heads", 2, "--dim", 16, "--seq_len", 16, "--global_batch", 12,
            "--once_per_epoch", "--lr", "1e-3"]


def a_lost_machine_is_replaced(folder, count, workers, strategy, lost, message):
    train = [TRAIN_GPT, *text_of(folder)]
    flags = ["--fsdp_sharding_strategy", strategy, "--memory_checkpoint_every", 1]
    machines = Machines(folder, count, workers, flags, [
        *train, "--steps", 1000000, "--checkpoint", folder / "run", "--checkpoint_every", 1000000, "--metrics",
        folder / "metrics"], folder / "metrics")
    try:
        machines.train()
        for number in lost:
            machines.running[number].send_signal(signal.SIGKILL)
            machines.running[number].wait()
            machines.add()
        machines.wait_for(message, 1)
        machines.train()  # again
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


def end_well(machines):
    for each in machines.running:
        assert each.returncode is not None or each.wait(DEADLINE) == 0, f"{each.returncode}: {machines.output()}"


def run_to_the_end(folder, count, workers, strategy, steps, name):
    """Goes on from the last step that a run of this name has made. Two ranks need no machines of their own: a sum
    of two is the same in each order, and a launcher less imports torch."""
    output = folder / f"{name}-{steps}"
    output.mkdir()
    flags = ["--fsdp_sharding_strategy", strategy]
    program = [TRAIN_GPT, *text_of(folder), "--steps", steps, "--checkpoint", folder / name, "--checkpoint_every",
               1000000, "--metrics", folder / f"{name}.jsonl"]
    if count == 1 or count * workers == 2:
        subprocess.run(list(map(str, [ACCLAUNCH, "--cpu", "--use_fsdp", "--num_processes", count * workers, *FLAGS,
                                      *flags, *program])),
                       check=True, timeout=DEADLINE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return
    machines = Machines(output, count, workers, flags, program)
    try:
        end_well(machines)
    finally:
        machines.stop()


class Rejoining(Machines):
    """A job whose workers are told from each other by their pids, which they print."""

    prints_pid = ["/bin/sh", "-c", 'echo "pid $$"; exec "$@"', "sh"]  # empty: the program does

    def __init__(self, folder, count, workers, strategy, steps, name, program=None, flags=()):
        self.workers = workers
        metrics = folder / f"{name}.jsonl"
        train = program or [
            TRAIN_GPT, *text_of(folder), "--steps", steps, "--checkpoint", folder / name, "--checkpoint_every", 1000000,
            "--metrics", metrics]
        folder = folder / f"{name}-output"
        folder.mkdir()
        super().__init__(folder, count, workers, ["--rejoin", "--fsdp_sharding_strategy", strategy,
                                                  "--memory_checkpoint_every", 1, *flags],
                         [*self.prints_pid, *train], metrics)

    def pids(self, number):
        return [int(each) for each in re.findall(r"\] pid (\d+)", self.files[number].read_text())]

    def lose_machine(self, number):
        self.lose_for_good(number)
        self.add()

    def lose_for_good(self, number):
        self.running[number].send_signal(signal.SIGKILL)
        self.running[number].wait()

    def lose_worker(self, number):
        try:
            os.kill(self.pids(number)[-1], signal.SIGKILL)
        except ProcessLookupError:
            sys.exit(f"a worker is gone:\n{self.output()}")

    def lose_to_spare(self, number):
        """A machine that waits takes its place."""
        self.add()
        self.wait_until(lambda: "waiting for a place" in self.files[-1].read_text(), "spare")
        self.lose_for_good(number)

    def step_after(self, lose, number):
        """Loses something, and waits until the job trains again in new groups, with copies on other machines. Each
        machine that stays says so, which may be some steps later."""
        rejoined = len(re.findall("all workers have rejoined", self.output()))
        present = list(self.running)
        lose(number)
        stay = sum(each.poll() is None for each in present)
        self.wait_for("all workers have rejoined", rejoined + stay)
        self.train()


def survivors_keep_their_processes(folder, count, workers, strategy, losses_in_turn, flags=()):
    machines = Rejoining(folder, count, workers, strategy, 1000000, "disturbed", flags=flags)
    started = [workers] * count  # by launcher
    lost = set()
    try:
        machines.train()
        for kind, number in losses_in_turn:
            if kind != "worker":
                machines.step_after(machines.lose_machine if kind == "machine" else machines.lose_to_spare, number)
                lost.add(number)
                started.append(workers)
            else:
                machines.step_after(machines.lose_worker, number)
                started[number] += 1
        survivors = [each for i, each in enumerate(machines.running) if i not in lost]
        for each in survivors:
            each.send_signal(signal.SIGUSR1)  # saves and ends
        for each in survivors:
            assert each.wait(DEADLINE) == 0, machines.output()
        text = machines.output()
        assert [len(machines.pids(number)) for number in range(len(started))] == started, text
    finally:
        machines.stop()
    found = losses(folder / "disturbed.jsonl")
    assert len(found) >= max(found) - len(losses_in_turn)  # a rank 0 that is killed may leave half a line
    run_to_the_end(folder, count, workers, strategy, max(found), "undisturbed")
    expected = losses(folder / "undisturbed.jsonl")
    for step, loss in found.items():
        assert loss == expected[step], (step, loss, expected[step])  # bit for bit: the layout is the same
    print(*re.findall(r"resuming from[^\n]*|starting anew[^\n]*", text), sep="\n", flush=True)


def fewer_machines_start_again(folder):
    """An elastic job that goes on with fewer machines starts all workers again: they have other peers."""
    machines = Rejoining(folder, 2, 1, "FULL_SHARD", 1000000, "fewer", flags=["--min_machines", 1])
    try:
        machines.train()
        lost = machines.running[1]
        lost.send_signal(signal.SIGKILL)
        lost.wait()
        machines.wait_for("round 1: 1 machine, 1 worker", 1)
        machines.train()
        assert len(machines.pids(0)) == 2, machines.output()
        machines.running[0].send_signal(signal.SIGUSR1)
        assert machines.running[0].wait(DEADLINE) == 0, machines.output()
    finally:
        machines.stop()


def a_stop_signal_ends_workers_that_wait_for_a_rank(folder, without_daemon=False):
    """No time limit ends them. Without a daemon no server learns of the signal."""
    machines = Rejoining(folder, 2, 1, "FULL_SHARD", 1000000, "stopped", flags=["--shutdown_timeout", 3600])
    try:
        machines.train()
        machines.running[1].send_signal(signal.SIGKILL)
        machines.running[1].wait()
        machines.wait_for(r"is lost: [^~]*waiting for machines: 1 of 2", 1)
        if without_daemon:
            machines.daemon.stop()
            machines.wait_for("waiting for the rendezvous", 1)
        machines.running[0].send_signal(signal.SIGTERM)
        assert machines.running[0].wait(DEADLINE) != 0, machines.output()
    finally:
        machines.stop()


class ImpatientRejoining(Rejoining):
    join_timeout = 20  # also of the first round


def a_machine_that_does_not_come_ends_the_job(folder):
    machines = ImpatientRejoining(folder, 2, 1, "FULL_SHARD", 1000000, "short", flags=["--shutdown_timeout", 3600])
    try:
        machines.train()
        machines.running[1].send_signal(signal.SIGKILL)
        machines.running[1].wait()
        assert machines.running[0].wait(DEADLINE) == 124, machines.output()
        assert "timeout: only 1 of 2 machines joined within 20 s" in machines.output(), machines.output()
    finally:
        machines.stop()


def a_stop_signal_ends_workers_while_the_daemon_is_gone(folder):
    a_stop_signal_ends_workers_that_wait_for_a_rank(folder, without_daemon=True)


def a_program_that_does_not_rejoin_is_started_again(folder):
    """The machine whose worker is killed says so, and all workers end with the next attempt."""
    program = ["/bin/sh", "-c", "[ $TORCHELASTIC_RESTART_COUNT = 0 ] || exit 0; exec sleep 1000"]
    machines = Rejoining(folder, 2, 1, "FULL_SHARD", 0, "unaware", program, ["--shutdown_timeout", 1])
    try:
        machines.wait_for(r"\] pid \d+", 2)
        machines.lose_worker(1)
        for each in machines.running:
            assert each.wait(DEADLINE) == 0, machines.output()
        assert "workers did not rejoin within 1 s; starting all again" in machines.output(), machines.output()
    finally:
        machines.stop()


def use_python(package, trained="torch"):
    """Trains with a program in Python, train_engine.py with what its variable TRAINED names. Exits with 77 without
    torch."""
    if importlib.util.find_spec("torch") is None:
        print("skipped: no torch")
        sys.exit(77)
    os.environ["TRAINED"] = trained
    os.environ["PYTHONPATH"] = package
    os.environ["OMP_NUM_THREADS"] = "1"  # no threads of numpy in a process that forks
    os.environ["PATH"] = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    Rejoining.prints_pid = []
    with_engine = "engine" in pathlib.Path(TRAIN_GPT).name  # its optimizer and torch's modules import torch._dynamo
    modules = ["torch._dynamo", "torch.distributed.fsdp"] if with_engine else ["torch"]
    FLAGS[:] = ["--preload", ",".join([*modules, *[trained.split()[0]] * (trained != "torch")]),
                "--shutdown_timeout", 300, *["--engine", "acc"] * with_engine]


def trained_by_engine():
    """What train_engine.py trains with the packages that there are."""
    return [each for each in ("torch", "deepspeed", "accelerate 1", "accelerate 2")
            if importlib.util.find_spec(each.split()[0]) is not None]


def main():
    if TRAIN_GPT.endswith(".py"):
        for trained in sys.argv[5:] or trained_by_engine():
            use_python(sys.argv[4], trained)
            with tempfile.TemporaryDirectory() as temporary:
                survivors_keep_their_processes(pathlib.Path(temporary), 2, 2 if trained == "torch" else 1, "FULL_SHARD",
                                               [("worker", 1), ("machine", 1), ("spare", 0)], ["--spares", 1])
            print("ok --rejoin,", trained, flush=True)
        return
    for case in (
        (2, 2, "FULL_SHARD", [("worker", 1), ("machine", 1), ("worker", 0)]),
        (3, 1, "FULL_SHARD", [("machine", 0), ("worker", 2), ("machine", 2)]),
        (2, 2, "HYBRID_SHARD", [("machine", 0)]),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            survivors_keep_their_processes(pathlib.Path(temporary), *case)
        print("ok --rejoin", *case, flush=True)

    for check in (a_program_that_does_not_rejoin_is_started_again, fewer_machines_start_again,
                  a_machine_that_does_not_come_ends_the_job, a_stop_signal_ends_workers_that_wait_for_a_rank,
                  a_stop_signal_ends_workers_while_the_daemon_is_gone):
        with tempfile.TemporaryDirectory() as temporary:
            check(pathlib.Path(temporary))
        print("ok --rejoin,", check.__name__.replace("_", " "), flush=True)

    for case in (
        (2, 2, "FULL_SHARD", [1], r"in memory \(nothing on disk.*2 snapshots from other machines"),
        (3, 1, "FULL_SHARD", [1], r"in memory \(nothing on disk.*1 snapshots from other machines"),
        (2, 2, "HYBRID_SHARD", [0], r"in memory \(nothing on disk.*snapshots from other machines"),
        (3, 1, "FULL_SHARD", [0, 1], "starting anew: nothing on disk, step .* in memory lacks rank"),
    ):
        with tempfile.TemporaryDirectory() as temporary:
            a_lost_machine_is_replaced(pathlib.Path(temporary), *case)
        print("ok", *case[:4], flush=True)


if __name__ == "__main__":
    main()
