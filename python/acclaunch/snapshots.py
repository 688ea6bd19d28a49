# SPDX-License-Identifier: Apache-2.0
"""Snapshots of any torch program in host memory that the launcher holds (docs/engine.md, "Snapshots in memory"): with
FSDP2, DDP or Accelerate, on torch's engine or with --engine acc.

```python
from acclaunch.snapshots import Snapshots

snapshots = Snapshots(model=model, optimizer=optimizer, scheduler=scheduler)
for step in range(snapshots.resume(), steps):      # 0 at the first start
    …
    optimizer.step()
    snapshots.keep(step + 1)                       # copies every N steps (--memory_checkpoint_every N)
```
"""

import ctypes
import mmap
import os
import random
import struct
import sys
import typing
import warnings
import zlib

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from acclaunch._library import (ConfigError, InvalidArgumentError, NotSupportedError, PeerLostError,
                                memory_checkpoint_every, say)
from acclaunch._parameters import aligned
from acclaunch._rejoin import elastic
from acclaunch._rows import local_of, of_all_ranks
from acclaunch._runtime import from_bytes, to_bytes

_TENSOR = "acc.tensor"

made = False  # True when the program has made Snapshots


def _name_of(mesh):
    """What identifies a mesh; where the number of replicas may change, without it."""
    return [mesh.mesh.tolist() if elastic() is None else mesh.shape[-1], list(mesh.mesh_dim_names or ())]


def _mapped(function, value):
    """The value with function(each) in place of each value in dicts, lists and tuples."""
    if isinstance(value, dict) and _TENSOR not in value:
        return {key: _mapped(function, each) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_mapped(function, each) for each in value)
    return function(value)


class _Meshes:
    """Those of DTensors, and their placements, by descriptions that bytes can hold."""

    def __init__(self, tensors):
        found = [each for each in tensors if isinstance(each, DTensor)]
        self.meshes = {repr(_name_of(each.device_mesh)): each.device_mesh for each in found}
        self.placements = {repr(each): each for each in [Replicate(), Partial(), Partial("avg"), *map(Shard, range(8)),
                                                         *(one for each in found for one in each.placements)]}

    def described(self, tensor):
        """Raises InvalidArgumentError for a tensor that could not be made again."""
        mesh, placements = _name_of(tensor.device_mesh), [repr(each) for each in tensor.placements]
        if repr(mesh) not in self.meshes or not self.placements.keys() >= set(placements):
            raise InvalidArgumentError(f"a tensor has the mesh {mesh} and the placements {', '.join(placements)}, and "
                                       "no parameter has")
        return [list(tensor.shape), list(tensor.stride()), mesh, placements]

    def made(self, tensor, described):
        """The DTensor of these local values."""
        shape, stride, mesh, placements = described
        if repr(mesh) not in self.meshes:
            raise ConfigError(f"the snapshot has a tensor on the mesh {mesh}, on which no parameter is now")
        return DTensor.from_local(tensor, self.meshes[repr(mesh)], [self.placements[each] for each in placements],
                                  run_check=False, shape=torch.Size(shape), stride=tuple(stride))


def _packed(state, tensors, meshes):
    """The state with numbers of the tensors in their place, which are appended to `tensors`: of DTensors this rank's
    parts."""
    def pack(value):
        if not isinstance(value, torch.Tensor):
            return value
        made = {_TENSOR: len(tensors)}
        if isinstance(value, DTensor):
            made["sharded"] = meshes.described(value)
            value = value._local_tensor
        tensors.append(value.detach())
        return made
    return _mapped(pack, state)


def _unpacked(packed, tensors, meshes):
    """The reverse. tensors: copies of what was stored."""
    def unpack(value):
        if not isinstance(value, dict):
            return value
        tensor = tensors[value[_TENSOR]]
        return meshes.made(tensor, value["sharded"]) if "sharded" in value else tensor
    return _mapped(unpack, packed)


