# SPDX-License-Identifier: Apache-2.0
"""A PyTorch program for DeepSpeed's launcher runs under `acclaunch deepspeed`, on one machine and on two.

    deepspeed_cli.py ACCLAUNCH
"""
import importlib.util
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

if importlib.util.find_spec("torch") is None:
    print("PyTorch is not installed")
    sys.exit(77)

PROGRAM = """
import argparse, os, torch, torch.distributed as dist
parser = argparse.ArgumentParser()
parser.add_argument("--local_rank", type=int)
args = parser.parse_args()
assert args.local_rank == int(os.environ["LOCAL_RANK"]), args
dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} of {dist.get_world_size()} has {total.item():g} on {os.environ['CROSS_RANK']}")
dist.destroy_process_group()
"""


def run(folder, commands):
    """Runs launchers, each as a separate machine, and returns their output."""
    env = {**os.environ, "PYTHON_EXEC": sys.executable, "ACC_SIMULATE_GPUS": "0", "HOME": folder}
    jobs = [subprocess.Popen(c, cwd=folder, env=env, stdout=subprocess.PIPE, text=True) for c in commands]
    texts = [job.communicate(timeout=900)[0] for job in jobs]
    assert all(job.returncode == 0 for job in jobs), texts
    return texts


def main(program):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(PROGRAM)
        (Path(folder) / "hosts").write_text("here slots=1\nthere slots=2\n")
        launcher = str(Path(folder) / "deepspeed")
        os.symlink(program, launcher)
        [text] = run(folder, [[launcher, "--num_gpus=2", "--master_port=0", "train.py"]])
        assert all(f"rank {r} of 2 has 3 on 0" in text for r in range(2)), text
        flags = ["-H", "hosts", "--no_ssh", "--master_addr=127.0.0.1", "--master_port", str(reserved_port()),
                 "--preload", "torch"]
        texts = run(folder, [[launcher, *flags, f"--node_rank={n}", "train.py"] for n in range(2)])
        assert "rank 0 of 3 has 6 on 0" in texts[0], texts
        assert all(f"rank {r} of 3 has 6 on 1" in texts[1] for r in (1, 2)), texts
    print("one machine and two")


if __name__ == "__main__":
    main(os.path.abspath(sys.argv[1]))
