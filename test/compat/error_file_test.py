# SPDX-License-Identifier: Apache-2.0
"""The error file that a worker writes with PyTorch's `record` appears in the report, and in the
launcher's own error file in the same form as with torchrun.

    error_file_test.py ACCLAUNCH
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

try:
    import torch.distributed.run  # noqa: F401
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

PROGRAM = """
import os, sys, time
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    if os.environ["RANK"] == "1":
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # so that only the error file contains the error
        {fails}
    time.sleep(1000)

main()
"""
ENDS = {  # how rank 1 ends, and the exit code that torchrun writes
    'raise ValueError("bad batch: (3, 4)\\nsecond line \\u00e9")': 1,
    "sys.exit(3)": None,  # no error file: torchrun writes none
}


def launched(command, folder, fails):
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM.format(fails=fails))
    environment = {**os.environ, "PYTHON_EXEC": sys.executable,
                   "TORCHELASTIC_ERROR_FILE": str(folder / "own.json")}
    ran = subprocess.run([*command, "--nproc-per-node=2", "program.py"], cwd=folder,
                         env=environment, capture_output=True, text=True)
    own = folder / "own.json"
    return ran, json.loads(own.read_text()) if own.exists() else None


def without_times(document):
    del document["message"]["extraInfo"]["timestamp"]
    return document


def main():
    ours = [os.path.abspath(sys.argv[1]), "torchrun"]
    real = [sys.executable, "-m", "torch.distributed.run"]
    with tempfile.TemporaryDirectory() as name:
        for number, (fails, code) in enumerate(ENDS.items()):
            _, expected = launched(real, Path(name, f"real{number}"), fails)
            ran, found = launched(ours, Path(name, f"ours{number}"), fails)
            print(ran.stderr)
            if code is None:
                assert expected is None
                assert found["message"]["message"] == "exited with code 3", found
                assert found["message"]["errorCode"] == 3, found
                continue
            text = json.dumps(without_times(expected)).replace(f"real{number}", f"ours{number}")
            assert without_times(found) == json.loads(text), (found, text)
            assert found["message"]["errorCode"] == code == ran.returncode, found
            assert "  error     ValueError: bad batch: (3, 4)\n            second line \u00e9\n" in ran.stderr
            assert "  traceback, from its error file:\n    | Traceback (most recent" in ran.stderr


main()
