# SPDX-License-Identifier: Apache-2.0
"""c10d_training.py ACCLAUNCH: trains over the back end `acc` and over Gloo and compares the losses (DDP,
FSDP2, DTensor, DCP, Accelerate); the launcher's --cpu_backend; and the errors of a rank that ends or
makes another call.

The losses of two back ends differ by rounding only: they sum the gradients in another order."""

import contextlib
import datetime
import importlib
import logging
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

try:
    import accelerate
    import torch
    import torch.distributed as dist
except ImportError:
    sys.exit(77)

STEPS = 4


def losses_of(model, rank, backward=None):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 32, generator=generator)).pow(2).mean()
        (backward or torch.Tensor.backward)(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def new_model():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 65),
                               torch.nn.LayerNorm(65), torch.nn.Linear(65, 3))


def train():
    """The losses of each way to train, on one line per way."""
    dist.init_process_group(os.environ["BACKEND"])
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {"backend": dist.group.WORLD.name()}

    results["ddp"] = losses_of(torch.nn.parallel.DistributedDataParallel(new_model()), rank)

    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
    hooked = torch.nn.parallel.DistributedDataParallel(new_model())
    hooked.register_comm_hook(dist.group.WORLD, default_hooks.fp16_compress_hook)
    results["ddp, fp16 hook"] = losses_of(hooked, rank)

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    for name, policy in {"fsdp2": MixedPrecisionPolicy(),
                         "fsdp2, bf16": MixedPrecisionPolicy(param_dtype=torch.bfloat16)}.items():
        sharded = new_model()
        for layer in (sharded[0], sharded[2], sharded):
            fully_shard(layer, mp_policy=policy)
        results[name] = losses_of(sharded, rank)

    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    with tempfile.TemporaryDirectory() as own:
        folder = [own]
        dist.broadcast_object_list(folder)
        saved = get_model_state_dict(sharded)
        before = {key: value.full_tensor().clone() for key, value in saved.items()}
        dcp.save(saved, checkpoint_id=folder[0])
        for value in saved.values():
            value.to_local().zero_()
        dcp.load(saved, checkpoint_id=folder[0])
        assert all(torch.equal(value.full_tensor(), before[key]) for key, value in saved.items())
        dist.barrier()
    results["dcp"] = [float(before["0.weight"].sum())]

    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (world,))
    whole = torch.arange(24.0).view(6, 4)
    split = distribute_tensor(whole, mesh, [Shard(0)])
    moved = split.redistribute(mesh, [Shard(1)]).redistribute(mesh, [Replicate()])
    assert torch.equal(moved.to_local(), whole)
    results["dtensor"] = [float((split @ split.T).full_tensor().sum())]

    if rank == 0:
        print("RESULTS", results)
    end()


def end():
    """Torch's Gloo (2.13) may hang when the last reference to a group, that of DDP, goes: its thread needs the GIL to free
    tensors, and the thread that waits for it there holds the GIL."""
    is_gloo = dist.group.WORLD.name() == "gloo"
    dist.destroy_process_group()
    if is_gloo:
        sys.stdout.flush()
        os._exit(0)


def add():
    dist.init_process_group(os.environ["BACKEND"])
    values = torch.full((3,), 1.0 + dist.get_rank())
    dist.all_reduce(values)
    if dist.get_rank() == 0:
        print("RESULTS", {"backend": dist.group.WORLD.name(), "sum": values.tolist()})
    end()


def train_with_accelerate():
    """With DDP: on the CPU Accelerate (1.15) leaves out a plugin for FSDP."""
    from accelerate import Accelerator
    from accelerate.utils import InitProcessGroupKwargs

    accelerator = Accelerator(cpu=True, kwargs_handlers=[InitProcessGroupKwargs(backend=os.environ["BACKEND"])])
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    model, optimizer = accelerator.prepare(model, optimizer)
    generator = torch.Generator().manual_seed(accelerator.process_index)
    losses = []
    for _ in range(STEPS):
        loss = model(torch.randn(8, 32, generator=generator)).pow(2).mean()
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(accelerator.gather(loss.detach()).mean().item())
    if accelerator.is_main_process:
        print("RESULTS", {"backend": dist.group.WORLD.name(), "ddp": losses})
    end()


def fail(how):
    """Rank 1 goes wrong in the third step. The other prints its error and the time that it took."""
    # 10 s: far above the time that a busy machine needs for a correct step.
    timeout = datetime.timedelta(seconds=10) if how == "hangs" else None
    dist.init_process_group("acc", timeout=timeout)
    model = torch.nn.parallel.DistributedDataParallel(new_model())
    rank = dist.get_rank()
    for step in range(4):
        if step == 2 and rank == 1:
            if how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "hangs":
                os.kill(os.getpid(), signal.SIGSTOP)
            elif how == "left":
                dist.destroy_process_group()
                time.sleep(600)  # until the test kills it
            elif how == "other size":
                dist.all_reduce(torch.ones(3))
            elif how == "other call":
                dist.barrier()
        begin = time.monotonic()
        try:
            model(torch.randn(8, 32)).sum().backward()  # the user's line
        except BaseException:
            print(f"rank {rank} after {time.monotonic() - begin:.3f} s", file=sys.stderr, flush=True)
            raise


