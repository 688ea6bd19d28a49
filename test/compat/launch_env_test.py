#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs acclaunch with the recorded cases of test/data/launch_env.

    launch_env_test.py ACCLAUNCH accelerate|acclaunch

With `--compat accelerate` every case passes. By default exactly the cases fail that
test/data/launch_env_deviations.txt lists, each with the number of its deviation in docs/compat.md.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
sys.path[:0] = [str(DATA.parent / "support"), str(DATA / "launch_env")]
import cases
from own_network import own_network

CASES = cases.read()
DEVIATIONS = DATA / "launch_env_deviations.txt"
DOCUMENT = DATA.parents[1] / "docs" / "compat.md"
# Simulated GPUs, except in the cases about GPUs. With the default compatibility policy workers on the
# CPU get ACCELERATE_USE_CPU (deviation 16), but the cases were recorded on the CPU from a launcher
# that does not set it.
GPUS = {"accelerate": 0, "acclaunch": 8}


def is_about_gpus(case):
    return ("no_gpu" in case.get("requires", []) or "simulated_gpus" in case
            or "nvidia-smi" in case.get("path_programs", {}))


def failures(acclaunch, compat, names, timeout):
    """Returns the cases in `names` that fail."""
    about_gpus = {name for name in names if is_about_gpus(CASES[name])}
    return (check(acclaunch, compat, about_gpus, 0, timeout)
            | check(acclaunch, compat, names - about_gpus, GPUS[compat], timeout))


def check(acclaunch, compat, names, gpus, timeout):
    """Returns the cases in `names` that fail on a machine with this number of GPUs. check.py runs cases
    with the same port of Accelerate one after another; cases in which acclaunch uses another port must
    therefore not run at the same time."""
    if not names:
        return set()
    machine = f'export ACC_SIMULATE_GPUS=${{ACC_SIMULATE_GPUS:-{gpus}}}; exec "$0" "$@"'
    launcher = f"sh -c '{machine}' {acclaunch}"
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / f"{name}.json").write_text(json.dumps(CASES[name]))
        listed = Path(folder) / "failures"
        run = subprocess.run(
            own_network() + [sys.executable, str(DATA / "launch_env" / "check.py"), "--launcher", launcher,
                             "--torchrun", f"{acclaunch} torchrun",
                             "--extra-args", f"--compat {compat}",
                             "--gpus-env", "ACC_SIMULATE_GPUS", "--defaulted", "--jobs", "4",
                             "--timeout", str(timeout), "--list-failures", str(listed), folder],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        print(run.stdout)
        if not listed.exists():
            sys.exit("check.py did not run")
        return set(listed.read_text().split())


def check_exit_status(acclaunch, compat):
    """Checks the launcher's exit status for a failing program. Returns the errors found."""
    expected = 1 if compat == "accelerate" else 7
    complaints = []
    for flags in (["--num_processes", "1"], ["--use_fsdp", "--num_processes", "2"]):
        command = [acclaunch, "--compat", compat, *flags, "--no_python", "sh", "-c", "exit 7"]
        status = subprocess.run(own_network() + command, capture_output=True,
                                env={**os.environ, "ACC_SIMULATE_GPUS": "0"}).returncode
        if status != expected:
            complaints.append(f"{' '.join(flags)}: exit status {status}, expected {expected}")
    return complaints


def read_deviations():
    """Returns the number of the deviation for each case."""
    lines = [line.split() for line in DEVIATIONS.read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}


def main():
    acclaunch, compat = os.path.abspath(sys.argv[1]), sys.argv[2]
    cores = sorted(os.sched_getaffinity(0))[:2]  # so that OMP_NUM_THREADS does not depend on the machine
    os.sched_setaffinity(0, cores)
    # The programs run under this Python, not under a script in PATH that changes the environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    expected = read_deviations() if compat == "acclaunch" else {}
    names = set(CASES)
    same = names - set(expected)
    wrong = [f"{name} fails" for name in sorted(failures(acclaunch, compat, same, 300))]
    other = failures(acclaunch, compat, set(expected), 10) if expected else set()
    wrong += [f"{name} passes, although deviation {expected[name]} is listed for it"
              for name in sorted(set(expected) - other)]
    wrong += check_exit_status(acclaunch, compat)
    headings = DOCUMENT.read_text()
    wrong += [f"docs/compat.md lacks deviation {number}" for number in sorted(set(expected.values()))
              if f"\n## {number}. " not in headings]
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