class _ModuleState:
    """All tensors of a module as they are in this process, without the hooks of state_dict, and its extra states."""

    def __init__(self, module):
        self.module = module

    def tensors(self):
        return dict([*self.module.named_parameters(), *self.module.named_buffers()])

    def _extra(self):
        return {name: each for name, each in self.module.named_modules()
                if type(each).get_extra_state is not torch.nn.Module.get_extra_state}

    def _shard_again(self, loads=False):
        """Frees whole parameters that a forward without a backward has left, as in an evaluation."""
        engine = sys.modules.get("acclaunch._fsdp2")
        for each in self.module.modules():
            handle = getattr(each, "_handle", None) if isinstance(each, FullyShardedDataParallel) else None
            if engine is not None and engine.state_of(each) is not None:
                engine.reshard(each)
                if loads:
                    engine.before_load(each)
            elif isinstance(each, FSDPModule):
                each.reshard()
            elif handle is not None and handle.uses_sharded_strategy and hasattr(
                    handle.flat_param, "_full_param_padded") and not handle.needs_unshard():  # there after a forward
                raise NotSupportedError("Snapshots.keep: the parameters of a FullyShardedDataParallel are whole after "
                                        "a forward without a backward: call keep before an evaluation, or use FSDP 2")

    def state_dict(self):
        self._shard_again()
        return {"tensors": self.tensors(),
                "extra": {name: each.get_extra_state() for name, each in self._extra().items()}}

    def load_state_dict(self, state):
        self._shard_again(loads=True)
        tensors, saved, extra = self.tensors(), state["tensors"], self._extra()
        if list(tensors) != list(saved) or set(extra) != set(state["extra"]):
            other = sorted(set(tensors) ^ set(saved)) or sorted(set(extra) ^ set(state["extra"])) or ["their order"]
            raise ConfigError(f"the snapshot is of another module: they differ in {other[0]}")
        for name, tensor in tensors.items():
            own, found = map(local_of, (tensor, saved[name]))
            if (own.shape, own.dtype) != (found.shape, found.dtype):
                raise ConfigError(f"the snapshot has {name} as {list(found.shape)} {found.dtype}, the module as "
                                  f"{list(own.shape)} {own.dtype}")
            with torch.no_grad():
                own.detach().copy_(found)
        for name, each in extra.items():
            each.set_extra_state(state["extra"][name])


class _EngineState(_ModuleState):
    """Of an engine of DeepSpeed (_deepspeed.Engine): its optimizer, schedule and counters too."""

    def state_dict(self):
        return {**super().state_dict(), "engine": self.module.state_in_memory()}

    def load_state_dict(self, state):
        super().load_state_dict(state)
        self.module.load_state_in_memory(state["engine"])


def _state_of(name, each, objects):
    """The object that keeps and loads the state of one of the program's; None if the state of an engine of DeepSpeed
    contains it."""
    deepspeed = sys.modules.get("acclaunch._deepspeed")
    if deepspeed is not None:
        if isinstance(each, deepspeed.Engine):
            return _EngineState(each)
        groups = getattr(each, "param_groups", ())
        engine = deepspeed.engine_of(each.parameters() if isinstance(each, torch.nn.Module) else
                                     [one for group in groups for one in group["params"]])
        if engine is not None:
            if groups and any(engine is one for one in objects.values()):
                return None
            raise InvalidArgumentError(f"Snapshots: {name} is a part of an engine of DeepSpeed: name the engine, "
                                       "which has further state")
    if any(cls.__name__ in ("DeepSpeedEngine", "ZeROOptimizer") for cls in type(each).__mro__):
        raise NotSupportedError(f"Snapshots: {name} is a {type(each).__name__} of DeepSpeed, whose state is kept in "
                                "memory only with --engine acc: save_checkpoint writes it")
    if not (hasattr(each, "state_dict") and hasattr(each, "load_state_dict")):
        raise InvalidArgumentError(f"Snapshots: {name} is a {type(each).__name__}, which has no state_dict and "
                                   "load_state_dict")
    return _ModuleState(each) if isinstance(each, torch.nn.Module) else each


