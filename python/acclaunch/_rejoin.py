# SPDX-License-Identifier: Apache-2.0
"""`--rejoin` with `--engine acc`. A lost rank ends the program of each other rank by an exception. This module then
begins the program again in the same process: so all ranks make the same calls as the processes that have the ranks that
were lost, and go on from where they go on (docs/engine.md, "Ranks that are lost")."""

import contextlib
import ctypes as c
import datetime
import functools
import gc
import importlib.machinery
import logging
import multiprocessing
import os
import pathlib
import runpy
import socket
import struct
import sys
import threading
import time
import traceback

import torch
import torch.distributed as dist

from acclaunch._library import (AccConnectionError, AccTimeoutError, CollectiveError, ConfigError, Error,
                                PeerLostError, library, memory_checkpoint_every, sized)

_log = logging.getLogger("acclaunch")
_GOES_ON, _LOST, _LAST, _ENDED = range(4)  # acc_epoch_state
_UNTIL_KNOWN_MS, _UNTIL_REPLACED_MS = 30_000, 30 * 60 * 1000  # torch's timeout of a group
_ATTEMPT = datetime.timedelta(seconds=5)  # to connect to a store
_Meeting = sized("Meeting", ("epoch", c.c_uint32), ("host", c.c_char_p), ("port", c.c_int32), ("secret", c.c_char_p),
                 ("restart_count", c.c_int32), ("machine_rank", c.c_int32), ("num_machines", c.c_int32))
_CALLS = {
    "acc_membership_open": (c.c_char_p, c.POINTER(c.c_void_p)),
    "acc_membership_enter": (c.c_void_p, c.c_int64, c.POINTER(_Meeting)),
    "acc_membership_state": (c.c_void_p, c.c_int64, c.POINTER(c.c_int32)),
    "acc_membership_joined": (c.c_void_p, c.c_int32),
}


