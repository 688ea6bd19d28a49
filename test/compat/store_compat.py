# SPDX-License-Identifier: Apache-2.0
"""Our store with PyTorch as client and server: store_compat.py PART ACC_RENDEZVOUS STORE_PROBE

PART is a function of the last section. Exits with 77 without torch.
"""

import concurrent.futures
import contextlib
import datetime
import multiprocessing
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from daemon import Daemon

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SECONDS = datetime.timedelta(seconds=1)
MILLISECONDS = datetime.timedelta(milliseconds=1)
LOCAL = "127.0.0.1"
# torch is imported only once, in this process. Other processes are forks, which start quickly.
PROCESSES = multiprocessing.get_context("fork")


@contextlib.contextmanager
def our_server(program, port=0):
    server = Daemon(program, port=port)
    try:
        yield server.port
    finally:
        assert server.stop(timeout=120) == 0, "the server did not end cleanly"


def client(port, timeout=240):
    return dist.TCPStore(LOCAL, port, is_master=False, timeout=timeout * SECONDS)


def error_of(call):
    """Returns "KIND: TEXT" of the exception that `call` raises."""
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def together(calls):
    """Runs each call in its own thread and returns the results."""
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as threads:
        return [done.result(60) for done in [threads.submit(call) for call in calls]]


def in_processes(count, body, *args):
    """Runs body(rank, *args), each in its own process, and returns the results."""
    results = PROCESSES.Queue()

    def run(rank):
        results.put((rank, body(rank, *args)))
        results.close()
        results.join_thread()
        os._exit(0)  # a fork must not run the interpreter's exit handlers

    ranks = [PROCESSES.Process(target=run, args=(rank,)) for rank in range(count)]
    for rank in ranks:
        rank.start()
    try:
        return dict(results.get(timeout=240) for _ in ranks)
    except queue.Empty:
        raise AssertionError(f"exit codes {[rank.exitcode for rank in ranks]}") from None
    finally:
        for rank in ranks:
            rank.terminate()
            rank.join()


# One store and its calls.


def check_calls(store):
    store.set("k", "v1")
    assert store.get("k") == b"v1"
    store.set("binary", bytes(range(256)))
    assert store.get("binary") == bytes(range(256))
    assert store.add("n", 5) == 5 and store.add("n", -7) == -2
    assert store.get("n") == b"-2"
    assert store.check(["k", "n"]) and not store.check(["k", "absent"])
    assert store.compare_set("c", "", "1") == b"1"
    assert store.compare_set("c", "x", "2") == b"1"
    assert store.compare_set("absent", "x", "2") == b"x"
    store.append("a", "ab")
    store.append("a", "cd")
    store.multi_set(["m1", "m2"], ["1", ""])
    assert store.multi_get(["m1", "a", "m2"]) == [b"1", b"abcd", b""]
    assert store.delete_key("c") and not store.delete_key("c")
    names = set(store.list_keys())
    assert {"k", "binary", "n", "a", "m1", "m2"} <= names, names
    assert store.num_keys() == len(names)
    assert store.has_extended_api()
    large = os.urandom(8 * 1024 * 1024)
    store.set("large", large)
    assert store.get("large") == large


def check_queues(store):
    store.queue_push("q", "x")
    store.queue_push("q", "y")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"x" and store.queue_pop("q") == b"y"
    assert error_of(lambda: store.queue_pop("q", block=False)).startswith("QueueEmptyError")
    consumer = store.clone()
    popped, _ = together([lambda: consumer.queue_pop("q"), lambda: store.queue_push("q", "z")])
    assert popped == b"z"


def check_waits(store, other):
    together([
        lambda: store.wait(["late1", "late2"], 30 * SECONDS),
        lambda: other.multi_set(["late1", "late2"], ["1", "2"]),
    ])
    assert error_of(lambda: store.wait(["never"], 50 * MILLISECONDS)) == (
        "DistStoreError: wait timeout after 50ms, keys: /never")
    store.set_timeout(50 * MILLISECONDS)
    assert error_of(lambda: store.get("never")).startswith("DistStoreError: wait timeout")
    assert error_of(lambda: store.queue_pop("never")).startswith("DistStoreError: wait timeout")
    store.set_timeout(30 * SECONDS)
    other.set("never", "after the time limit")  # must not affect later replies
    assert store.add("after", 1) == 1


def check_releases_that_cross_the_cancel(store, other):
    for i in range(100):
        together([
            lambda: error_of(lambda: store.wait([f"close{i}"], 1 * MILLISECONDS)),
            lambda: (time.sleep(0.001), other.set(f"close{i}", "")),
        ])
        assert store.add("crossed", 1) == i + 1


def check_refusals(port):
    store = client(port)
    store.set("text", "no number")
    assert error_of(lambda: store.add("text", 1)).startswith("DistNetworkError")
    store = client(port)
    assert "DistNetworkError" in error_of(lambda: (store.set("k" * 8192, ""), store.get("k")))
    assert client(port).get("text") == b"no number"