# --- the test ---

def launch(front_end, arguments, environment):
    """Runs this file on two ranks and returns the output."""
    command = [sys.argv[1], *front_end, __file__, *arguments]
    ended = subprocess.run(command, env={**os.environ, "PYTHON_EXEC": sys.executable,
                                         **environment}, timeout=240, text=True,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert ended.returncode == 0, f"{command}: {ended.returncode}\n{ended.stdout}"
    return ended.stdout


ACCELERATE = ["--cpu", "--num_processes", "2", "--main_process_port", "0"]
TORCHRUN = ["torchrun", "--standalone", "--nproc-per-node", "2"]
# One import for both ranks of what they use.
PRELOAD = ["--preload", "torch._dynamo,torch.distributed.fsdp,torch.distributed.checkpoint.state_dict,"
                        "torch.distributed.tensor"]


def fork_rank(rank, port, how, stderr):
    """A rank that calls `fail`. It ends with status 1 if that raises, after its traceback."""
    os.dup2(stderr.fileno(), 2)
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    fail(how)


def stderr_of_rank_0(how):
    """Runs `fail` on two ranks without a launcher, which would end rank 0 as soon as rank 1 fails."""
    port = reserved_port()
    fork = multiprocessing.get_context("fork")  # one import of torch for all ranks
    with tempfile.TemporaryFile("w+") as stderr, open(os.devnull, "w") as unread:
        ranks = [fork.Process(target=fork_rank, args=(rank, port, how, unread if rank else stderr))
                 for rank in range(2)]
        for rank in ranks:
            rank.start()
        ranks[0].join(240)  # far less than the 30 minutes after which a call that nobody answers times out
        for rank in ranks:
            rank.kill()
            rank.join()
        stderr.seek(0)
        output = stderr.read()
    assert ranks[0].exitcode == 1, f"{ranks[0].exitcode}: {output}"
    return output


def results_of(output):
    return eval(re.search(r"RESULTS (\{.*\})", output).group(1))


def compare(found, expected):
    assert found.pop("backend") == "acc" and expected.pop("backend") == "gloo"
    for name, values in expected.items():
        # 16-bit sums in another order differ by a rounding of 16 bits.
        tolerance = 2e-2 if "16" in name else 1e-5
        torch.testing.assert_close(torch.tensor(found[name]), torch.tensor(values), rtol=tolerance,
                                   atol=tolerance, msg=lambda text: f"{name}: {text}")


def test_training():
    expected = results_of(launch(TORCHRUN + PRELOAD, ["train"], {"BACKEND": "gloo"}))
    compare(results_of(launch(TORCHRUN + PRELOAD, ["train"], {"BACKEND": "acc"})), dict(expected))
    # No change of the program: the launcher makes gloo mean acc, for workers that it forks and that it starts.
    chosen = ["--cpu_backend", "acc"]
    compare(results_of(launch(ACCELERATE + PRELOAD + chosen, ["train"], {"BACKEND": "gloo"})), dict(expected))
    assert results_of(launch(TORCHRUN + chosen, ["add"], {"BACKEND": "gloo"})) == {"backend": "acc", "sum": [3.0] * 3}


def test_accelerate():
    expected, found = (results_of(launch(ACCELERATE + PRELOAD, ["accelerate"], {"BACKEND": backend}))
                       for backend in ("gloo", "acc"))
    compare(found, expected)


def test_failures():
    for how, words in {"killed": r"PeerLostError: rank 1 \(pid \d+\) ended before it reached all_reduce",
                       "hangs": r"AccTimeoutError: timeout: rank 1 did not reach all_reduce .* within 10 s",
                       "left": r"PeerLostError: rank 1 \(pid \d+\) left the group before it reached",
                       "other size": r"CollectiveError: collective number \d+ of acc\[0,1\] differs: "
                                     r".*rank 1 calls all_reduce \(sum\) of 3 x float32",
                       "other call": r"CollectiveError: collective number \d+ of acc\[0,1\] differs: "
                                     r".*rank 1 calls barrier"}.items():
        output = stderr_of_rank_0(how)
        assert re.search(words, output), f"{how}: no {words} in\n{output}"
        assert "# the user's line" in output, f"{how}: no traceback in\n{output}"
        seconds = re.search(r"rank 0 after ([0-9.]+) s", output).group(1)
        print(f"{how}: rank 0 failed after {seconds} s")


def test_refusals():
    def refused(command, environment, *words):
        ended = subprocess.run(command, env={**os.environ, **environment}, text=True, timeout=240,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert ended.returncode == 2 and all(word in ended.stdout for word in words), \
            f"{command}: {ended.returncode} {ended.stdout}"

    program = [*TORCHRUN, "--cpu_backend", "acc", __file__]
    refused([sys.argv[1], *TORCHRUN, "--cpu_backend", "mpi", __file__], {}, "cpu_backend", "mpi",
            "gloo", "acc")
    refused([sys.argv[1], *program], {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}, "--cpu_backend",
            "TORCH_DEVICE_BACKEND_AUTOLOAD")
    with tempfile.TemporaryDirectory() as folder:  # the launcher alone
        os.mkdir(f"{folder}/bin")
        subprocess.run(["cp", sys.argv[1], f"{folder}/bin/"], check=True)
        refused([f"{folder}/bin/{os.path.basename(sys.argv[1])}", *program], {}, "--cpu_backend",
                "the Python package acclaunch is neither in", f"{folder}/python")


def test_autoload():
    """Torch loads the package at the end of `import torch`. No failure in it is one of that import, nor of
    `import accelerate.state`, which the package watches."""
    def fails(error):
        return mock.Mock(side_effect=error)

    def load(*patches, accelerate="class PartialState: pass", environment=None):
        """Loads the package as torch does, in a worker of a launcher, then a module accelerate.state.
        Returns the logged lines and the files that are left."""
        lines = []
        handler = logging.Handler()
        handler.emit = lambda record: lines.append(record.getMessage())
        logger = logging.getLogger("acclaunch")
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            package, records = pathlib.Path(folder, "accelerate"), pathlib.Path(folder, "records")
            package.mkdir()
            records.mkdir()
            (package / "__init__.py").touch()
            (package / "state.py").write_text(accelerate)
            for patch in (*patches, mock.patch.dict(sys.modules),
                          mock.patch.object(sys, "meta_path", sys.meta_path[:]),
                          mock.patch.object(sys, "path", [folder, *sys.path]),
                          mock.patch.dict(os.environ, {"RANK": "0", "ACC_FLIGHT_RECORD": f"{records}/0",
                                                       **(environment or {})}),
                          mock.patch.object(logger, "handlers", [handler]),
                          mock.patch.object(logger, "level", logging.INFO)):
                stack.enter_context(patch)
            for name in [name for name in sys.modules if name.startswith(("acclaunch", "accelerate"))]:
                del sys.modules[name]
            dist.Backend._plugins.pop("ACC", None)  # of the case before
            torch._import_device_backends()
            importlib.import_module("accelerate.state")
            return lines, os.listdir(records)

    class OldBackend:
        """Without register_backend, as before torch 2.0."""

        _plugins = {}

    of_test = ImportError("of the test")
    no_threads = mock.patch("threading.Thread.start", fails(RuntimeError("can't start new thread")))
    for what, patches, options in (
            ("can't start new thread", [no_threads], {}),
            ("MemoryError", [mock.patch("os.mkfifo", fails(MemoryError()))], {}),
            ("ImportError: of the test", [mock.patch.object(dist, "is_available", fails(of_test))], {}),
            ("ImportError: of the test", [mock.patch("importlib.util.find_spec", fails(of_test))], {}),
            ("AttributeError", [], {"accelerate": ""}),
            ("AttributeError", [mock.patch.object(dist, "Backend", OldBackend)], {}),
            ("ModuleNotFoundError", [mock.patch.dict(sys.modules, {"torch.distributed": None})], {}),
            ("AttributeError", [mock.patch.object(dist, "distributed_c10d", None)],
             {"environment": {"ACC_CPU_BACKEND": "acc"}}),
            ("ACC_CPU_BACKEND is 'odd', expected acc or gloo", [],
             {"environment": {"ACC_CPU_BACKEND": "odd"}})):
        lines, left = load(*patches, **options)
        assert any(what in line for line in lines), f"{what}: {lines}"
        assert "thread" not in what or left == [], left
    for record in ("/nowhere/0", "x" * 5000, ""):
        environment = {"ACC_FLIGHT_RECORD": record}
        lines, left = load(environment=environment)
        assert lines == [] and left == [], (environment, lines, left)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "train":
        train()
    elif sys.argv[1] == "add":
        add()
    elif sys.argv[1] == "accelerate":
        train_with_accelerate()
    else:
        import torch._dynamo  # which DDP needs: once for the ranks of test_failures

        for name, test in list(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                test()
                print(f"{name}: passed, {time.monotonic() - begin:.1f} s", flush=True)
