# SPDX-License-Identifier: Apache-2.0
"""Traces, metrics, logs and reports on a disk that becomes full or fails: the training goes on, its exit status is that of
the program, and the reason is printed once per file. file_faults.c makes the calls fail from a chosen one on.

    full_disks_test.py ACCLAUNCH FILE_FAULTS TRAIN_GPT"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, FAULTS, TRAIN_GPT = sys.argv[1:4]
REASONS = {"ENOSPC": "No space left on device", "EIO": "Input/output error"}


def run(words, stdout=subprocess.PIPE, **variables):
    return subprocess.run([ACCLAUNCH, *map(str, words)], stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=240,
                          env={**os.environ, **variables})


def fault(what, at, under, folder):
    return {"LD_PRELOAD": FAULTS, "ACC_FAULT": what, "ACC_FAULT_AT": str(at), "ACC_FAULT_UNDER": str(under),
            "ACC_FAULT_HIT": str(folder / "hit")}


TRAIN = ["--cpu", "--use_fsdp", "--num_processes", 2, TRAIN_GPT, "--data", __file__, "--layers", 1, "--dim", 16, "--heads", 2,
         "--seq_len", 16, "--steps", 4]


def check_trace(what, at, folder):
    """Whatever was written before the fault stays readable."""
    traces = folder / "traces"
    traces.mkdir()
    done = run(["--trace", traces, *TRAIN], **fault(what, at, traces, folder))
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if "machine-0.json" in line]
    assert lines and all(REASONS[what] in line for line in lines), done.stderr
    assert len(lines) <= 4, done.stderr  # two ranks, and the launcher at its start and end
    file = traces / "machine-0.json"
    text = file.read_text() if file.exists() else ""
    # With this ENOSPC no later write succeeds, not even one that needs no space.
    assert what == "ENOSPC" or text == "" or isinstance(json.loads(text), list), text


def check_metrics(what, at, folder):
    metrics = folder / "disk" / "metrics.jsonl"
    metrics.parent.mkdir()
    done = run([*TRAIN, "--metrics", metrics], **fault(what, at, metrics.parent, folder))
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("cannot write the metrics file") == 1 and REASONS[what] in done.stderr, done.stderr
    for number, line in enumerate(metrics.read_text().splitlines(), 1):
        assert json.loads(line)["step"] == number


# The launcher reads at most 64 KiB, the capacity of a pipe, at a time: a MiB takes 16 writes at least, however late it reads.
PROGRAM = """
import os, sys
for i in range(1024):
    print("line", i, "." * 1024, flush=True)
    print("line", i, "." * 1024, file=sys.stderr, flush=True)
sys.exit(int(os.environ["TORCHELASTIC_RESTART_COUNT"] == "0") * 7)
"""


def check_logs(what, at, streams, folder):
    """Two attempts, of which the first fails."""
    logs = folder / "logs"
    logs.mkdir()
    program = folder / "program.py"
    program.write_text(PROGRAM)
    done = run(["--cpu", "--num_processes", 2, "--max_restarts", 1, "--monitor_interval", "0.1", "--log_dir", logs, *streams,
                program], **fault(what, at, logs, folder))
    assert done.returncode == 0, f"{done.returncode} {done.stderr[-3000:]}"
    lines = [line for line in done.stderr.splitlines() if REASONS[what] in line]
    assert lines, done.stderr[-3000:]
    files = re.findall(r"(/\S+): " + REASONS[what], "\n".join(lines))
    assert len(files) == len(set(files)), lines


with tempfile.TemporaryDirectory() as name:
    number = 0

    def case(check, *arguments):
        global number
        number += 1
        folder = Path(name) / str(number)
        folder.mkdir()
        check(*arguments, folder)
        print(check.__name__, *arguments, flush=True)

    for what in REASONS:
        for at in (1, 3, 6):
            case(check_trace, what, at)
        for at in (1, 3):
            case(check_metrics, what, at)
    for streams in (["--redirects", "3"], ["--tee", "3"]):
        for what, at in (("ENOSPC", 20), ("EIO", 1), ("EIO", 40)):
            case(check_logs, what, at, streams)

    # The launcher's own streams: the exit status is the program's.
    program = Path(name) / "own.py"
    for status in (0, 5):
        program.write_text(f"for i in range(100): print('line ' * 2000, flush=True)\nraise SystemExit({status})")
        with open("/dev/full", "w") as full:
            done = run(["--cpu", "--num_processes", 2, program], stdout=full)
        assert (done.returncode == 0) == (status == 0), done
        assert done.stderr.count("cannot write to stdout: No space left on device") == 1, done.stderr