def _sockets():
    """The sockets of this process: descriptors, with what the kernel calls them."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own
            link = os.readlink(f"/proc/self/fd/{name}")
            if link.startswith("socket:"):
                found.add((int(name), link))
    return found


def _connect_as_peers(address):
    """Connects to Gloo, and closes, in place of all peers that are to connect: each first sends the number of the pair
    (gloo/transport/tcp/listener.cc)."""
    for number in range(int(os.environ["WORLD_SIZE"])):
        with contextlib.suppress(OSError), socket.create_connection(address[:2], timeout=1) as peer:
            peer.sendall(struct.pack("n", number))


class _Connections:
    """The sockets of torch's process groups and stores in one epoch. Gloo waits for ever for a machine that has lost
    its power, and for a rank that waits for no one any more."""

    def __init__(self):
        self.known, self.before = set(), None

    @contextlib.contextmanager
    def opening(self):
        """A context in which torch opens some."""
        if self.before is not None:  # in such a context
            yield
            return
        self.before = _sockets()
        try:
            yield
        finally:
            self.known |= _sockets() - self.before
            self.before = None

    def end(self):
        """Ends the waits of this process and of its peers. Called by another thread, again and again, since Gloo tries
        three times more to connect."""
        before, now = self.before, _sockets()
        opened = now - before if before is not None else set()
        for descriptor, link in now & self.known | opened:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(descriptor)) as each:
                if not each.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):  # an end of which aborts Gloo
                    each.shutdown(socket.SHUT_RDWR)
                elif (descriptor, link) in opened - self.known:
                    self.known.add((descriptor, link))
                    _connect_as_peers(each.getsockname())


class _Membership:
    """This process's place in the epochs of the job."""

    def __init__(self, path):
        library().declare(_CALLS, {"acc_membership_free": (None, c.c_void_p)})
        self.path = path
        self.handle = self._open()

    def _open(self):
        return library().make("membership_open", self.path.encode())

    def enter(self):
        """Waits for an epoch that is new to this process, and puts into the environment where its ranks meet. Raises
        CollectiveError if the job ends."""
        meeting = _Meeting()
        library().membership_enter(self.handle, _UNTIL_REPLACED_MS, meeting)
        self.epoch, self.stores, self.connections = meeting.epoch, [], _Connections()
        dist.distributed_c10d._world.group_count = 1000 * self.epoch  # else names would be those of groups of before
        self.is_elastic = meeting.num_machines > 0
        if self.is_elastic:
            ranks, local_rank = int(os.environ["LOCAL_WORLD_SIZE"]), int(os.environ["LOCAL_RANK"])
            os.environ.update(GROUP_RANK=str(meeting.machine_rank), GROUP_WORLD_SIZE=str(meeting.num_machines),
                              RANK=str(meeting.machine_rank * ranks + local_rank),
                              WORLD_SIZE=str(meeting.num_machines * ranks))
            os.environ.update(ROLE_RANK=os.environ["RANK"], ROLE_WORLD_SIZE=os.environ["WORLD_SIZE"])
        threading.Thread(target=self._watch, args=(self.epoch, self.connections), daemon=True, name="acc epoch").start()
        os.environ.update(MASTER_ADDR=meeting.host.decode(), MASTER_PORT=str(meeting.port),
                          ACC_JOB_SECRET=meeting.secret.decode(), ACC_MEMBERSHIP=f"{self.path}@{meeting.epoch}",
                          ACC_DATA_ROUND=str(meeting.epoch), TORCHELASTIC_RESTART_COUNT=str(meeting.restart_count))

    def _watch(self, epoch, connections):
        """Ends the connections when ranks of the epoch are lost."""
        handle, meeting, state = self._open(), _Meeting(), _LOST
        with contextlib.suppress(Error):
            library().membership_enter(handle, 0, meeting)
            while meeting.epoch == epoch and (state := self._state(60_000, handle)) in (_GOES_ON, _ENDED):
                time.sleep(0.2 if state == _ENDED else 0)
        library().membership_free(handle)
        while state == _LOST and self.connections is connections:
            connections.end()
            time.sleep(0.1)

    def joined(self):
        library().membership_joined(self.handle, int(os.environ["LOCAL_RANK"]))

    def has_lost(self, error):
        """True if the program has ended by this error because ranks are lost, or leave. A connection may end before the
        launcher knows."""
        waits = any(isinstance(each, (AccConnectionError, AccTimeoutError, CollectiveError, ConnectionError,
                                      dist.DistError)) or "gloo" in str(each) for each in _chain(error))
        return isinstance(error, Exception) and self._state(_UNTIL_KNOWN_MS if waits else 0) in (_LOST, _ENDED)

    def is_left(self):
        """True if machines join, and the ranks are to leave the epoch after their step."""
        return self.is_elastic and self._state(0) == _ENDED

    def check(self):
        if self._state(0) != _GOES_ON:
            raise PeerLostError("the job has lost a rank while the ranks meet")

    def _state(self, timeout_ms, handle=None):
        return library().read("membership_state", c.c_int32, handle or self.handle, timeout_ms)


def _chain(error):
    """An exception and those that it was raised for."""
    found = []
    todo = [error]
    while todo:
        each = todo.pop()
        if each is not None and each not in found:
            found.append(each)
            todo += [each.__cause__, each.__context__]
    return found


class _EpochStore(dist.Store):
    """The job's store in one epoch. A wait for a key ends when a rank is lost, which may be the one that should set
    it."""

    def __init__(self, membership, store):
        super().__init__()
        self.membership, self.store = membership, dist.PrefixStore(f"epoch{membership.epoch}", store)
        membership.stores.append(self)  # torch keeps only what of it is in C++

    def wait(self, keys, timeout=None):
        end = time.monotonic() + (timeout or self.store.timeout).total_seconds()
        pause = 0.001
        while not self.store.check(keys):
            self.membership.check()
            if time.monotonic() > end:
                raise dist.DistStoreError(f"no value of {', '.join(keys)} in the job's store in time")
            time.sleep(pause)
            pause = min(2 * pause, 0.05)

    def get(self, key):
        self.wait([key])
        return self.store.get(key)

    def multi_get(self, keys):
        self.wait(keys)
        return self.store.multi_get(keys)

    def clone(self):
        return self


