# SPDX-License-Identifier: Apache-2.0
"""States of torch's optimizers in a file (offload to NVMe): of those that treat each element of a parameter by itself.
A step reads the states of a few parameters at a time, lets the optimizer update these, and writes the states back. The
next ones are read meanwhile."""

import collections
import collections.abc
import ctypes as c
import functools
import os
import tempfile

import torch

from acclaunch import _rows
from acclaunch._library import ConfigError, NotSupportedError, library, sized
from acclaunch._local import Locals, has_hooks
from acclaunch._parameters import aligned
from acclaunch._runtime import release
from acclaunch._units import as_plain, grad_of

_PAGE = 4096
_Config = sized("FileMemoryConfig", ("folder", c.c_char_p), ("setting", c.c_char_p), ("nbytes", c.c_size_t),
                ("block_size", c.c_int64), *((name, c.c_int32) for name in (
                    "queue_depth", "intra_op_parallelism", "single_submit", "overlap_events", "buffer_count")))
_SETTING = "zero_optimization.offload_optimizer.nvme_path"
_IN_FILE = object()


@functools.cache
def _functions():
    span = (c.c_void_p, c.c_size_t, c.c_void_p, c.c_size_t)
    library().declare({"acc_file_memory_create": (c.POINTER(_Config), c.POINTER(c.c_void_p)),
                       "acc_file_memory_wait": (c.c_void_p,),
                       **{f"acc_file_memory_{name}": span for name in ("read", "start_reading", "write")}},
                      {"acc_file_memory_free": (None, c.c_void_p)})
    return library()


def _pages(nbytes):
    """Bytes of memory that begin at a page."""
    memory = torch.empty(nbytes + _PAGE, dtype=torch.uint8, device="cpu")
    return memory[-memory.data_ptr() % _PAGE:][:nbytes]


class _Memory:
    """Bytes in a file without a name. folder: on the disk; aio: DeepSpeed's block."""

    def __init__(self, folder, nbytes, buffer_count, aio):
        self._library = _functions()
        self.handle = self._library.make("file_memory_create", _Config(
            folder=os.fsencode(folder), setting=_SETTING.encode(), nbytes=nbytes, buffer_count=buffer_count,
            **{key: aio[key] for key in ("block_size", "queue_depth", "intra_op_parallelism", "single_submit",
                                         "overlap_events")}))
        release(self, self._library.file_memory_free, self.handle)

    def read(self, offset, to):
        if to.nbytes:
            self._library.file_memory_read(self.handle, offset, to.data_ptr(), to.nbytes)

    def start_reading(self, offset, to):
        if to.nbytes:
            self._library.file_memory_start_reading(self.handle, offset, to.data_ptr(), to.nbytes)

    def wait(self):
        self._library.file_memory_wait(self.handle)

    def write(self, offset, values):
        if values.nbytes:
            self._library.file_memory_write(self.handle, offset, values.data_ptr(), values.nbytes)


class _Place(collections.namedtuple("_Place", "offset shape dtype")):
    """Of a state: this rank's rows, at an offset of the file."""

    @property
    def nbytes(self):
        return self.shape.numel() * self.dtype.itemsize

    def in_buffer(self, buffer, begin):
        """The rows in a buffer whose first byte has the offset `begin`."""
        at = self.offset - begin
        return buffer[at:at + self.nbytes].view(self.dtype).view(self.shape)


