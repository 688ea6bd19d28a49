# SPDX-License-Identifier: Apache-2.0
"""Records the sides of rows of table.py, and compares them."""

import dataclasses
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).absolute().parent
PRELOAD = "torch._dynamo,torch.distributed.fsdp,torch.distributed.tensor"


@dataclasses.dataclass
class Verdict:
    is_equal: bool = False
    first: str = ""
    causes: tuple = ()  # their ids, the likeliest first
    problem: str = ""  # why nothing was compared

    def is_right(self, row):
        if not row.phases:
            return self.is_equal
        return not self.problem and not self.is_equal and self.names_phase(row) and self.names_cause(row)

    def names_phase(self, row):
        return any(f": {phase}" in self.first for phase in row.phases)

    def names_cause(self, row):
        return bool(self.causes) and self.causes[0] in row.cause.split("|")


def launcher(acclaunch, package):
    """The command of the launcher and its environment."""
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    return str(acclaunch), os.environ | {"PYTHONPATH": str(package), "PYTHON_EXEC": sys.executable, "PATH": path}


def record(acclaunch, package, folder, sides):
    """Records the sides that the folder does not have: those of the same ranks and engine in the same processes.
    Returns what the failed ones printed."""
    launches, failures = {}, ""
    for side in sides:
        if not os.path.isdir(os.path.join(folder, side.name())):
            launches.setdefault((side.ranks, side.engine), {})[side.name()] = side
    for (ranks, engine), left in launches.items():
        while left:
            run = _record(acclaunch, package, folder, ranks, engine, left)
            begun = re.findall(r"records (\w+)", run.stdout)
            if run.returncode == 0 or not begun:
                failures += run.stdout * (run.returncode != 0)
                break
            shutil.rmtree(os.path.join(folder, begun[-1]), ignore_errors=True)
            failures += f"failed: {left[begun[-1]]}\n{run.stdout[-3000:]}\n"
            left = {name: side for name, side in left.items() if name not in begun}
    return failures


def _record(acclaunch, package, folder, ranks, engine, sides):
    command, environment = launcher(acclaunch, package)
    given = [{"name": name, "train": side.train, "mistake": side.mistake, "random": side.random}
             for name, side in sides.items()]
    return subprocess.run(
        [command, "--engine", engine, "--cpu", "--num_processes", str(ranks), "--preload", PRELOAD,
         str(HERE / "record.py"), str(folder), json.dumps(given)], env=environment | {"ACC_RECORD": str(folder)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def verdict_of(run):
    """The verdict that a command with --json has printed."""
    if run.returncode not in (0, 1):
        return Verdict(problem=(run.stderr.strip().splitlines() or [f"exit status {run.returncode}"])[-1])
    text = json.loads(run.stdout)["comparisons"][0]
    first = text["first"] or {}
    place = f"step {first['step']}: {first['phase']}, {first['name']}" if first else ""
    return Verdict(run.returncode == 0, place, tuple(each["id"] for each in text["causes"]))


def compare_recordings(acclaunch, package, folder, row):
    command, environment = launcher(acclaunch, package)
    sides = [os.path.join(folder, side.name()) for side in (row.a, row.b)]
    return verdict_of(subprocess.run([command, "compare", "--json", *sides], env=environment, capture_output=True,
                                     text=True))


def compare_programs(acclaunch, package, row):
    """Runs both sides as users do."""
    command, environment = launcher(acclaunch, package)
    return verdict_of(subprocess.run(
        [command, "compare", "--json", "--random", row.a.random, "--a", row.a.words(), "--b", row.b.words(), "--cpu",
         "--preload", PRELOAD, str(HERE / "train.py")], env=environment, capture_output=True, text=True))


def chosen(rows, names):
    """The rows whose names match one of the regular expressions; all without any."""
    return [row for row in rows if not names or any(re.fullmatch(name, row.name) for name in names)]
