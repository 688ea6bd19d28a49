# SPDX-License-Identifier: Apache-2.0
"""Processes of the other scripts that use the Python package of a build."""
import json
import os
import pathlib
import subprocess
import sys


def found_by(command, acclaunch, **variables):
    """Returns the object of the last line of JSON that the command's processes print, each with one thread and with the
    package that was built with this `acclaunch`. If the command fails, this process ends and shows its output."""
    built = {"PYTHONPATH": str(pathlib.Path(acclaunch).absolute().parents[1] / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | built | variables)
    lines = [line[line.index("{"):] for line in done.stdout.splitlines() if '{"' in line]
    if done.returncode or not lines:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return json.loads(lines[-1])