class FileState(collections.abc.MutableMapping):
    """The state of a parameter, in the place of a dict. Values for each element are in the file: each look-up reads
    them, and what is to be kept must be assigned: a DTensor, or a whole tensor, of which this rank keeps its rows."""

    def __init__(self, memory, parameter, places):
        self.memory, self.parameter, self.places = memory, parameter, places
        self.held = {}

    def __getitem__(self, key):
        found = self.held[key]
        if found is not _IN_FILE:
            return found
        place = self.places[key]
        rows = torch.empty(place.shape, dtype=place.dtype, device="cpu")
        self.memory.read(place.offset, rows)
        return _rows.of_rows(rows, self.parameter)

    def __setitem__(self, key, value):
        if not self.is_filed(key, value):
            self.held[key] = value
            return
        like, place = self.parameter, self.places[key]
        value = _rows.distributed(value.detach(), like).redistribute(like.device_mesh, like.placements)
        self.memory.write(place.offset, value._local_tensor.to(place.dtype).contiguous())
        self.held[key] = _IN_FILE

    def is_filed(self, key, value):
        return key in self.places and _rows.is_elementwise(key, value, self.parameter)

    def __delitem__(self, key):
        del self.held[key]

    def __contains__(self, key):
        return key in self.held

    def __iter__(self):
        return iter(self.held)

    def __len__(self):
        return len(self.held)

    def __reduce__(self):
        return dict, (dict(self),)


def _in_memory(_, state_dict):
    """Makes the states of an optimizer's state dict those of one without a file."""
    state_dict["state"] = {key: dict(value) if isinstance(value, FileState) else value
                           for key, value in state_dict["state"].items()}


class _Piece(collections.namedtuple("_Piece", "offset nbytes parameters")):
    """Parameters whose states follow each other in the file, in whole pages."""


def _check_step(optimizer):
    """Refuses what would run once for each part of a step, and for the probe. A schedule of torch notes steps only."""
    what, step = "hooks of the steps", vars(optimizer).get("step")
    if not has_hooks(optimizer):
        if step is None or (hasattr(step, "_wrapped_by_lr_sched") and step.__wrapped__ is type(optimizer).step):
            return
        what = "a method step of the program's own"
    raise NotSupportedError(f"{what} of {type(optimizer).__name__} with offload_optimizer to nvme: the engine acc "
                            "makes a step in parts (docs/engine.md)")


def _elementwise_states(optimizer, group):
    """Names and dtypes of the states with a value for each element of a parameter: those of a step on another one."""
    probe = torch.nn.Parameter(torch.zeros(3, dtype=torch.float32, device="cpu"))
    probe.grad = torch.zeros_like(probe)
    made = type(optimizer)([{**group, "params": [probe]}])
    type(made).step.__wrapped__(made)  # without the hooks of all optimizers
    return {key: value.dtype for key, value in made.state[probe].items() if _rows.is_elementwise(key, value, probe)}


def _pieces(optimizer, limit):
    """Pieces of at most `limit` bytes, or of one parameter, and by parameter the place of each state."""
    pieces, places, at = [], {}, 0
    for group in optimizer.param_groups:
        kinds = _elementwise_states(optimizer, group)
        for each in group["params"] if kinds else ():
            rows = each._local_tensor
            nbytes = sum(aligned(rows.numel() * dtype.itemsize) for dtype in kinds.values())
            if each in places or not each.requires_grad:
                continue
            if not pieces or at + nbytes - pieces[-1].offset > limit:
                at = aligned(at, _PAGE)
                pieces.append(_Piece(at, 0, []))
            own = places[each] = {}
            for key, dtype in kinds.items():
                own[key] = _Place(at, rows.shape, dtype)
                at += aligned(own[key].nbytes)
            begin, _, members = pieces[-1]
            pieces[-1] = _Piece(begin, aligned(at - begin, _PAGE), [*members, each])
    return pieces, places