class _RandomState:
    """The generators of random numbers of torch, Python and numpy."""

    def state_dict(self):
        state = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state()
        if "numpy" in sys.modules:
            kind, keys, *rest = sys.modules["numpy"].random.get_state()
            state["numpy"] = [kind, torch.from_numpy(keys.astype("int64")), *rest]
        return state

    def load_state_dict(self, state):
        torch.set_rng_state(state["torch"])
        random.setstate(state["python"])
        if "cuda" in state:
            torch.cuda.set_rng_state(state["cuda"])
        if "numpy" in state and "numpy" in sys.modules:
            kind, keys, *rest = state["numpy"]
            sys.modules["numpy"].random.set_state((kind, keys.numpy().astype("uint32"), *rest))


def _nbytes(meta, tensors):
    return aligned(len(meta)) + sum(aligned(each.nbytes) for each in tensors)


def _store(values, meta, tensors):
    """Writes a snapshot into a tensor of _nbytes(meta, tensors) bytes."""
    ctypes.memmove(values.data_ptr(), meta, len(meta))
    at = aligned(len(meta))
    for each in tensors:
        if each.numel():
            values[at:at + each.nbytes].view(each.dtype).view(each.shape).copy_(each)
        at += aligned(each.nbytes)


def _restored(values, meta_nbytes):
    """(meta, copies of the tensors) of a snapshot."""
    meta = from_bytes(ctypes.string_at(values.data_ptr(), meta_nbytes))
    tensors, at = [], aligned(meta_nbytes)
    for dtype, shape in meta["tensors"]:
        made = torch.empty(shape, dtype=dtype)
        if made.numel():
            made.copy_(values[at:at + made.nbytes].view(dtype).view(shape))
        tensors.append(made)
        at += aligned(made.nbytes)
    return meta, tensors


class _Place(typing.NamedTuple):
    """Where the file has a snapshot, and of what."""
    history: int  # number of the run of ranks that made it: another one may have made the step again
    step: int
    rank: int
    ranks: int
    meta_nbytes: int
    start: int  # first byte
    nbytes: int
    crc32: int
    complete: int  # 1: written last

    @property
    def made(self):
        return self.history, self.step


