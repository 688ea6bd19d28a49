# SPDX-License-Identifier: Apache-2.0
"""The real torchrun and `acclaunch torchrun` give a program the same environment, command line and files.

    torchrun_compat.py ACCLAUNCH

Both get the same command lines. PyTorch is imported once; each torchrun is a fork of this process.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

try:
    from torch.distributed import run as torchrun
except ImportError:
    print("PyTorch is not installed")
    sys.exit(77)

# In an attempt that must fail, rank 0 fails after all ranks have written their notes; the others wait.
PROGRAM = r'''#!/usr/bin/env python3
import json, os, signal, sys, time
attempt, rank, size = (int(os.environ[n]) for n in ("TORCHELASTIC_RESTART_COUNT", "RANK", "WORLD_SIZE"))
note = lambda r: "seen_%d_%d.json" % (attempt, r)
print("out", rank)
print("err", rank, file=sys.stderr)
with open(note(rank) + ".part", "w") as f:
    json.dump({"env": dict(os.environ), "command": sys.orig_argv, "cwd": os.getcwd()}, f)
os.rename(note(rank) + ".part", note(rank))
if attempt < int(os.environ.get("FAIL_ATTEMPTS", "0")):
    while rank == 0 and not all(os.path.exists(note(r)) for r in range(size)):
        time.sleep(0.01)
    if rank == 0:
        sys.exit(3)
    signal.pause()
'''
# set by shells, or by the import of PyTorch in the launcher
NOT_COMPARED = {"PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE", "TORCHINDUCTOR_CACHE_DIR", "KMP_DUPLICATE_LIB_OK",
                "KMP_INIT_AT_FORK", "TRITON_CACHE_DIR", "PYTORCH_NVML_BASED_CUDA_CHECK"}
# random, or the host name: the test only compares whether they are set
RANDOM = {"TORCHELASTIC_RUN_ID": re.compile(r"[0-9a-f-]{36}$"), "MASTER_PORT": re.compile(r"\d+$")}
PORT = "PORT"  # placeholder for a free port in the command lines

TWO = ["--nproc-per-node=2"]
SAME = [  # flags, program and arguments, variables
    (TWO, ["prog.py", "--a", "-m", "x y"], {}),
    (["--nproc_per_node", "2", "--stand"], ["prog.py"], {"OMP_NUM_THREADS": "3"}),
    (TWO + ["--master-port", PORT, "--role", "r", "--rdzv-id", "job"], ["prog.py"], {}),
    (TWO + ["--rdzv-endpoint", "localhost:" + PORT, "--rdzv_id=job"], ["prog.py"], {}),
    (TWO + ["--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"], ["prog.py"], {}),
    ([], ["prog.py"], {"PET_NPROC_PER_NODE": "2", "PET_ROLE": "p", "PET_MAX_RESTARTS": "1", "PET_MODULE": "0",
                       "PET_REDIRECTS": "1:3", "PET_LOG_DIR": "logs"}),
    (["-m"], ["prog", "${local_rank}"], {}),
    (TWO + ["--no-python"], ["./prog.py", "${local_rank}-${local_rank}"], {}),
    (TWO + ["-r3", "--log-dir", "logs"], ["prog.py"], {}),
    (TWO + ["-t", "0:1,1:2", "-r", "1:1", "--log-dir=logs"], ["prog.py"], {}),
    (TWO + ["--virtual-local-rank"], ["prog.py"], {"CUDA_VISIBLE_DEVICES": "5,7"}),
    (TWO + ["--virtual-local-rank"], ["prog.py"], {}),
    (["--signals-to-handle=SIGUSR1,SIGTERM", "--shutdown-timeout=3"], ["prog.py"], {}),
    (TWO + ["--max-restarts=2", "--log-dir=logs", "-r2"], ["prog.py"], {"FAIL_ATTEMPTS": "1"}),
    (["--nproc-per-node=cpu"], ["prog.py"], {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0"}),
    (["--run-path"], ["PROGRAM"], {}),
    (TWO, ["prog.py"], {"FAIL_ATTEMPTS": "9"}),
]
REFUSED = [["--nproc-per-node=lots"], ["--nnodes=2:1"], ["--nnodes=one"], ["-t", "4"],
           ["-r", "0:3,"], ["--rdzv-conf=timeout"], ["--rdzv-backend=nope"], ["--max-restarts=x"],
           ["--max-restarts=-1"], ["-m", "--no-python"], ["--rdzv", "c10d"], ["--colour"], ["--role"],
           ["--local-ranks-filter=a"], ["--start-method=thread"], ["--numa-binding=near"],
           ["--nproc-per-node=2", "--log-dir=prog.py"]]


class Folder:
    """The folder of one launch."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="acc_torchrun_"))
        (self.path / "prog.py").write_text(PROGRAM)
        (self.path / "prog.py").chmod(0o755)

    def env(self, variables):
        env = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin", "HOME": str(self.path), "LANG": "C.UTF-8",
               "PYTHON_EXEC": sys.executable, "PYTHONWARNINGS": "ignore", "TMPDIR": str(self.path)}
        return {**env, **variables}

    def words(self, words, port):
        return [w.replace(PORT, port).replace("PROGRAM", str(self.path / "prog.py")) for w in words]

    def seen(self):
        """Returns the notes of the last attempt by rank, and the names of log files."""
        notes = {}
        for file in sorted(self.path.glob("seen_*.json")):
            notes[int(file.stem.split("_")[2])] = json.loads(file.read_text())
        logs = sorted(re.sub(r"^logs/[^/]+", "logs/RUN", str(f.relative_to(self.path))) + "=" + f.read_text()
                      for f in self.path.glob("logs/**/*.log"))
        return notes, logs

    def remove(self):
        shutil.rmtree(self.path, ignore_errors=True)


