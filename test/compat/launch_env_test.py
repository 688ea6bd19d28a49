#!/usr/bin/env python3
"""Runs acclaunch through the golden cases of test/data/launch_env.

    launch_env_test.py ACCLAUNCH accelerate|acclaunch

With `--compat accelerate` every case passes. By default exactly those fail that
test/data/launch_env_deviations.txt lists, each with the number of its deviation in docs/compat.md.
"""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

DATA = Path(__file__).resolve().parents[1] / "data"
DEVIATIONS = DATA / "launch_env_deviations.txt"
DOCUMENT = DATA.parents[1] / "docs" / "compat.md"
# No GPU but those that a case asks for.
WITHOUT_GPUS = 'export ACC_SIMULATE_GPUS=${ACC_SIMULATE_GPUS:-0}; exec "$0" "$@"'


def own_network():
    """The words that run a command where nobody else has ports; none where that is not allowed."""
    for flags in (["-n"], ["-rn"]):
        words = ["unshare", *flags, "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
        try:
            if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
                return words
        except FileNotFoundError:
            break
    return []


def failures(acclaunch, compat):
    """Names of the failing cases, and what check.py says."""
    launcher = f"sh -c '{WITHOUT_GPUS}' {acclaunch}"
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder) / "failures"
        command = [sys.executable, str(DATA / "launch_env" / "check.py"), "--launcher", launcher,
                   "--extra-args", f"--compat {compat}", "--gpus-env", "ACC_SIMULATE_GPUS",
                   "--defaulted", "--jobs", "4", "--list-failures", str(names),
                   str(DATA / "launch_env")]
        if compat == "accelerate":
            command[2:2] = ["--torchrun", f"{acclaunch} torchrun"]
        run = subprocess.run(own_network() + command, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
        if not names.exists():
            sys.exit(f"check.py did not run:\n{run.stdout}")
        return set(names.read_text().split()), run.stdout


def read_deviations():
    """Case to number."""
    lines = [line.split() for line in DEVIATIONS.read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}


def main():
    acclaunch, compat = os.path.abspath(sys.argv[1]), sys.argv[2]
    cores = sorted(os.sched_getaffinity(0))[:2]  # OMP_NUM_THREADS must not depend on the machine
    os.sched_setaffinity(0, cores)
    expected = read_deviations() if compat == "acclaunch" else {}
    found, text = failures(acclaunch, compat)
    print(text)
    for name in sorted(found - set(expected)):
        print(f"{name} fails")
    for name in sorted(set(expected) - found):
        print(f"{name} passes, although deviation {expected[name]} is listed for it")
    headings = DOCUMENT.read_text()
    unknown = sorted(n for n in set(expected.values()) if f"\n## {n}. " not in headings)
    if unknown:
        print(f"docs/compat.md lacks deviation {', '.join(unknown)}")
    sys.exit(0 if found == set(expected) and not unknown else 1)


if __name__ == "__main__":
    main()