class _Memory:
    """The file in memory that the launcher holds for this rank. Its first page says where two snapshots are, behind it;
    the older one is replaced."""

    _HEAD, _MAGIC, _PAGE = struct.Struct("<8s7qII"), b"accsnap2", 4096

    def __init__(self, path, rank, ranks):
        self.rank, self.ranks = rank, ranks
        self.file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        if os.pread(self.file, 8, 0) not in (b"", bytes(8), self._MAGIC):
            raise NotSupportedError("Snapshots: the launcher's memory has the snapshots of an acc.CheckpointSeries, "
                                    "and a job has one kind of them")

    def _head(self, number):
        """The _Place of one of the two; None if it has none."""
        head = os.pread(self.file, self._HEAD.size, number * self._HEAD.size)
        magic, *values = self._HEAD.unpack(head.ljust(self._HEAD.size, b"\0"))
        return _Place(*values) if magic == self._MAGIC else None

    def _places(self):
        """A list of two: _Place, or None for one that is not whole or of another number of ranks."""
        own = self.rank, self.ranks, 1
        heads = [self._head(number) for number in range(2)]
        return [each if each and (each.rank, each.ranks, each.complete) == own else None for each in heads]

    def _put(self, number, place):
        os.pwrite(self.file, self._HEAD.pack(self._MAGIC, *place), number * self._HEAD.size)

    def _mapped(self, size):
        if os.fstat(self.file).st_size < size:
            os.posix_fallocate(self.file, 0, size)  # fails here, and not by SIGBUS in a copy
        return mmap.mmap(self.file, size)

    def _checksum(self, memory, place):
        return zlib.crc32(memoryview(memory)[place.start:place.start + place.nbytes])

    def history(self):
        """The newest one of the snapshots, also of those that are not whole; 0: there is none."""
        return max((head.history for head in map(self._head, range(2)) if head is not None), default=0)

    def steps(self):
        """(history, step) of the whole snapshots. Reads all their bytes."""
        return {each.made for each in self._places() if each is not None
                and self._checksum(self._mapped(each.start + each.nbytes), each) == each.crc32}

    def forget_after(self, made):
        """Drops snapshots that others may lack: those after (history, step), and of other numbers of ranks."""
        for number, place in enumerate(self._places()):
            head = self._head(number)
            if head is not None and (place is None or place.made > made):
                self._put(number, head._replace(complete=0))

    def _next(self, size):
        """Where a snapshot of `size` bytes replaces the older one: its number, and its first byte."""
        places = self._places()
        number = min(range(2), key=lambda each: places[each].made if places[each] else (-1, -1))
        other = places[1 - number]
        fits_before = other is None or self._PAGE + size <= other.start
        return number, self._PAGE if fits_before else aligned(other.start + other.nbytes, self._PAGE)

    def lacks(self, size):
        """Takes the memory for a snapshot of `size` bytes. Returns why there is none; both are left then."""
        try:
            self._mapped(self._next(size)[1] + size)
        except OSError as error:
            return str(error)

    def write(self, made, meta, tensors):
        """Replaces the older snapshot."""
        size = _nbytes(meta, tensors)
        number, start = self._next(size)
        memory = self._mapped(start + size)
        place = _Place(*made, self.rank, self.ranks, len(meta), start, size, 0, 0)
        self._put(number, place)
        _store(torch.frombuffer(memory, dtype=torch.uint8)[start:start + size], meta, tensors)
        self._put(number, place._replace(crc32=self._checksum(memory, place), complete=1))

    def read(self, made):
        """(meta, copies of the tensors) of a snapshot in `steps`."""
        return _restored(*self.image(made)[::-1])

    def image(self, made):
        """The size of the meta, and all bytes, of a snapshot in `steps`."""
        place = next(each for each in self._places() if each is not None and each.made == made)
        memory = self._mapped(place.start + place.nbytes)
        return place.meta_nbytes, torch.frombuffer(memory, dtype=torch.uint8)[place.start:place.start + place.nbytes]


