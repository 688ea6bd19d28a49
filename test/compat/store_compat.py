"""Our store against PyTorch's: store_compat.py PART ACC_RENDEZVOUS STORE_PROBE

PART is torch_clients_on_our_server or our_client_on_torch_server. Exit 77: no torch here.
"""

import contextlib
import datetime
import os
import subprocess
import sys
import threading

try:
    import torch
    import torch.distributed as dist
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SECONDS = datetime.timedelta(seconds=1)
LOCAL = "127.0.0.1"


@contextlib.contextmanager
def our_server(program):
    server = subprocess.Popen([program, "--port", "0"], stdout=subprocess.PIPE, text=True)
    try:
        line = server.stdout.readline()
        assert line.startswith("listening on "), line
        yield int(line.rsplit(":", 1)[1])
    finally:
        server.terminate()
        assert server.wait(timeout=10) == 0, "the server did not end cleanly"


def client(port, timeout=30):
    return dist.TCPStore(LOCAL, port, is_master=False, timeout=timeout * SECONDS)


def raises(error, call):
    try:
        call()
    except error:
        return True
    return False


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
    large = os.urandom(8 * 1024 * 1024)
    store.set("large", large)
    assert store.get("large") == large


def check_queues(store):
    store.queue_push("q", "x")
    store.queue_push("q", "y")
    assert store.queue_len("q") == 2
    assert store.queue_pop("q") == b"x" and store.queue_pop("q") == b"y"
    assert raises(dist.QueueEmptyError, lambda: store.queue_pop("q", block=False))


def check_waits(store, other):
    started = threading.Barrier(2)

    def release():
        started.wait()
        other.set("late1", "1")
        other.set("late2", "2")

    thread = threading.Thread(target=release)
    thread.start()
    started.wait()
    store.wait(["late1", "late2"], 30 * SECONDS)
    thread.join()
    assert raises(dist.DistStoreError, lambda: store.wait(["never"], 0.1 * SECONDS))
    other.set("never", "after the time limit")  # must not disturb the next answers
    assert store.add("after", 1) == 1


def check_prefixes(store, raw):
    nested = dist.PrefixStore("outer", dist.PrefixStore("inner", store))
    nested.set("k", "nested")
    assert raw.get("inner/outer/k") == b"nested"
    assert nested.get("k") == b"nested"


def check_barrier(port):
    if not hasattr(dist.TCPStore, "barrier"):
        return
    stores = [client(port) for _ in range(3)]
    threads = [threading.Thread(target=s.barrier, args=("b", 3, 30 * SECONDS)) for s in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "the barrier does not release"


RANK = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
rank = dist.get_rank()
tensor = torch.full((1000,), float(rank + 1))
dist.all_reduce(tensor)
assert tensor.eq(3.0).all(), tensor
dist.barrier()
dist.destroy_process_group()
"""


def check_process_group(port):
    ranks = []
    for rank in range(2):
        env = dict(
            os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR=LOCAL, MASTER_PORT=str(port),
            TORCHELASTIC_USE_AGENT_STORE="True", GLOO_SOCKET_IFNAME="lo",
        )
        ranks.append(subprocess.Popen([sys.executable, "-c", RANK], env=env))
    codes = [rank.wait(timeout=120) for rank in ranks]
    assert codes == [0, 0], codes


def torch_clients_on_our_server(acc_rendezvous, _):
    with our_server(acc_rendezvous) as port:
        store, other = client(port), client(port)
        check_calls(store)
        check_queues(store)
        check_waits(store, other)
        check_prefixes(store, other)
        check_barrier(port)
        check_process_group(port)


def our_client_on_torch_server(_, store_probe):
    for libuv in (True, False):
        server = dist.TCPStore(LOCAL, 0, is_master=True, wait_for_workers=False, use_libuv=libuv)
        server.set("from_torch", "hello")
        subprocess.run([store_probe, LOCAL, str(server.port)], check=True, timeout=60)
        assert server.get("from_acc") == b"\0\xff"
        assert server.get("inner/outer/k") == b"nested"


def main():
    part, *programs = sys.argv[1:]
    print(f"torch {torch.__version__}")
    {f.__name__: f for f in (torch_clients_on_our_server, our_client_on_torch_server)}[part](*programs)
    print("ok")


if __name__ == "__main__":
    main()
