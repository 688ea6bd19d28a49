# SPDX-License-Identifier: Apache-2.0
"""Agents of the real torchrun use our daemon for their rendezvous: torchrun_on_daemon.py ACC_RENDEZVOUS

Two jobs at the same time on one daemon, with two agents each and is_host=0, so that no agent serves a
store. Exits with 77 without torch.
"""
import json
import os
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

try:
    from torch.distributed import run as torchrun
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PROGRAM = """
import json, os, sys
e = os.environ
with open(os.path.join(sys.argv[1], e["RANK"]), "w") as f:
    json.dump({k: e[k] for k in ("RANK", "WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "LOCAL_RANK",
                                 "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")}, f)
"""
JOBS = ("first", "second")
NODES, PER_NODE = 2, 2


def start_agent(port, job, program, folder):
    """Forks this process, which has already imported torch. Returns the pid."""
    pid = os.fork()
    if pid > 0:
        return pid
    os.environ["OMP_NUM_THREADS"] = "1"  # otherwise torchrun prints a warning
    try:
        torchrun.main(["--rdzv_backend=c10d", f"--rdzv_id={job}", f"--rdzv_endpoint=127.0.0.1:{port}",
                       "--rdzv_conf=is_host=0,last_call_timeout=1", f"--nnodes={NODES}",
                       f"--nproc_per_node={PER_NODE}", str(program), str(folder)])
        os._exit(0)
    except BaseException:  # the child must not continue with the parent's code
        traceback.print_exc()
        os._exit(1)


def run_jobs(port, jobs, folder):
    program = folder / "program.py"
    program.write_text(PROGRAM)
    agents = []
    for job in jobs:
        (folder / job).mkdir()
        agents += [start_agent(port, job, program, folder / job) for _ in range(NODES)]
    statuses = [os.waitpid(agent, 0)[1] for agent in agents]
    assert statuses == [0] * len(agents), statuses


def check(job, folder):
    workers = [json.loads(file.read_text()) for file in sorted((folder / job).iterdir())]
    size = NODES * PER_NODE
    assert [w["RANK"] for w in workers] == [str(rank) for rank in range(size)], workers
    assert {w["WORLD_SIZE"] for w in workers} == {str(size)}
    assert {w["TORCHELASTIC_RUN_ID"] for w in workers} == {job}
    assert {w["GROUP_WORLD_SIZE"] for w in workers} == {str(NODES)}
    assert len({(w["MASTER_ADDR"], w["MASTER_PORT"]) for w in workers}) == 1, workers
    assert sorted((w["GROUP_RANK"], w["LOCAL_RANK"]) for w in workers) == [
        (str(node), str(local)) for node in range(NODES) for local in range(PER_NODE)]


def main(program):
    daemon = subprocess.Popen([program, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        port = int(daemon.stdout.readline().rsplit(":", 1)[1])
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            run_jobs(port, JOBS, folder)
            for job in JOBS:
                check(job, folder)
    finally:
        daemon.terminate()
        assert daemon.wait(timeout=120) == 0, "the daemon did not end cleanly"


if __name__ == "__main__":
    main(sys.argv[1])
