# SPDX-License-Identifier: Apache-2.0
"""Time from the end of a worker by SIGKILL to the next optimizer step of all ranks, compared with torchrun.

    python bench/lost_workers.py [--bin build/release/bin] [--python PYTHON] [--package build/release/python]
                                 [--dir DIR] [--processes N] [--layers L] [--width W] [--kills K] [--rounds R]

The same FSDP 2 program (by default 23 M parameters, AdamW, fp32) trains in turn under `acclaunch --engine acc
--rejoin`, which goes back to a snapshot in memory of each step, and under torchrun, which starts all workers again and
loads a torch DCP checkpoint of each step from DIR. K times in each round the last rank is killed, when all have made
two steps. The time is that until all ranks have made a step again. Prints the seconds of each round, then the medians
of all. (After a kill of rank 0 torchrun did not train again in the attempts that were made.)
"""
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

from async_save import make_net
from launchers import free_port
from names import BIN, Options

HERE = os.path.abspath(__file__)


class InMemory:
    """Snapshots of acclaunch."""

    def __init__(self, _, net, optimizer):
        from acclaunch.snapshots import Snapshots

        self.snapshots = Snapshots(model=net, optimizer=optimizer)
        self.resume, self.keep = self.snapshots.resume, self.snapshots.keep


class OnDisk:
    """Checkpoints of torch DCP. `latest` names the one that is whole."""

    def __init__(self, folder, net, optimizer):
        self.folder, self.net, self.optimizer = folder, net, optimizer

    def resume(self):
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

        if not os.path.exists(f"{self.folder}/latest"):
            return 0
        with open(f"{self.folder}/latest") as file:
            step = int(file.read())
        model, optimizer = get_state_dict(self.net, self.optimizer)
        dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=f"{self.folder}/{step}")
        set_state_dict(self.net, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return step

    def keep(self, step):
        import torch.distributed as dist
        import torch.distributed.checkpoint as dcp
        from torch.distributed.checkpoint.state_dict import get_state_dict

        model, optimizer = get_state_dict(self.net, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=f"{self.folder}/{step}")
        if dist.get_rank() == 0:
            with open(f"{self.folder}/latest.new", "w") as file:
                file.write(str(step))
            os.replace(f"{self.folder}/latest.new", f"{self.folder}/latest")
            shutil.rmtree(f"{self.folder}/{step - 2}", ignore_errors=True)
        dist.barrier()


def worker(kind, folder, width, layers):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    net = make_net(width, layers)
    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)
    kept = {"memory": InMemory, "disk": OnDisk}[kind](folder, net, optimizer)
    x = torch.randn(64, width)
    for step in itertools.count(kept.resume() + 1):
        net(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        line = json.dumps({"rank": dist.get_rank(), "pid": os.getpid(), "step": step, "time": time.time(),
                           "restarts": int(os.environ["TORCHELASTIC_RESTART_COUNT"])})
        os.write(1, f"{line}\n".encode())  # at once: torchrun's workers share a pipe
        kept.keep(step)


def recoveries(args, command):
    """Runs a job, kills a rank of it again and again, and returns the seconds of each recovery."""
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                           start_new_session=True,
                           env=os.environ | {"PYTHONPATH": str(args.package), "OMP_NUM_THREADS": "1"})
    found, begin, ended = [], None, -1
    made = {}  # by rank: the lines of this start
    for line in job.stdout:
        if '{"rank"' not in line:
            continue
        said = json.loads(line[line.index('{"rank"'):])
        if said["restarts"] <= ended:
            continue  # a step that was under way when the rank was killed
        made.setdefault(said["rank"], []).append(said)
        if len(made) < args.processes:
            continue
        if begin is not None:
            found.append(max(each[0]["time"] for each in made.values()) - begin)
            begin = None
        if len(found) == args.kills:
            break
        if all(len(each) >= 2 for each in made.values()):
            begin, pid = time.time(), made[args.processes - 1][-1]["pid"]
            os.kill(pid, signal.SIGKILL)
            made, ended = {}, said["restarts"]
    os.killpg(job.pid, signal.SIGKILL)
    for each in list(made.values()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(each[-1]["pid"], signal.SIGKILL)  # in a session of its own
    job.stdout.close()
    job.wait()
    assert len(found) == args.kills, f"{' '.join(map(str, command))}: ended after {len(found)} recoveries"
    return found


def main():
    parser = Options(__doc__, bin=BIN, package=BIN.parent / "python", python=sys.executable, dir="/dev/shm",
                     processes=2, layers=22, width=1024, kills=5, rounds=3)
    args = parser.parse_args()
    jobs = {
        "acclaunch --rejoin, from memory": ("memory", [
            os.path.join(args.bin, "acclaunch"), "--engine", "acc", "--cpu", "--num_processes", str(args.processes),
            "--rejoin", "--max_restarts", str(args.kills), "--restart_backoff", "0", "--memory_checkpoint_every", "1",
            "--preload", "torch._dynamo,torch.distributed.fsdp"]),
        "torchrun, from DCP": ("disk", [
            args.python, "-m", "torch.distributed.run", "--nproc-per-node", str(args.processes), "--max-restarts",
            str(5 * args.kills)])}  # Gloo may fail to connect in the first start after a kill
    seconds = {name: [] for name in jobs}
    os.environ["PYTHON_EXEC"] = args.python
    for _ in range(args.rounds):
        for name, (kind, command) in jobs.items():
            with tempfile.TemporaryDirectory(dir=args.dir) as folder:
                port = ["--master-port", str(free_port())] if kind == "disk" else []
                found = recoveries(args, [*command, *port, HERE, "--worker", kind, folder, str(args.width),
                                          str(args.layers)])
            seconds[name] += found
            print(f"{name}: {' '.join(f'{each:.2f}' for each in found)} s", flush=True)
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    for name, each in seconds.items():
        print(f"{name:<32} median {middle[name]:6.2f} s, {min(each):.2f} to {max(each):.2f} s")
    first, second = middle.values()
    print(f"ratio {second / first:.1f}")


if __name__ == "__main__":
    if "--worker" in sys.argv:
        at = sys.argv.index("--worker")
        worker(sys.argv[at + 1], sys.argv[at + 2], *map(int, sys.argv[at + 3:]))
    else:
        main()
