# SPDX-License-Identifier: Apache-2.0
"""lost_histories_test.py ACCLAUNCH TRAIN_GPT DAEMON [FIRST [COUNT]]: random histories of jobs that lose machines.

Each history is drawn from its number: a job with --rejoin or --elastic_replicas, whose workers and launchers die,
and which machines join, at moments that are drawn too. It must go on with all machines that are there, end when it is
told to, have the losses of a run with as many machines in each step, bit for bit, use each sample once in the steps that
are kept, and leave nothing behind. The test runs two of them; run hundreds by hand."""

import itertools
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

from elastic_replicas_test import check_samples, end_well, run_to_the_end
from memory_machines_test import DEADLINE, Rejoining
from run_metrics import kept_steps, losses, steps_of, stretches

SERIES = 1000000  # steps from one checkpoint on disk to the next: there is none but the last


class History:
    def __init__(self, number):
        draw = self.draw = random.Random(number)
        self.is_elastic = draw.random() < 0.5
        self.count, self.workers = draw.choice([2, 3]), draw.choice([1, 2])
        self.strategy = draw.choice(["NO_SHARD" if self.is_elastic else "FULL_SHARD", "HYBRID_SHARD"])
        self.every = draw.choice([1, 3])
        self.name = f"{'--elastic_replicas 1' if self.is_elastic else '--rejoin'} {self.strategy}, {self.count} " \
                    f"machines of {self.workers}, a snapshot every {self.every}"
        self.events = []

    def run(self, folder):
        flags = ["--memory_checkpoint_every", self.every, "--max_restarts", 1000, "--shutdown_timeout", DEADLINE,
                 "--data_record", folder / "record"]
        self.metrics = folder / "disturbed.jsonl"
        self.machines = Rejoining(folder, self.count, self.workers, self.strategy, SERIES, "disturbed",
                                  flags=flags + (["--elastic_replicas", 1] if self.is_elastic else []))
        try:
            self.await_step_of_all()
            for _ in range(self.draw.randrange(3, 9)):
                self.events.append(self.happen())
                self.pause()
            while not self.is_elastic and len(self.present()) < self.count:
                self.events.append(self.join())
            self.await_step_of_all()
            for each in self.present():
                each.send_signal(signal.SIGUSR1)  # saves and ends
            end_well(Ended(self.machines, self.present()))
        finally:
            self.machines.stop()

    def present(self):
        return [each for each in self.machines.running if each.returncode is None]

    def await_step_of_all(self):
        """Waits for a step of all machines, after those that are made. Workers end some time after the launcher that is
        killed, and then another rank may yet write the last step that they have made."""
        end = time.monotonic() + DEADLINE
        while left := [pid for number, each in enumerate(self.machines.running) if each.returncode is not None
                       for pid in self.machines.pids(number) if os.path.exists(f"/proc/{pid}")]:
            assert time.monotonic() < end, f"{left} are left after {self.events}"
            time.sleep(0.05)
        begin = sum(1 for _ in steps_of(self.metrics))
        ranks = len(self.present()) * self.workers
        while sum(len(step["ranks"]) == ranks
                  for step in itertools.islice(steps_of(self.metrics), begin, None)) < 2:
            assert time.monotonic() < end, f"no step of {ranks} ranks after {self.events}\n{self.machines.output()}"
            gone = [each.pid for each in self.present() if each.poll() is not None]
            assert not gone, f"{len(gone)} launchers have ended after {self.events}\n{self.machines.output()}"
            time.sleep(0.05)
        self.settled = self.present()

    def happen(self):
        present = self.present()
        # One that has taken part stays: a job without machines is over.
        spared = [each for each in present if any(other in self.settled for other in present if other != each)]
        kinds = ["worker"] * 2 + ["machine"] * 2 * bool(spared) + ["join"] * 3 * (len(present) < self.count)
        kind = self.draw.choice(kinds)
        if kind == "join":
            return self.join()
        victim = self.draw.choice(spared if kind == "machine" else present)
        number = self.machines.running.index(victim)
        if kind == "machine":
            self.machines.lose_for_good(number)
            return f"machine {number}"
        living = [pid for pid in self.machines.pids(number) if os.path.exists(f"/proc/{pid}")]
        if living:
            try:
                os.kill(self.draw.choice(living), signal.SIGKILL)
            except ProcessLookupError:
                pass
        return f"worker of {number}"

    def join(self):
        self.machines.add()
        return "join"

    def pause(self):
        how = self.draw.choice(["none", "some", "trains"])
        if how == "some":
            time.sleep(self.draw.random())
        elif how == "trains":
            while not self.is_elastic and len(self.present()) < self.count:
                self.events.append(self.join())
            self.await_step_of_all()

    def check(self, folder):
        steps = kept_steps(self.metrics)
        found = {number: step["loss"] for number, step in steps.items()}
        if not self.is_elastic:
            found = losses(self.metrics)  # also of steps that were made again
        for number, last in stretches(steps, self.workers):
            run_to_the_end(folder, number, self.workers, self.strategy, last, "reference")
        check_samples(folder / "record")
        reference = losses(folder / "reference.jsonl")
        last = max(steps)  # later ones were made again, and not to their end
        apart = [step for step, loss in found.items() if step <= last and loss != reference[step]]
        assert not apart, f"losses differ in the steps {apart} after {self.events}\n{self.machines.output()}"
        end = time.monotonic() + DEADLINE
        while left := processes_of(folder):  # with them their memory, which has no name
            assert time.monotonic() < end, left
            time.sleep(0.05)
        return max(found)


def processes_of(folder):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_bytes()
        except OSError:
            continue  # it has ended
        if os.fsencode(folder) in words:
            found.append(words.replace(b"\0", b" "))
    return found


class Ended:
    """The machines that are there, for end_well."""

    def __init__(self, machines, running):
        self.running, self.output = running, machines.output


def main():
    first = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    count = int(sys.argv[5]) if len(sys.argv) > 5 else 2
    failed = []
    for number in range(first, first + count):
        history = History(number)
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as temporary:
            folder = pathlib.Path(temporary)
            try:
                history.run(folder)
                ran = time.monotonic() - began
                steps = history.check(folder)
                output = history.machines.output()
            except AssertionError as error:
                failed.append(number)
                print(f"history {number}, {history.name}, {history.events}: {error}", flush=True)
                continue
        counts = {what: len(re.findall(what, output)) for what in (
            "resuming from step", "starting anew", "starting all again")}
        print(f"history {number}: {history.name}: {', '.join(history.events)}: {steps} steps, {ran:.1f} s, {counts}",
              flush=True)
    if failed:
        sys.exit(f"histories that failed: {failed}")


if __name__ == "__main__":
    main()
