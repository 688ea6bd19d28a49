#!/usr/bin/env python3
"""Runs acclaunch through the golden cases of test/data/launch_env.

    launch_env_test.py ACCLAUNCH accelerate|acclaunch

With `--compat accelerate` every case passes. By default exactly those fail that
test/data/launch_env_deviations.txt lists, each with the number of its deviation in docs/compat.md.
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from own_network import own_network

DATA = Path(__file__).resolve().parents[1] / "data"
CASES = DATA / "launch_env"
DEVIATIONS = DATA / "launch_env_deviations.txt"
DOCUMENT = DATA.parents[1] / "docs" / "compat.md"
# GPUs that the machine has, but in the cases that are about GPUs. With our own conduct workers on the
# CPU are told so (deviation 16), but the cases were recorded on the CPU from a launcher that tells
# them nothing.
GPUS = {"accelerate": 0, "acclaunch": 8}


def is_about_gpus(name):
    case = json.loads((CASES / f"{name}.json").read_text())
    return ("no_gpu" in case.get("requires", []) or "simulated_gpus" in case
            or "nvidia-smi" in case.get("path_programs", {}))


def failures(acclaunch, compat, names, timeout):
    """Those of the named cases that fail."""
    about_gpus = {name for name in names if is_about_gpus(name)}
    return (check(acclaunch, compat, about_gpus, 0, timeout)
            | check(acclaunch, compat, names - about_gpus, GPUS[compat], timeout))


def check(acclaunch, compat, names, gpus, timeout):
    """Those of the named cases that fail on a machine with so many GPUs. check.py keeps cases with
    one port apart, as Accelerate uses ports; so cases that end in other ports than there must not
    run beside them."""
    if not names:
        return set()
    machine = f'export ACC_SIMULATE_GPUS=${{ACC_SIMULATE_GPUS:-{gpus}}}; exec "$0" "$@"'
    launcher = f"sh -c '{machine}' {acclaunch}"
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            (Path(folder) / f"{name}.json").symlink_to(CASES / f"{name}.json")
        listed = Path(folder) / "failures"
        run = subprocess.run(
            own_network() + [sys.executable, str(CASES / "check.py"), "--launcher", launcher,
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
    """What a failing program makes of the launcher's exit status; complaints, one a line."""
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
    """Case to number."""
    lines = [line.split() for line in DEVIATIONS.read_text().splitlines()]
    return {words[0]: words[1] for words in lines if words and not words[0].startswith("#")}


def main():
    acclaunch, compat = os.path.abspath(sys.argv[1]), sys.argv[2]
    cores = sorted(os.sched_getaffinity(0))[:2]  # OMP_NUM_THREADS must not depend on the machine
    os.sched_setaffinity(0, cores)
    # The programs run under this Python, not under a script in PATH that changes the environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    expected = read_deviations() if compat == "acclaunch" else {}
    names = {path.stem for path in CASES.glob("*.json")}
    same = names - set(expected)
    wrong = [f"{name} fails" for name in sorted(failures(acclaunch, compat, same, 60))]
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