def _passed_on(name):
    return lambda self, *arguments: getattr(self.store, name)(*arguments)


for _name in ("set", "compare_set", "add", "check", "delete_key", "num_keys", "append", "multi_set", "has_extended_api",
              "set_timeout"):
    setattr(_EpochStore, _name, _passed_on(_name))
_EpochStore.deleteKey = _EpochStore.delete_key  # the name by which a PrefixStore calls it


class _Program:
    """What this process had when it began its program."""

    def __init__(self):
        self.environment, self.folder, self.stderr = dict(os.environ), os.getcwd(), sys.stderr
        self.random = torch.get_rng_state()

    def forget(self, error):
        """Drops all that the program has made: what its frames, its variables and the modules beside it hold."""
        for each in _chain(error):
            traceback.clear_frames(each.__traceback__)
            each.__traceback__ = None
        for name in ("last_type", "last_value", "last_traceback", "last_exc"):
            vars(sys).pop(name, None)
        main = vars(sys.modules["__main__"])
        for name in [each for each in main if not (each.startswith("__") and each.endswith("__"))]:
            del main[name]
        spec = main["__spec__"]
        folder = pathlib.Path(os.path.realpath(main["__file__"])).parents[spec.name.count(".") if spec else 0]
        for name in [name for name, each in sys.modules.items() if _is_beside(folder, name, each)]:
            del sys.modules[name]

    def restore(self):
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)
        sys.stderr, sys.excepthook = self.stderr, self.hook
        torch.set_rng_state(self.random)
        torch.set_grad_enabled(True)
        torch.set_default_dtype(torch.float32)

    def run(self):
        words = sys.orig_argv[1:]  # of `python [-u] -m MODULE …` or `python [-u] SCRIPT …`
        words = words[1:] if words[0] == "-u" else words
        main = vars(sys.modules["__main__"])
        if words[0] == "-m":
            sys.argv[:] = [main["__file__"], *words[2:]]
            runpy.run_module(main["__spec__"].name, run_name="__main__", alter_sys=True)
        else:
            sys.argv[:] = words
            exec(importlib.machinery.SourceFileLoader("__main__", main["__file__"]).get_code("__main__"), main)


def _is_beside(folder, name, module):
    """True for a module that was found in the program's folder, and may keep values of the run that has ended."""
    place = folder / name.replace(".", "/")
    path = getattr(module, "__file__", None)
    return path is not None and name.split(".")[0] not in ("__main__", "acclaunch") and os.path.realpath(path) in (
        f"{place}.py", f"{place}/__init__.py")


def _clear_caches():
    """Of DTensors, which find meshes by their ranks, and would give those of before with the names of their groups."""
    clear = getattr(torch._C, "_clear_DTensor_sharding_propagator_cache", None)
    if clear is not None:
        clear()
    tensor = sys.modules.get("torch.distributed.tensor")
    propagator = tensor.DTensor._op_dispatcher.sharding_propagator if tensor is not None else None
    for holder in [each for name, each in sys.modules.items() if name.startswith("torch.distributed.tensor.")] + [
            propagator, type(propagator)]:
        for each in list(getattr(holder, "__dict__", {}).values()):
            if not isinstance(each, type) and callable(getattr(each, "cache_clear", None)):
                each.cache_clear()


