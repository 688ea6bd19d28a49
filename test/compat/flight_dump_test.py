# SPDX-License-Identifier: Apache-2.0
"""acclaunch dump, status and the failure report of Python programs that use gloo without our runtime: the records come from
torch's own flight recorder, and torch's own torchfrtrace reads the dump.

    flight_dump_test.py ACCLAUNCH SOURCE_FOLDER"""
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ACCLAUNCH, SOURCE = sys.argv[1], Path(sys.argv[2]).absolute()
DEADLINE = 900
PROGRAM = """
import os, time, torch, torch.distributed as dist
import acclaunch.c10d
dist.init_process_group("gloo")
pair = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.ones(4))
dist.all_gather([torch.zeros(8) for _ in range(3)], torch.ones(8))
print("here", flush=True)
if dist.get_rank() == 1:
    time.sleep(1000)
def train():
    dist.all_reduce(torch.ones(1000))
train()
"""


def run(*words, **variables):
    done = subprocess.run([ACCLAUNCH, *words], capture_output=True, text=True, timeout=DEADLINE, env={**os.environ, **variables})
    return done.returncode, done.stdout, done.stderr


def start(folder, *flags, **options):
    program = folder / "train.py"
    program.write_text(PROGRAM)
    # py-spy is where the Python of the test is.
    environment = {**os.environ, "PYTHON_EXEC": sys.executable, "PYTHONPATH": str(SOURCE / "python"),
                   "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    return subprocess.Popen([ACCLAUNCH, "torchrun", "--nproc-per-node", "3", "--preload", "torch", "--log-dir",
                             str(folder / "logs"), *flags, str(program)],
                            stdout=subprocess.PIPE, text=True, env=environment, **options)


def late_of(job):
    """Waits until two ranks wait for rank 1, and returns what status says of it."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        status, out, err = run("status", str(job.pid), "--json")
        assert status == 0, err
        (found,) = json.loads(out)
        if found["late"] and found["late"][0]["waiting_ranks"] == [0, 2]:
            return found["late"][0]
    raise AssertionError(out)


def check_analyses(*folders):
    """torchfrtrace, which is imported once, finds the missing rank in each folder."""
    script = ("import sys; from torch.distributed.flight_recorder.fr_trace import main\n"
              "for folder in sys.argv[1:]:\n"
              "    main([folder, '--prefix', 'rank_'])\n"
              "    print('end of a folder', file=sys.stderr)")
    done = subprocess.run([sys.executable, "-u", "-c", script, *map(str, folders)], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    assert done.returncode == 0, done.stdout
    *found, _ = done.stdout.split("end of a folder")
    assert len(found) == len(folders), done.stdout
    for text in found:
        assert "Not all ranks joining collective" in text and "missing ranks: {1}" in text and "train at" in text, text


def check_running(folder):
    job = start(folder)
    for _ in range(3):
        assert "here" in job.stdout.readline()
    late = late_of(job)
    assert late["ranks"] == [1] and late["kind"] == "all_reduce" and late["bytes"] == 4000 and late["group"] == "world", late
    _, out, _ = run("status", str(job.pid))
    assert re.search(r"^ +0 .* all_reduce 5, for \d", out, re.M), out

    # Without py-spy and debuggers, the workers say themselves where their threads are.
    status, out, err = run("stacks", str(job.pid), "--rank", "0", PATH=str(folder))
    assert status == 0 and out.startswith(f"== job {job.pid}, rank 0, "), out + err
    assert re.search(r"^Python thread MainThread:\n(    .*\n)*    train \(.*train\.py:13\)\n    <module> \(.*train\.py:14\)\n", out, re.M), out

    status, out, err = run("dump", str(job.pid), "-o", str(folder / "dump"))
    assert status == 0 and "3 of 3 ranks" in out, out + err
    status, _, err = run("dump", str(job.pid), "-o", str(folder / "dump"))
    assert status == 2 and "rank_0" in err, err  # the files exist

    # The same by a signal to the launcher.
    os.kill(job.pid, signal.SIGUSR2)
    deadline = time.monotonic() + DEADLINE
    while len(list(folder.glob("logs/**/collectives_*/rank_*"))) < 3:
        assert job.poll() is None and time.monotonic() < deadline, list(folder.glob("logs/**"))
        time.sleep(0.1)
    (by_signal,) = folder.glob("logs/**/collectives_*")
    check_analyses(folder / "dump", by_signal)
    job.send_signal(signal.SIGTERM)
    job.send_signal(signal.SIGTERM)
    job.wait(DEADLINE)


def check_time_limit(folder, job):
    _, err = job.communicate(timeout=DEADLINE)
    assert job.returncode == 124, err
    assert "late      rank 1 did not enter all_reduce 5, in which ranks 0,2 waited" in err, err
    (report,) = [json.loads(path.read_text()) for path in folder.glob("logs/**/report.json")]
    assert report["late"][0]["ranks"] == [1], report["late"]
    stacks = "\n".join(report["stacks"])
    assert "train (" in stacks, stacks
    assert "stacks of the workers on this machine" in err, err


if importlib.util.find_spec("torch") is None:
    print("skipped: torch is not installed")
    sys.exit(77)
with (tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second,
      start(Path(second), "--timeout", "40", "--shutdown-timeout", "1", stderr=subprocess.PIPE) as limited):
    check_running(Path(first))
    check_time_limit(Path(second), limited)