def check_prefixes(store, raw):
    nested = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    nested.set("k", "nested")
    assert raw.get("inner/outer/k") == b"nested"
    assert nested.get("k") == b"nested"
    assert nested.list_keys() == ["k"]
    nested.queue_push("q", "x")
    assert raw.queue_pop("inner/outer/q") == b"x"
    clones = [nested.clone() for _ in range(3)]
    together([lambda s=s: s.barrier("b", 3, 30 * SECONDS) for s in clones])
    assert raw.get("inner/outer/b/num_members") == b"3"


def check_barrier(port):
    stores = [client(port) for _ in range(3)]
    together([lambda s=s: s.barrier("b", 3, 30 * SECONDS) for s in stores])
    assert error_of(lambda: stores[0].barrier("b2", 2, 50 * MILLISECONDS)) == (
        "DistStoreError: barrier timeout after 50ms, key: b2")
    stores[1].barrier("b2", 2)


def check_clones(store):
    clones = [store.clone() for _ in range(8)]
    together([lambda s=s: [s.add("shared", 1) for _ in range(200)] for s in clones])
    assert store.add("shared", 0) == 1600


# Process groups: many ranks, many clients.


def rank_of_group(rank, size, init_method, port):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(size), MASTER_ADDR=LOCAL,
                      MASTER_PORT=str(port), TORCHELASTIC_USE_AGENT_STORE="True",
                      GLOO_SOCKET_IFNAME="lo")
    dist.init_process_group("gloo", init_method=init_method, rank=rank, world_size=size,
                            timeout=60 * SECONDS)
    tensor = torch.full((1000,), float(rank + 1))
    dist.all_reduce(tensor)
    half = [r for r in range(size) if r % 2 == rank % 2]
    for members in ([r for r in range(size) if r % 2 == 0], [r for r in range(size) if r % 2 == 1]):
        group = dist.new_group(members)
        if members == half:
            mine = group
    part = torch.tensor([float(rank)])
    dist.all_reduce(part, group=mine)
    dist.barrier()
    dist.destroy_process_group()
    return tensor[-1].item(), part.item()


def check_process_group(init_method, port, size=4):
    expected = {rank: (10.0, 2.0 if rank % 2 == 0 else 4.0) for rank in range(size)}
    assert in_processes(size, rank_of_group, size, init_method, port) == expected


# torchrun's elastic rendezvous, without torchrun.


def node_of_rendezvous(node, port):
    from torch.distributed.elastic.rendezvous import RendezvousParameters
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as c10d
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

    parameters = RendezvousParameters("c10d", f"{LOCAL}:{port}", "job", 3, 3, local_addr=LOCAL,
                                      is_host="false", join_timeout=60)
    backend, store = c10d.create_backend(parameters)
    handler = create_handler(store, backend, parameters)
    seen = []
    for _ in range(2):
        info = handler.next_rendezvous()
        info.store.set(f"node{info.rank}", str(node))
        info.store.wait([f"node{rank}" for rank in range(info.world_size)])
        others = [int(info.store.get(f"node{rank}")) for rank in range(info.world_size)]
        assert others[info.rank] == node
        seen.append((info.rank, info.world_size, sorted(others)))
    store.barrier("rounds are over", 3, 60 * SECONDS)
    handler.shutdown()
    return seen


# The parts.


def torch_clients_on_our_server(acc_rendezvous, _):
    with our_server(acc_rendezvous) as port:
        store, other = client(port), client(port)
        check_calls(store)
        check_queues(store)
        check_waits(store, other)
        check_releases_that_cross_the_cancel(store, other)
        check_refusals(port)
        check_prefixes(store, other)
        check_barrier(port)
        check_clones(store)


def process_groups_on_our_server(acc_rendezvous, _):
    with our_server(acc_rendezvous) as port:
        check_process_group("env://", port)
    with our_server(acc_rendezvous, port):  # a new server without data of the first one
        check_process_group(f"tcp://{LOCAL}:{port}", port)


def elastic_handlers_on_our_server(acc_rendezvous, _):
    with our_server(acc_rendezvous) as port:
        seen = in_processes(3, node_of_rendezvous, port)
    for rounds in zip(*seen.values()):
        assert sorted(rank for rank, _, _ in rounds) == [0, 1, 2], seen
        assert all(size == 3 and nodes == [0, 1, 2] for _, size, nodes in rounds), seen


def our_client_on_torch_server(_, store_probe):
    for libuv in (True, False):
        server = dist.TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
        server.set("from_torch", "hello")
        subprocess.run([store_probe, LOCAL, str(server.port), *(["queues"] if libuv else [])],
                       check=True, timeout=240)
        assert server.get("from_acc") == b"\0\xff"
        assert server.get("inner/outer/k") == b"nested"


PARTS = (torch_clients_on_our_server, process_groups_on_our_server, elastic_handlers_on_our_server,
         our_client_on_torch_server)


def main():
    part, *programs = sys.argv[1:]
    print(f"torch {torch.__version__}")
    {f.__name__: f for f in PARTS}[part](*programs)
    print("ok")


if __name__ == "__main__":
    main()