class FileStates:
    """The states of an optimizer. offload: DeepSpeed's section offload_optimizer; aio: its block aio. Parameters that
    are trained only later have theirs in memory. Raises ConfigError if the folder has no room for the file."""

    def __init__(self, optimizer, offload, aio):
        if offload.nvme_path is None:
            raise ConfigError(f"{_SETTING} is not set: offload to nvme needs a folder on the disk")
        _check_step(optimizer)
        self.optimizer, self.folder, self.unwritten = optimizer, os.fspath(offload.nvme_path), []
        self.pieces, places = _pieces(optimizer, aio["block_size"] * aio["queue_depth"])
        nbytes = self.pieces[-1].offset + self.pieces[-1].nbytes if self.pieces else 0
        self.memory = _Memory(self.folder, nbytes, offload.buffer_count, aio)
        self.states = {each: FileState(self.memory, each, own) for each, own in places.items()}
        self.numbers = {each: number for number, piece in enumerate(self.pieces) for each in piece.parameters}
        self.buffers = [_pages(max((each.nbytes for each in self.pieces), default=0)) for _ in range(2)]
        self._adopt()
        optimizer.register_state_dict_post_hook(_in_memory)

    def keep(self, parameter, state):
        """Makes `state` that of a parameter."""
        filed = self.states.get(parameter)
        if filed is not None:
            filed.clear()
            filed.update(state)
        self.optimizer.state[parameter] = state if filed is None else filed

    def _adopt(self):
        """Moves to the file what the program has given the optimizer, of parameters that it has not removed."""
        members = {each for group in self.optimizer.param_groups for each in group["params"]}
        for parameter, filed in self.states.items():
            given = self.optimizer.state.get(parameter, {})
            if given is not filed and (given or parameter in members):
                self.keep(parameter, given)
        _rows.distribute_states(self.optimizer)

    # ---- the step

    def step(self):
        optimizer = self.optimizer
        _check_step(optimizer)
        self._adopt()
        with as_plain():
            *parts, later = self._parts()
            for number, (piece, part) in enumerate(zip(self.pieces, parts)):
                if number == 0:
                    self._start_reading(number)
                self.memory.wait()
                if number + 1 < len(self.pieces):
                    self._start_reading(number + 1)
                self._update(piece, part, self._buffer(number))
            if any(later):
                with Locals(optimizer, later):
                    optimizer.step()
        self.memory.wait()  # for the writes, whose errors are the step's

    def _parts(self):
        """By each piece, and for those of its parameters that none has, what a step updates: a list of each group."""
        groups = self.optimizer.param_groups
        parts = [[[] for _ in groups] for _ in range(len(self.pieces) + 1)]
        for index, group in enumerate(groups):
            for each in group["params"]:
                number = self.numbers.get(each, -1)
                if number >= 0 or grad_of(each) is not None:  # of the others not the frozen ones
                    parts[number][index].append(each)
        return parts

    def _buffer(self, number):
        return self.buffers[number % 2][:self.pieces[number].nbytes]

    def _start_reading(self, number):
        self.memory.start_reading(self.pieces[number].offset, self._buffer(number))

    def _update(self, piece, part, buffer):
        states = collections.defaultdict(dict)
        for each in piece.parameters:
            own = self.states[each]
            states[each] = {key: _rows.of_rows(own.places[key].in_buffer(buffer, piece.offset), each)
                            if value is _IN_FILE else value for key, value in own.held.items()}
        with Locals(self.optimizer, part, states):
            self.optimizer.step()
        for each in piece.parameters:
            own = self.states[each]
            for key, value in states[each].items():
                if own.is_filed(key, value):
                    rows = own.places[key].in_buffer(buffer, piece.offset)
                    if value._local_tensor.data_ptr() != rows.data_ptr():
                        rows.copy_(value._local_tensor)
                    value = _IN_FILE
                own.held[key] = value
        self.memory.write(piece.offset, buffer)

    # ---- checkpoints

    def zeros(self, numel, dtype, device):
        """Zeros in a file without a name, which the system may write out at any time: for a part of a checkpoint. To be
        filled before `flush`."""
        if numel == 0:
            return torch.zeros(0, dtype=dtype, device=device)
        file = tempfile.TemporaryFile(dir=self.folder)
        self.unwritten.append(file)
        os.posix_fallocate(file.fileno(), 0, numel * dtype.itemsize)
        return torch.from_file(f"/proc/self/fd/{file.fileno()}", shared=True, size=numel, dtype=dtype, device=device)

    def flush(self):
        """Writes these zeros out. Raises OSError if the disk fails: a page that it has lost would read as zeros."""
        files, self.unwritten = self.unwritten, []
        try:
            for each in files:
                os.fsync(each.fileno())
        finally:
            for each in files:
                each.close()