class Snapshots:
    """Keeps the state of these objects in memory that outlives this process, with the setting
    memory_checkpoint_every; without it `keep` and `resume` do nothing. All ranks make it.

    objects: by names, modules and everything with state_dict() and load_state_dict(): optimizers of torch and of
    Accelerate, schedulers, loaders with a position. Their states hold tensors, numbers, strings, bytes, and dicts,
    lists and tuples of them. The random numbers of torch, Python and numpy are kept too. Raises NotSupportedError for
    engines of DeepSpeed, InvalidArgumentError for a module that is trained without its optimizer, for an object without
    these functions, and before torch.distributed is initialized."""

    def __init__(self, **objects):
        global made
        made = True
        self.random = _RandomState()
        self.objects = {"acc.random": self.random}
        for name, each in objects.items():
            state = _state_of(name, each, objects)
            if state is not None:
                self.objects[name] = state
        if any(each.requires_grad for state in self.objects.values() if type(state) is _ModuleState
               for each in state.module.parameters()) and not any(
                   hasattr(each, "param_groups") for each in self.objects.values()):
            raise InvalidArgumentError("Snapshots: there is a module that is trained, and no optimizer: name it too, "
                                       "since its state is part of the training")
        is_group = dist.is_available() and dist.is_initialized()
        if not is_group and int(os.environ.get("WORLD_SIZE") or 1) > 1:
            raise InvalidArgumentError("Snapshots: torch.distributed has no process group yet, by which the ranks "
                                       "agree: initialize it before (programs of acclaunch.torch keep their state by "
                                       "CheckpointSeries.keep_in_memory)")
        self.rank, self.ranks = (dist.get_rank(), dist.get_world_size()) if is_group else (0, 1)
        self.every = memory_checkpoint_every()
        self.membership = elastic()
        # The ranks of a machine, if all machines have as many: the next one has copies of their snapshots. Of replicas
        # each machine has the same.
        self.each_machine = int(os.environ.get("LOCAL_WORLD_SIZE") or 1)
        self.copies = self.membership is None and self.each_machine < self.ranks \
            and not os.environ.get("ACC_LOCAL_WORLD_SIZES") and torch.device("cpu") in dist.group.WORLD._device_types
        self.history = 0  # of what is kept now
        self.memory = self._open() if self.every else None

    def _open(self):
        """The memory of this rank; None on all ranks if one has none. Collective."""
        paths, own = os.environ.get("ACC_SNAPSHOT_MEMORY", "").split(":"), int(os.environ.get("LOCAL_RANK") or 0)
        memory = refused = lacking = None
        try:
            if own < len(paths) and paths[own]:
                memory = _Memory(paths[own], *((self.rank, self.ranks) if self.membership is None else
                                               (own, self.each_machine)))
            else:
                lacking = "the launcher has given none"
        except NotSupportedError as error:
            refused = str(error)
        except OSError as error:
            lacking = str(error)
        every = of_all_ranks((refused, lacking, memory.history() if memory else 0,
                              random.SystemRandom().getrandbits(32)))
        # After all that these ranks have, and another one than that of ranks that are not here.
        self.history = ((max(history for _, _, history, _ in every) >> 32) + 1 << 32) + every[0][3]
        for each, *_ in every:
            if each is not None:
                raise NotSupportedError(each)
        for rank, (_, why, *_) in enumerate(every):
            if why is not None:
                if self.rank == 0:
                    warnings.warn(f"no snapshots in memory: rank {rank} has no memory for them: {why}")
                return None
        return memory

    def _meshes(self):
        return _Meshes(each for state in self.objects.values() if isinstance(state, _ModuleState)
                       for each in state.tensors().values())

    def keep(self, step):
        """Copies the states if `step`, the number of steps made, is a multiple of memory_checkpoint_every. All ranks
        call it after the same steps; returns True if it has copied. Of the last two snapshots that were begun one is
        always whole on all ranks. Raises InvalidArgumentError, with the name, for a state that could not be loaded;
        PeerLostError if the ranks of an elastic job (--elastic_replicas) change now, for which all ranks keep any step:
        the engine begins the program again."""
        if self.memory is None:
            return False
        leaves = self.membership is not None and any(of_all_ranks(self.membership.is_left()))
        kept = (leaves or step % self.every == 0) and self._keep(step)
        if leaves:
            raise PeerLostError("the membership of the job changes after this step")
        return kept

    def _keep(self, step):
        tensors, packed = [], {}
        states = {name: each.state_dict() for name, each in self.objects.items()}
        meshes = self._meshes()  # now that no parameter is whole
        for name, each in states.items():
            try:
                packed[name] = _packed(each, tensors, meshes)
                from_bytes(to_bytes(packed[name]))
            except Exception as error:
                raise InvalidArgumentError(f"Snapshots: the state of {name} cannot be kept: tensors, numbers, strings, "
                                           f"bytes, dicts, lists and tuples of them can ({error})") from error

        def meta(**values):
            return to_bytes({"objects": packed, "tensors": [(each.dtype, list(each.shape)) for each in tensors],
                             **values})

        copied = {}
        if self.copies:
            copied["copied"], copy = self._exchange(meta(), tensors)
            tensors.append(copy)
        made = meta(**copied)
        # Before a rank writes, all have the snapshot before this one, whose place is not written now.
        for rank, why in enumerate(of_all_ranks(self.memory.lacks(_nbytes(made, tensors)))):
            if why is not None:  # else the next one would replace the last one that this rank has
                if self.rank == 0:
                    warnings.warn(f"no snapshot of step {step} in memory: rank {rank} has no memory for it: {why}")
                return False
        self.memory.write((self.history, step), made, tensors)
        return True

    def _exchange(self, meta, tensors):
        """Sends a snapshot to the next machine. Returns that of a rank of the machine before: the size of its meta, and
        its bytes. Collective."""
        to, from_ = ((self.rank + each) % self.ranks for each in (self.each_machine, -self.each_machine))
        image = torch.zeros(_nbytes(meta, tensors), dtype=torch.uint8)
        _store(image, meta, tensors)
        sizes = of_all_ranks((len(meta), image.numel()))
        meta_nbytes, nbytes = sizes[from_]
        copy = torch.empty(nbytes, dtype=torch.uint8)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, image, to), dist.P2POp(dist.irecv, copy, from_)]):
            work.wait()
        return meta_nbytes, copy

    def _read(self, made, holders):
        """The snapshot of (history, step). holders: by rank that lacks it, the one that sends it. Collective."""
        meta, tensors = self.memory.read(made) if self.rank not in holders else (None, None)
        for rank, holder in holders.items():
            if self.rank == holder:
                nbytes, image = (meta["copied"], tensors[-1]) if self.copies else self.memory.image(made)
                dist.send(torch.tensor([nbytes, image.numel()]), rank)
                dist.send(image, rank)
            elif self.rank == rank:
                sizes = torch.empty(2, dtype=torch.int64)
                dist.recv(sizes, holder)
                image = torch.empty(int(sizes[1]), dtype=torch.uint8)
                dist.recv(image, holder)
                meta, tensors = _restored(image, int(sizes[0]))
        return meta["objects"], tensors

    def _whole(self, every):
        """The newest (history, step) that all ranks have or can get, and by rank that lacks it, one that sends it;
        (None, {}) if there is none. every: those of each rank."""
        for made in sorted(set.union(*every), reverse=True):
            having = [rank for rank, steps in enumerate(every) if made in steps]
            holders = {}
            for rank in sorted(set(range(self.ranks)).difference(having)):
                places = [(rank + self.each_machine) % self.ranks] if self.copies else \
                    [] if self.membership is None else range(rank % self.each_machine, self.ranks, self.each_machine)
                holders[rank] = next((each for each in places if each in having), None)
            if None not in holders.values():
                return made, holders
        return None, {}

    def resume(self, loaded=None):
        """Loads the newest snapshot that all ranks have, and returns its step; 0 if there is none, with a line that
        says why after a restart. A rank on a machine that is new gets its snapshot from the machine after it. All ranks
        call it at the start, when all objects are made. loaded: the step whose state the objects have already, for
        example from the disk, which is returned if the snapshot is older. Raises ConfigError, with the name, if the
        snapshot is of other objects."""
        if self.memory is None:
            return loaded or 0
        every = of_all_ranks(self.memory.steps())
        made, holders = self._whole(every)
        is_older = made is not None and loaded is not None and made[1] < loaded
        if is_older:
            made, holders = None, {}
        self.memory.forget_after((-1, -1) if made is None else made)
        step = None if made is None else made[1]
        restarts = int(os.environ.get("TORCHELASTIC_RESTART_COUNT") or 0)
        if self.rank == 0 and (step is not None or restarts):
            without = ", ".join(str(rank) for rank, each in enumerate(every) if not each)
            say(f"no snapshot in memory of rank {without} of {self.ranks}" if step is None and without else
                f"no snapshot in memory as new as step {loaded}" if is_older else
                "no snapshot in memory that all ranks have" if step is None else
                f"resuming from step {step} in memory" + (
                    f"; {len(holders)} snapshots from other machines" if holders else ""))
        if step is None:
            return loaded or 0
        packed, tensors = self._read(made, holders)
        meshes = self._meshes()
        if list(packed) != list(self.objects):
            raise ConfigError(f"the snapshot is of {', '.join(packed)}, and the program names "
                              f"{', '.join(self.objects)}")
        for name, each in self.objects.items():
            if each is not self.random or self.copies or self.rank not in holders:  # else those of another rank
                each.load_state_dict(_unpacked(packed[name], tensors, meshes))
        if holders:
            self._keep(step)  # each machine has its part before the next one can be lost
        return step
