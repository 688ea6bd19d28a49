# SPDX-License-Identifier: Apache-2.0
"""lost_histories_test.py ACCLAUNCH PROGRAM DAEMON [PACKAGE] [FIRST [COUNT]]: random histories of jobs that lose
machines. PROGRAM: train_gpt, or train_engine.py with the Python package.

Each history is drawn from its number: a job with --rejoin or --elastic_replicas, whose workers and launchers die,
and which machines join, at moments that are drawn too. Those of train_engine.py die in named moments too, such as the
transfer of a snapshot, or the meeting of the ranks after another loss. It must go on with all machines that are there,
end when it is told to, have the losses of a run with as many machines in each step, bit for bit, use each sample once
in the steps that are kept, and leave nothing behind. The test runs two of them, of train_gpt; run hundreds by hand."""

import itertools
import os
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

from elastic_replicas_test import check_samples
from memory_machines_test import (DEADLINE, TRAIN_GPT, Rejoining, end_well, run_to_the_end, trained_by_engine,
                                  use_python)
from run_metrics import kept_steps, losses, steps_of, stretches

SERIES = 1000000  # steps from one checkpoint on disk to the next: there is none but the last
WITH_ENGINE = TRAIN_GPT.endswith(".py")
# Moments of train_engine.py, and what is lost before them.
MOMENTS = {"snapshot": None, "transfer": None, "write": None, "begin": "worker", "meet": "worker", "read": "machine"}


class History:
    spares, trained, moments = 0, None, ()

    def __init__(self, number):
        draw = self.draw = random.Random(number)
        self.is_elastic = draw.random() < 0.5
        self.count, self.workers = draw.choice([2, 3]), draw.choice([1, 2])
        self.strategy = draw.choice(["NO_SHARD" if self.is_elastic else "FULL_SHARD", "HYBRID_SHARD"])
        self.every = draw.choice([1, 3])
        if WITH_ENGINE:
            self.draw_program(draw)
        self.name = f"{'--elastic_replicas 1' if self.is_elastic else '--rejoin'} {self.strategy}, {self.count} " \
                    f"machines of {self.workers}, {self.spares} spares, a snapshot every {self.every}, {self.trained}"
        self.events = []

    def draw_program(self, draw):
        self.trained, self.spares = draw.choice(trained_by_engine()), draw.choice([0, 1])
        if self.trained != "torch":
            self.is_elastic = self.is_elastic and self.trained == "accelerate 1"
            self.strategy = "NO_SHARD" if self.is_elastic else "FULL_SHARD"
        if self.is_elastic:
            self.spares = 0
        self.moments = [each for each in MOMENTS if not (each == "transfer" and self.is_elastic
                                                         or each == "write" and self.trained == "torch")]

    def run(self, folder):
        flags = ["--memory_checkpoint_every", self.every, "--max_restarts", 1000, "--shutdown_timeout", DEADLINE,
                 "--data_record", folder / "record", *["--elastic_replicas", 1] * self.is_elastic,
                 *["--spares", 1] * self.spares, *["--save_async"] * ("write" in self.moments)]
        self.metrics, self.asked = folder / "disturbed.jsonl", folder / "moments"
        if WITH_ENGINE:
            use_python(sys.argv[4], self.trained)
            self.asked.mkdir()
            os.environ["MOMENTS"] = str(self.asked)
        self.machines = Rejoining(folder, self.count, self.workers, self.strategy, SERIES, "disturbed", flags=flags)
        os.environ.pop("MOMENTS", None)
        try:
            self.await_step_of_all()
            for _ in range(self.draw.randrange(3, 9)):
                self.events.append(self.happen())
                self.pause()
            self.await_step_of_all()
            for each in self.present():
                if self.living(self.machines.running.index(each)):  # not a spare, which ends with the job
                    each.send_signal(signal.SIGUSR1)  # saves and ends
            end_well(Ended(self.machines, self.present()))
        finally:
            self.machines.stop()

    def present(self):
        return [each for each in self.machines.running if each.returncode is None]

    def living(self, number):
        """The workers of a launcher."""
        return [pid for pid in self.machines.pids(number) if os.path.exists(f"/proc/{pid}")]

    def await_step_of_all(self):
        """Waits for a step of all machines, after those that are made; if the job needs more, they join. Workers end
        some time after the launcher that is killed, and then another rank may yet write the last step that they have
        made."""
        while not self.is_elastic and len(self.present()) < self.count:
            self.events.append(self.join())
        end = time.monotonic() + DEADLINE
        while left := [pid for number, each in enumerate(self.machines.running) if each.returncode is not None
                       for pid in self.living(number)]:
            assert time.monotonic() < end, f"{left} are left after {self.events}"
            time.sleep(0.05)
        begin = sum(1 for _ in steps_of(self.metrics))
        ranks = min(len(self.present()), self.count) * self.workers
        while sum(len(step["ranks"]) == ranks
                  for step in itertools.islice(steps_of(self.metrics), begin, None)) < 2:
            assert time.monotonic() < end, f"no step of {ranks} ranks after {self.events}\n{self.machines.output()}"
            gone = [each.pid for each in self.present() if each.poll() is not None]
            assert not gone, f"{len(gone)} launchers have ended after {self.events}\n{self.machines.output()}"
            time.sleep(0.05)
        self.settled = [each for each in self.present() if self.living(self.machines.running.index(each))]

    def happen(self):
        present = self.present()
        # One that has taken part stays: a job without machines is over.
        spared = [each for each in present if any(other in self.settled for other in present if other != each)]
        kinds = ["worker"] * 2 + ["machine"] * 2 * bool(spared) \
            + ["join"] * 3 * (len(present) < self.count + self.spares) \
            + ["moment"] * 4 * bool(self.moments and (spared or not self.is_elastic))
        kind = self.draw.choice(kinds)
        if kind == "join":
            return self.join()
        if kind == "moment":
            moment, kind = self.draw.choice(self.moments), self.draw.choice(["worker", "machine"])
            return self.lose_in(moment, "worker" if self.is_elastic and MOMENTS[moment] == "machine" else kind)
        return self.lose(kind, self.draw.choice(spared if kind == "machine" else present))

    def lose(self, kind, victim):
        number = self.machines.running.index(victim)
        if kind == "machine":
            self.machines.lose_for_good(number)
            return f"machine {number}"
        if living := self.living(number):
            try:
                os.kill(self.draw.choice(living), signal.SIGKILL)
            except ProcessLookupError:
                pass
        return f"worker of {number}"

    def lose_in(self, moment, kind):
        """The first rank that comes to the moment is lost, or its machine."""
        self.await_step_of_all()
        asked, present = self.asked / moment, self.settled
        (self.asked / "next").write_text(kind)
        (self.asked / "next").rename(asked)
        event = f"{kind} in {moment}"
        if MOMENTS[moment]:
            event = f"{self.lose(MOMENTS[moment], self.draw.choice(present))}, then {event}"
            if MOMENTS[moment] == "machine":
                self.join()
        self.machines.wait_until(lambda: not asked.exists(), f"{event} after {self.events}")
        if kind == "machine":
            self.machines.wait_until(lambda: any(each.poll() is not None for each in self.present()),
                                     f"end of the launcher, {event} after {self.events}")
        return event

    def join(self):
        self.machines.add()
        return "join"

    def pause(self):
        how = self.draw.choice(["none", "some", "trains"])
        if how == "some":
            time.sleep(self.draw.random())
        elif how == "trains":
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
    numbers = [int(each) for each in sys.argv[5 if WITH_ENGINE else 4:]]
    first, count = (*numbers, *(1, 2)[len(numbers):])
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