def _leave_groups():
    """Ends all groups of this process, also for ranks that wait for it, and drops what the package and Accelerate keep
    of them."""
    runtime, process_group, sharded, flat, engines, saves = (sys.modules.get(f"acclaunch.{name}") for name in (
        "_runtime", "process_group", "_fsdp2", "_fsdp1", "_deepspeed", "_save_async"))
    for each in [made for each in runtime._runtimes if (made := each()) is not None] if runtime else ():
        with contextlib.suppress(Error):
            each.abort(f"rank {each.rank} gives up groups that have lost a rank")
    if dist.is_initialized():
        with contextlib.suppress(Exception):
            dist.destroy_process_group()
    _clear_caches()
    if process_group is not None:
        process_group._generations.clear()
    if sharded is not None:
        sharded.forget()
    if flat is not None:
        flat._whole.clear()
    if engines is not None:
        engines.leave_groups()
    if saves is not None:
        saves.forget()
    state = sys.modules.get("accelerate.state")
    if state is not None:
        state.AcceleratorState._reset_state(reset_partial_state=True)
        state.GradientState._reset_state()


def _begin_again(membership, program, hook, kind, error, trace):
    """In place of sys.excepthook, which is `hook`. Torch calls it by a hook of its own, in which sys.stderr is a
    buffer."""
    while membership.has_lost(error):
        _log.info("the program begins again after the loss of a rank", exc_info=error)
        _leave_groups()
        program.forget(error)
        del kind, trace, error
        gc.collect()
        program.restore()
        try:
            membership.enter()
            program.run()
        except SystemExit:
            raise
        except BaseException as raised:  # noqa: BLE001: as at the end of a program
            kind, error, trace = type(raised), raised, _without_own_frames(raised.__traceback__)
        else:
            raise SystemExit(0)
    hook(kind, error, trace)


def _without_own_frames(trace):
    while trace is not None and trace.tb_frame.f_globals is globals():
        trace = trace.tb_next
    return trace


def _meet_in_epoch(membership):
    """Gives torch an _EpochStore, notes the connections that it opens, and tells the launcher when the ranks have
    met."""
    rendezvous, c10d = sys.modules["torch.distributed.rendezvous"], dist.distributed_c10d
    create_store, init, make = (rendezvous._create_c10d_store, c10d.init_process_group, c10d._new_process_group_helper)

    @functools.wraps(create_store)
    def create_in_epoch(hostname, port, rank, world_size, timeout, *arguments, **keywords):
        """Connects in attempts: torch waits up to a minute between two of its own, also when the machine of the store
        is lost."""
        end = time.monotonic() + timeout.total_seconds()
        with membership.connections.opening():
            while True:
                membership.check()
                try:
                    store = create_store(hostname, port, rank, world_size, min(timeout, _ATTEMPT), *arguments,
                                         **keywords)
                    break
                except dist.DistError:
                    if time.monotonic() > end:
                        raise
        store.set_timeout(timeout)
        return _EpochStore(membership, store)

    @functools.wraps(make)
    def make_group(*arguments, **keywords):
        with membership.connections.opening():
            return make(*arguments, **keywords)

    @functools.wraps(init)
    def init_process_group(*arguments, **keywords):
        init(*arguments, **keywords)
        membership.joined()

    rendezvous._create_c10d_store, c10d._new_process_group_helper = create_in_epoch, make_group
    c10d.init_process_group = dist.init_process_group = init_process_group


membership = None  # of this process


def elastic():
    """The membership of a job whose ranks may be others when the program begins again (--elastic_replicas); else
    None."""
    return membership if membership is not None and membership.is_elastic else None


def install():
    """In the processes of a job with --rejoin: in a worker, but not in what it starts."""
    path = os.environ.get("ACC_MEMBERSHIP", "")
    if not path.startswith(f"required:/proc/{os.getppid()}/") or multiprocessing.parent_process() is not None:
        return
    global membership
    program, membership = _Program(), _Membership(path)
    membership.enter()
    if membership.is_elastic and not memory_checkpoint_every():
        raise ConfigError("elastic_replicas needs snapshots in memory: set memory_checkpoint_every")
    _meet_in_epoch(membership)
    program.hook = sys.excepthook = functools.partial(_begin_again, membership, program, sys.excepthook)
