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
    from torch.distributed import run as torchrun
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


def launch_real(words, folder, environment):
    """Runs torchrun in a fork of this process, which has imported it."""
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(folder)
            os.environ.update(environment)
            torchrun.main(words)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


def launch_ours(words, folder, environment):
    command = [os.path.abspath(sys.argv[1]), "torchrun", "--preload",
               "torch.distributed.elastic.multiprocessing.errors"]
    return subprocess.run([*command, *words], cwd=folder, env=os.environ | environment, capture_output=True, text=True)


def launched(launch, folder, fails):
    """Returns what `launch` returns, and the launcher's own error file."""
    folder.mkdir()
    (folder / "program.py").write_text(PROGRAM.format(fails=fails))
    own = folder / "own.json"
    ran = launch(["--nproc-per-node=2", "program.py"], folder,
                 {"PYTHON_EXEC": sys.executable, "TORCHELASTIC_ERROR_FILE": str(own)})
    return ran, json.loads(own.read_text()) if own.exists() else None


def without_times(document):
    del document["message"]["extraInfo"]["timestamp"]
    return document


def main():
    with tempfile.TemporaryDirectory() as name:
        for number, (fails, code) in enumerate(ENDS.items()):
            _, expected = launched(launch_real, Path(name, f"real{number}"), fails)
            ran, found = launched(launch_ours, Path(name, f"ours{number}"), fails)
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
