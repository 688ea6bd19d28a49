# SPDX-License-Identifier: Apache-2.0
"""fork_test.py PACKAGE: children that ranks make with fork take no part in the job. They are refused, their ends
change nothing, and they do not keep a dead rank alive for its peers. Exits with 77 without torch."""

import datetime
import fcntl
import os
import signal
import subprocess
import sys
import tempfile

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, Dataset

REFUSED = "a child that fork made"


def child(body):
    """Runs `body` in a child, which must write a byte before its end. Returns the child's exit status."""
    end, begin = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(end)
        body(lambda: os.write(begin, b"!"))
        os._exit(0)
    os.close(begin)
    status = os.waitpid(pid, 0)[1]
    said = os.read(end, 1)
    os.close(end)
    assert said == b"!", f"the child failed: {status}"
    return status


def refused(calls):
    """A body that makes all calls, each of which must be refused."""
    def body(done):
        for name, call in calls.items():
            try:
                call()
            except Exception as error:
                assert REFUSED in str(error), (name, error)
            else:
                raise AssertionError(f"{name} was not refused")
        done()

    return body


def quit_with(done, error):
    done()
    raise error


# How a child ends -> its body and its exit status.
ENDS = {
    "sys.exit": (lambda done: quit_with(done, SystemExit(7)), 7 << 8),
    "an exception": (lambda done: quit_with(done, ArithmeticError("of the child")), 1 << 8),
    "os._exit": (lambda done: (done(), os._exit(7)), 7 << 8),
    "a signal": (lambda done: (done(), os.kill(os.getpid(), signal.SIGKILL)), signal.SIGKILL),
}


class Refusing(Dataset):
    """Samples that a worker of a DataLoader makes: 1 if its calls of the parent's runtime are refused."""

    def __init__(self, calls):
        self.calls = calls

    def __len__(self):
        return 4

    def __getitem__(self, index):
        refused(self.calls)(lambda: None)
        return torch.ones(1)


def bridge(runtime, acc):
    """What one rank, and a child of it, does with a sharded module."""
    model = acc.fully_shard(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1)), runtime, units=[nn.Linear])
    optimizer = acc.SGD(model, lr=0.1)
    rank = float(runtime.rank)
    with tempfile.TemporaryDirectory() as folder:
        calls = {
            "mean": lambda: runtime.mean(1000.0),
            "all_gather": lambda: runtime.all_gather([1000.0]),
            "barrier": runtime.barrier,
            "report": lambda: runtime.report({"loss": 1.0}),
            "abort": lambda: runtime.abort("by a child"),
            "save": lambda: runtime.save(f"{folder}/run", model, optimizer),
            "load": lambda: runtime.load(f"{folder}/run", model, optimizer),
            "fully_shard": lambda: acc.fully_shard(nn.Linear(4, 4), runtime),
            "a new runtime": acc.Runtime,
            "forward": lambda: model(torch.ones(2, 4)),
            "evaluation": lambda: torch.no_grad()(model)(torch.ones(2, 4)),
            "step": optimizer.step,
            "zero_grad": optimizer.zero_grad,
            "lr": lambda: optimizer.lr,
            "set_lr": lambda: setattr(optimizer, "lr", 5.0),
            "state_dict": lambda: acc.state_dict(model, rank0_only=False),
            "memory_report": lambda: acc.memory_report(model),
            "an optimizer": lambda: acc.AdamW(model),
        }

        def train():
            model(torch.ones(2, 4)).sum().backward()
            return optimizer.step().grad_norm

        def together(what):
            assert runtime.mean(rank) == 0.5, what
            train()

        together("before")
        assert child(refused(calls)) == 0
        together("refused")
        output = model(torch.ones(2, 4)).sum()  # a child of a forward

        def backward(done):
            try:
                output.backward()
            except Exception as error:
                assert REFUSED in str(error), error
                done()

        assert child(backward) == 0
        output.backward()
        optimizer.step()
        for name, (body, status) in ENDS.items():
            found = child(body)
            assert found == status, (name, found)
            together(name)
        loader = DataLoader(Refusing(calls), num_workers=1, persistent_workers=True,
                            multiprocessing_context="fork")
        for epoch in range(2):
            for batch in loader:
                assert batch.sum() == 1.0
                together(f"epoch {epoch} of a DataLoader")
    return runtime.barrier


