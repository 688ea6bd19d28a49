# SPDX-License-Identifier: Apache-2.0
"""Unchanged Python programs with the real packages run under acclaunch: launch_python_test.py PART
ACCLAUNCH. The parts are the functions below. Exits with 77 without torch or accelerate."""

import contextlib
import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

# The ranks of the parts that are not about their start are forked from one process that has imported this.
PRELOAD = ["--preload", "accelerate,torch._dynamo"]
WORKERS = pathlib.Path(__file__).resolve().parent / "workers"
DATA = pathlib.Path(__file__).resolve().parents[1] / "data"
DEADLINE = 900


def launch(home, command, fail_rank=None):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    environment |= {"PYTHON_EXEC": sys.executable, "HF_HOME": home, "OMP_NUM_THREADS": "1"}
    if fail_rank is not None:
        environment["FAIL_RANK"] = str(fail_rank)
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def run(*commands, fail_rank=None, succeeds=True):
    """Starts the commands together. Returns their output when all have succeeded, or failed."""
    with tempfile.TemporaryDirectory() as home, contextlib.ExitStack() as stack:
        jobs = [stack.enter_context(launch(home, command, fail_rank)) for command in commands]
        stack.callback(lambda: [job.kill() for job in jobs])
        outputs = [job.communicate(timeout=DEADLINE)[0] for job in jobs]
        print("\n".join(outputs))
        for job in jobs:
            assert (job.returncode == 0) == succeeds, f"{job.args} ended with {job.returncode}"
    return "\n".join(outputs)


def check_ranks(output, count, pattern=""):
    """Checks that every rank printed its line, and that all have the same loss."""
    ranks = re.findall(rf"rank (\d+) of {count}{pattern}.*(loss [\d.]+ to [\d.]+)", output)
    assert sorted(int(rank) for rank, _ in ranks) == list(range(count)), ranks
    assert len({loss for _, loss in ranks}) == 1, ranks


def machines(face, *flags):
    """Returns the command lines of two machines, for `acclaunch [launch]` or `acclaunch torchrun`."""
    port = str(reserved_port())
    if face == "launch":
        place = ["--cpu", "--num_processes", "4", "--num_machines", "2", "--main_process_ip", "127.0.0.1",
                 "--main_process_port", port, "--machine_rank"]
    elif face == "static":
        place = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--master-addr", "127.0.0.1",
                 "--master-port", port, "--node-rank"]
    else:
        endpoint = f"127.0.0.1:{port}"
        place = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d", "--rdzv-id",
                 "job", "--rdzv-endpoint", endpoint, "--node-rank"]
    return [[ACCLAUNCH, *place, str(rank), *flags] for rank in (0, 1)]


def with_script(commands, script):
    return [[*command, str(WORKERS / script)] for command in commands]


def accelerator():
    one = [ACCLAUNCH, "--cpu", "--num_processes", "2"]
    check_ranks(run(*with_script([one], "accelerate_train.py")), 2)


def accelerator_without_gpu():
    """Without a GPU, in every mode: all ranks train together, or the program is refused with the
    reason."""
    guide = ["--config_file", str(DATA / "configs" / "fsdp_guide.yaml")]
    table = [
        (["--num_processes", "2"], "MULTI_CPU"),
        ([*guide, "--fsdp_version", "2"], "MULTI_CPU"),
        (guide, None),
    ]
    os.environ["ACC_SIMULATE_GPUS"] = "0"
    for flags, kind in table:
        command = with_script([[ACCLAUNCH, *flags, *PRELOAD]], "accelerate_train.py")
        output = run(*command, succeeds=kind is not None)
        if kind is None:
            assert "Accelerate does not support FSDP on the CPU: a program that uses Accelerate is rejected" in output
            assert "There are currently no available devices found" in output  # by Accelerate
        else:
            check_ranks(output, 2, rf" \(DistributedType.{kind} on cpu\)")
        assert "FSDP runs on the CPU" not in output


def accelerator_two_machines():
    check_ranks(run(*with_script(machines("launch", *PRELOAD), "accelerate_train.py")), 4)


def torch_under_launch():
    one = [ACCLAUNCH, "launch", "--cpu", "--num_processes", "2"]
    check_ranks(run(*with_script([one], "torch_gloo.py")), 2)


def torch_under_torchrun():
    one = [ACCLAUNCH, "torchrun", "--standalone", "--nproc-per-node", "2"]
    check_ranks(run(*with_script([one], "torch_gloo.py")), 2)


def torch_restart():
    one = [ACCLAUNCH, "torchrun", "--nproc-per-node", "2", "--max-restarts", "1", "--preload", "torch"]
    output = run(*with_script([one], "torch_gloo.py"), fail_rank=1)
    assert "rank 1 fails" in output
    check_ranks(output, 2, " in 1")


def restart_two_machines(backend):
    """Two machines meet twice."""
    output = run(*with_script(machines(backend, "--max-restarts", "1", "--preload", "torch"), "torch_gloo.py"), fail_rank=0)
    assert "rank 0 fails" in output
    check_ranks(output, 2, " in 1")


def torch_restart_two_machines_static():
    restart_two_machines("static")


def torch_restart_two_machines_c10d():
    restart_two_machines("c10d")


def torch_fsdp2():
    one = [ACCLAUNCH, "torchrun", "--nproc-per-node", "2"]
    check_ranks(run(*with_script([one], "torch_fsdp2.py")), 2)


if __name__ == "__main__":
    for package in ("torch", "accelerate"):
        if importlib.util.find_spec(package) is None:
            print(f"skipped: {sys.executable} has no {package}")
            sys.exit(77)
    part, ACCLAUNCH = sys.argv[1:]
    globals()[part]()