def launch_real(folder, words, env):
    pid = os.fork()
    if pid == 0:
        os.chdir(folder.path)
        os.environ.clear()
        os.environ.update(env)
        out = os.open("output", os.O_WRONLY | os.O_CREAT)
        os.dup2(out, 1)
        os.dup2(out, 2)
        status = 1
        try:
            torchrun.main(words)
            status = 0
        except SystemExit as end:
            status = end.code or 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def launch_ours(program):
    def launch(folder, words, env):
        with open(folder.path / "output", "wb") as out:
            return subprocess.run([program, "torchrun", *words], cwd=folder.path, env=env, stdout=out,
                                  stderr=subprocess.STDOUT, timeout=900).returncode
    return launch


def shown(name, value, folder):
    if name in RANDOM and RANDOM[name].match(value):
        return "<random>"
    if name == "TORCHELASTIC_ERROR_FILE":
        # In a temporary folder acclaunch has dots where torchrun has folders.
        value = re.sub(r"/(attempt_\d+)\.(\d+)\.(error.json)$", r"/RUN_X/\1/\2/\3", value)
        return re.sub(r"^.*/[^/]+_[^/]+/(attempt_\d+/\d+/error.json)$", r"\1", value)
    if name == "MASTER_ADDR" and value in ("localhost", socket.gethostname(), socket.getfqdn()):
        return "<this machine>"
    return value.replace(str(folder.path), "FOLDER")


def result_of(launch, case, port):
    """Returns the result of a launch in a form that is the same for both launchers."""
    flags, program, variables = case
    folder = Folder()
    try:
        env = folder.env(variables)
        status = launch(folder, folder.words(flags + program, port), env)
        notes, logs = folder.seen()
        ranks = {}
        for rank, note in notes.items():
            added = {k: shown(k, v, folder) for k, v in note["env"].items()
                     if env.get(k) != v and k not in NOT_COMPARED and not k.startswith("ACC_")}
            command = [w.replace(str(folder.path), "FOLDER") for w in note["command"]]
            if "--run-path" in flags:
                command = []  # with --run-path torchrun forks the worker
            elif re.search(r"python[0-9.]*$", command[0]):
                command[0] = "python"
            ranks[rank] = {"env": added, "command": command, "cwd": note["cwd"].replace(str(folder.path), "FOLDER")}
        return {"succeeds": status == 0, "ranks": ranks, "logs": logs}
    finally:
        folder.remove()


def differences(want, got, path=""):
    if isinstance(want, dict) and isinstance(got, dict):
        return [d for k in sorted({*want, *got}, key=str)
                for d in differences(want.get(k), got.get(k), f"{path}/{k}")]
    return [] if want == got else [f"{path}: torchrun gives {want!r}, acclaunch {got!r}"]


def main(program):
    failures = []
    port = str(reserved_port())
    for case in SAME:
        found = differences(result_of(launch_real, case, port), result_of(launch_ours(program), case, port))
        if found:
            failures.append("\n  ".join([str(case), *found]))
    for flags in REFUSED:
        case = (flags, ["prog.py"], {})
        for name, launch in (("torchrun", launch_real), ("acclaunch", launch_ours(program))):
            result = result_of(launch, case, port)
            if result["succeeds"] or result["ranks"]:
                failures.append(f"{flags}: {name} does not refuse them")
    print("\n".join(failures) or f"{len(SAME)} launches are the same, {len(REFUSED)} are refused by both")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