def c10d(store, rank):
    """The same with groups of torch.distributed."""
    import acclaunch.c10d

    dist.init_process_group("acc", store=store, rank=rank, world_size=2,
                            timeout=datetime.timedelta(seconds=60))
    part = dist.new_group([0, 1])
    value = torch.ones(2)
    pending = dist.irecv(torch.zeros(1), 1 - rank)
    calls = {
        "all_reduce": lambda: dist.all_reduce(value),
        "all_reduce of a part": lambda: dist.all_reduce(value, group=part),
        "broadcast": lambda: dist.broadcast(value, 0),
        "all_gather": lambda: dist.all_gather([value, value], value),
        "send": lambda: dist.send(value, 1 - rank),
        "recv": lambda: dist.recv(value, 1 - rank),
        "barrier": dist.barrier,
        "wait": pending.wait,
        "get_future": lambda: pending.get_future().wait(),
        "abort": lambda: dist.group.WORLD.abort(),
    }

    def together(what):
        for group in (None, part):
            found = torch.full((2,), float(rank + 1))
            dist.all_reduce(found, group=group)
            assert found.tolist() == [3.0, 3.0], (what, found)

    together("before")
    assert child(refused(calls)) == 0
    together("refused")
    assert child(lambda done: (dist.destroy_process_group(), done())) == 0
    together("destroyed in a child")
    for name, (body, status) in ENDS.items():
        found = child(body)
        assert found == status, (name, found)
        together(name)
    dist.send(torch.ones(1), 1 - rank)
    pending.wait()
    return dist.barrier


def worker(kind, port):
    """Rank 1 then leaves a child and dies; rank 0 prints the error that tells it so."""
    rank = int(os.environ["RANK"])
    if kind == "c10d":
        meet = c10d(dist.TCPStore("127.0.0.1", port, is_master=False), rank)
    else:
        import acclaunch.torch as acc

        meet = bridge(acc.Runtime(), acc)
    if rank == 1:
        if os.fork() == 0:
            sys.stdin.buffer.read(1)  # until the test closes it
            sys.exit(0)
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        meet()
    except Exception as error:
        print(f"{type(error).__name__}: {error}", flush=True)


def run(package, kind, machines):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with tempfile.TemporaryDirectory() as folder:
        job = {"PYTHONPATH": package, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": str(2 // machines),
               "GROUP_WORLD_SIZE": str(machines), "MASTER_ADDR": "127.0.0.1",
               "MASTER_PORT": str(store.port), "GLOO_SOCKET_IFNAME": "lo", "ACCELERATE_USE_FSDP": "true"}
        records = [f"{folder}/rank{rank}" for rank in range(2)]
        ranks = [subprocess.Popen(
            [sys.executable, os.path.abspath(__file__), kind, str(store.port)], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | job | {"RANK": str(rank), "LOCAL_RANK": str(rank % (2 // machines)),
                                    "GROUP_RANK": str(rank // (2 // machines)),
                                    "ACC_FLIGHT_RECORD": records[rank]}) for rank in range(2)]
        try:
            # Only rank 0 ends; a child of rank 1 has its streams.
            said, complaints = ranks[0].communicate(timeout=300)
            assert "PeerLostError: " in said and "rank 1" in said, (kind, said, complaints)
            assert "left the group" not in said, said
            assert ranks[1].wait(timeout=300) == -signal.SIGKILL, (kind, said, complaints)
            if kind != "c10d":
                with open(records[1], "rb+") as record:
                    fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)  # no child has the lock
        finally:
            ranks[1].stdin.close()
            for rank in ranks:
                rank.kill()
        complaints = ranks[1].stderr.read()
        assert complaints.count("Traceback") == 1 and "ArithmeticError: of the child" in complaints, \
            complaints


def main():
    for kind, machines in (("bridge", 1), ("bridge", 2), ("c10d", 1)):
        run(sys.argv[1], kind, machines)


if __name__ == "__main__":
    worker(sys.argv[1], int(sys.argv[2])) if "RANK" in os.environ else main()
