# SPDX-License-Identifier: Apache-2.0
"""A torch ProcessGroup whose collectives on CPU tensors run in libacc_runtime (acc/collectives.h)."""

import collections
import ctypes as c
import datetime
import functools
import logging
import os
import queue
import threading
import typing
import zlib

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from acclaunch import _library

_log = logging.getLogger(__name__)
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3, torch.int8: 4,
             torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.uint8: 8, torch.bool: 9}
# acc_op has the values of torch's enumeration.
_OPS = {op: int(op.value) for op in (
    dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN,
    dist.ReduceOp.MAX, dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)}
_LINEAR = (dist.ReduceOp.SUM, dist.ReduceOp.AVG)


# --- the library ---

_SetFunction = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t)
_GetFunction = c.CFUNCTYPE(c.c_int, c.c_void_p, c.c_char_p, c.c_void_p, c.c_size_t,
                           c.POINTER(c.c_size_t))


class _Config(c.Structure):
    _fields_ = [("size", c.c_size_t), ("rank", c.c_int32), ("num_ranks", c.c_int32),
                ("ranks", c.POINTER(c.c_int32)), ("name", c.c_char_p), ("timeout_ms", c.c_int64),
                ("secret", c.c_char_p), ("set", _SetFunction), ("get", _GetFunction),
                ("context", c.c_void_p)]


_P, _N, _I, _T = c.c_void_p, c.c_size_t, c.c_int32, c.c_int64
_CALLS = {
    "acc_group_create": (c.POINTER(_Config), c.POINTER(_P)),
    "acc_group_abort": (_P, c.c_char_p),
    "acc_group_check": (_P,),
    "acc_group_refuse": (_P,),
    "acc_group_barrier": (_P, _T, _P),
    "acc_group_all_reduce": (_P, _P, _N, _I, _I, _T, _P),
    "acc_group_reduce": (_P, _P, _N, _I, _I, _I, _T, _P),
    "acc_group_reduce_scatter": (_P, _P, _P, _N, _I, _I, _T, _P),
    "acc_group_broadcast": (_P, _P, _N, _I, _T, _P),
    "acc_group_all_gather": (_P, _P, _N, _P, _P, _T, _P),
    "acc_group_gather": (_P, _P, _P, _N, _I, _T, _P),
    "acc_group_scatter": (_P, _P, _P, _N, _I, _T, _P),
    "acc_group_all_to_all": (_P, _P, _P, _P, _P, _T, _P),
    "acc_group_send": (_P, _P, _N, _I, _I, _T, _P),
    "acc_group_receive": (_P, _P, _N, _I, _I, _T, _P, _P),
    "acc_work_wait": (_P, _T),
}


# Functions that cannot fail, as in _library.
_OTHERS = {"acc_work_done": (c.c_int, _P), "acc_work_source": (c.c_int, _P), "acc_work_free": (None, _P),
           "acc_group_free": (None, _P)}


@functools.cache
def _c():
    """The library with the functions above."""
    library = _library.library()
    library.declare(_CALLS, _OTHERS)
    return library


def _milliseconds(timeout):
    """0, which means the default, for torch's two values without a meaning (0 and -1 ms)."""
    return max(0, int(timeout.total_seconds() * 1000)) if timeout is not None else 0


def _pointers(tensors):
    return (_P * len(tensors))(*[tensor.data_ptr() for tensor in tensors])


def _sizes(sizes):
    return (_N * len(sizes))(*sizes)


# --- works ---

class Work(_c10d.Work):
    """A call of the group; `tensors` are its result. collected: the memory of the call. An error, also one
    of copying the result, is kept here until `wait` or the future raises it."""

    def __init__(self, group, handle, tensors, collected):
        super().__init__()
        self._group, self._handle, self._tensors = group, handle, tensors
        self._collected = collected  # memory that the library uses until the work is done
        self._lock = threading.RLock()
        self._awaited = self._future = None
        self._error = None
        self._source = -1
        if handle is None:
            self._end(None)

    def _end(self, error):
        """Ends the work: without an error from the library, copies its result into the tensors."""
        if error is None:
            try:
                self._collected.write_back()
            except Exception as failed:  # noqa: BLE001: belongs to this call, whatever it is
                error = _library.InvalidArgumentError(
                    f"acc: {self._collected.name} is done, but its result cannot be written to the "
                    f"tensor: {failed}")
        self._error = error
        self._collected = None

    def _complete(self, timeout_ms):
        """Waits in the library and takes its result once. Raises nothing."""
        handle = self._handle
        if handle is None:
            return
        error = None
        try:
            _c().work_wait(handle, timeout_ms)
        except _library.Error as caught:
            error = caught
        with self._lock:
            if self._handle is None:
                return
            self._source = _c().work_source(handle)
            self._end(error)
            self._handle = None
        self._group._pending.pop(self, None)

    def _raise(self):
        if self._error is not None:
            # A new object, so that each wait has the traceback of its own caller.
            raise type(self._error)(str(self._error), self._error.rank)

    def wait(self, timeout=datetime.timedelta(0)):
        self._complete(_milliseconds(timeout))
        self._raise()
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        if self._handle is not None and _c().work_done(self._handle):
            self._complete(0)
        return self._handle is None

    def is_success(self):
        return self.is_completed() and self._error is None

    def exception(self):
        return self._error if self.is_completed() else None

    def result(self):
        self.wait()
        return self._tensors

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def get_future(self):
        with self._lock:
            if self._future is not None:
                return self._future
            # Only a callback can give a Future an error that torch's C++ code, such as DDP's, sees
            # as one.
            self._awaited = torch.futures.Future()
            self._future = self._awaited.then(lambda _: self.result())
        if self.is_completed():
            self._resolve()
        else:
            self._group._resolvers.resolve(self)
        return self._future

    def _resolve(self):
        """Waits for the call and completes its future, which runs the program's callbacks."""
        self._complete(0)
        try:
            self._awaited.set_result(None)
        except Exception:  # noqa: BLE001: torch keeps errors of Python callbacks; this is one of C++
            _log.exception("a callback of the future of a call of %s failed", self._group)


class _Works(Work):
    """Several calls as one."""

    def __init__(self, group, works, tensors):
        self._works = works
        super().__init__(group, None, tensors, _Arguments("several calls"))

    def _complete(self, timeout_ms):
        for work in self._works:
            work._complete(timeout_ms)
            self._error = self._error or work._error

    def is_completed(self):
        if not all([work.is_completed() for work in self._works]):
            return False
        self._complete(0)
        return True


class _Handle:
    """Owns an acc_work."""

    def __init__(self):
        self._as_parameter_ = _P()

    def __del__(self):
        _c().work_free(self._as_parameter_)


class _Resolvers:
    """Threads that wait for works and complete their futures. Each future has a thread of its own until
    it is complete: its callbacks may wait for other futures of the group. Threads are used again."""

    def __init__(self):
        self._works = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads, self._num_idle = [], 0

    def resolve(self, work):
        with self._lock:
            if self._num_idle > 0:
                self._num_idle -= 1
                self._works.put(work)
                return
            thread = threading.Thread(target=self._run, args=([work],), daemon=True, name="acc futures")
            try:
                thread.start()
            except RuntimeError:  # no more threads
                thread = None
            else:
                self._threads.append(thread)
        if thread is None:
            work._resolve()

    def _run(self, first):
        work = first.pop()
        while work is not None:
            work._resolve()
            work = None  # frees its memory while this thread is idle
            with self._lock:
                self._num_idle += 1
            work = self._works.get()

    def stop(self):
        """Ends the threads, after the works that they wait for."""
        for _ in self._threads:
            self._works.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


# --- tensors ---

def _check(tensor, name):
    if tensor.layout is not torch.strided:
        raise _library.InvalidArgumentError(
            f"acc: {name} of a tensor with layout {tensor.layout}; only dense tensors are supported "
            "(convert it by .to_dense(), or use the back end gloo)")


def _real(tensor):
    """A complex tensor as one of real numbers."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


class _Arguments:
    """Collects the tensors of a call as contiguous memory. inputs: that memory; pairs: (tensor, copy) for
    results that are computed in a copy."""

    def __init__(self, name):
        self.name, self.inputs, self.pairs = name, [], []

    def read(self, tensor):
        _check(tensor, self.name)
        if not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg():
            tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
        self.inputs.append(tensor)
        return tensor

    def written(self, tensor, keeps_values=False):
        """Memory for a result. keeps_values: the call reads the tensor too, or may leave it."""
        _check(tensor, self.name)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self.inputs.append(tensor)
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        if keeps_values:
            copy.copy_(tensor.detach())
        self.inputs.append(copy)
        self.pairs.append((tensor, copy))
        return copy

    def write_back(self):
        """Copies the results that were computed in a copy."""
        for tensor, copy in self.pairs:
            # Outside the mode in which it was made, a tensor of torch.inference_mode cannot be written.
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(copy)


def _one(tensors, name):
    if len(tensors) != 1:
        raise _library.InvalidArgumentError(f"acc: {name} of {len(tensors)} tensors, expected 1")
    return tensors[0]


def _element(tensor, name):
    element = _ELEMENTS.get(tensor.dtype)
    if element is None:
        raise _library.InvalidArgumentError(f"acc: no {name} of {tensor.dtype} values")
    return element


def _same(tensors, other, name):
    for tensor in tensors:
        if tensor.dtype != other.dtype or tensor.numel() != other.numel():
            raise _library.InvalidArgumentError(
                f"acc: {name}: tensors of {tensor.numel()} x {tensor.dtype} and of "
                f"{other.numel()} x {other.dtype}")


# --- the group ---

class _Call(typing.NamedTuple):
    """A call of the library. function: takes the group, `arguments`, a timeout and a place for the work.
    result: the tensors that the work returns."""

    function: collections.abc.Callable
    arguments: tuple
    result: list
    collected: _Arguments
    opts: object


def _first_tensor(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            value = _first_tensor(value)
        if isinstance(value, torch.Tensor):
            return value
    return None


def _makes(method, is_collective=True):
    """Makes the _Call that `method` returns. Tensors of another device go to the back end for it. A
    collective with wrong arguments counts as one that this rank has refused: the next one must not meet
    the other ranks' call of this one."""

    @functools.wraps(method)
    def call(self, *arguments, **named):
        try:
            tensor = _first_tensor([*arguments, *named.values()])
            is_ours = tensor is None or self._is_ours(tensor)
            prepared = method(self, *arguments, **named) if is_ours else None
        except Exception:
            if is_collective and self._handle is not None:
                _c().group_refuse(self._handle)
            raise
        if not is_ours:
            return getattr(dist.ProcessGroup, method.__name__)(self, *arguments, **named)
        return self._issue(prepared) if isinstance(prepared, _Call) else prepared

    return call


_makes_message = functools.partial(_makes, is_collective=False)


class ProcessGroup(dist.ProcessGroup):
    """Made by `create`. Calls on tensors of other devices go to the back ends that are registered
    for them."""

    def __init__(self, options, prefix):
        super().__init__(options.group_rank, options.group_size)
        self._store = options.store
        self._name, self._desc = options.group_id, ""
        self._rank, self._size = options.group_rank, options.group_size
        self._timeout_ms = 0  # that of the creation
        self._devices = [torch.device("cpu")]
        self._pending = {}  # works that are not known to be done; the program may have dropped them
        self._enough_pending = 1
        self._coalesced = None
        self._resolvers = _Resolvers()
        self._handle = _create_group(options, prefix)
        self._pid = os.getpid()

    # Names and properties that torch asks for.

    def getBackendName(self):
        return "acc"

    def getGroupName(self):
        return self._name

    def getGroupDesc(self):
        return self._desc

    def _set_group_name(self, name):
        self._name = name
        super()._set_group_name(name)

    def _set_group_desc(self, desc):
        self._desc = desc
        super()._set_group_desc(desc)

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def rank(self):
        return self._rank

    def size(self):
        return self._size

    def get_group_store(self):
        return self._store

    @property
    def _device_types(self):
        return list(self._devices)

    def _add_device(self, device, kind, backend):
        self._register_backend(torch.device(device), kind, backend)
        self._devices.append(torch.device(device))

    def split_group(self, *_, **__):
        raise _library.InvalidArgumentError("acc: split_group is not supported; dist.new_group makes "
                                            "a group of some of the ranks")

    def __repr__(self):
        return f"<acclaunch ProcessGroup {self._name}, rank {self._rank} of {self._size}>"

    # The end of the group.

    def shutdown(self):
        if self._handle and os.getpid() == self._pid:
            handle, self._handle = self._handle, None
            if not all([work.is_completed() for work in list(self._pending)]):
                _c().group_abort(handle, f"rank {self._rank} destroyed the group".encode())
            self._resolvers.stop()
            self._pending.clear()
            _c().group_free(handle)
        if len(self._devices) > 1:
            super().shutdown()

    def abort(self):
        if self._handle:
            _c().group_abort(self._handle, f"rank {self._rank} aborted the group".encode())
        if len(self._devices) > 1:
            super().abort()

    def set_timeout(self, timeout):
        self._timeout_ms = _milliseconds(timeout)
        if len(self._devices) > 1:
            super().set_timeout(timeout)

    # Calls.

    def _is_ours(self, tensor):
        """False if another back end of the group has the tensor's device."""
        kind = tensor.device.type
        if kind == "cpu":
            return True
        if torch.device(kind) not in self._devices:
            raise _library.InvalidArgumentError(
                f"acc: a tensor on {tensor.device}; acc is a back end for CPU tensors: make the group "
                f"with \"cpu:acc,{kind}:…\" and a back end for {kind}")
        return False

    def _issue(self, call):
        if self._handle is None:
            raise _library.InvalidArgumentError("acc: the process group has been destroyed")
        timeout = _milliseconds(getattr(call.opts, "timeout", None)) or self._timeout_ms
        is_async = getattr(call.opts, "asyncOp", True) or self._coalesced is not None
        handle = _Handle() if is_async else None
        call.function(self._handle, *call.arguments, timeout,
                      c.byref(handle._as_parameter_) if is_async else None)
        work = Work(self, handle, call.result, call.collected)
        if is_async:
            self._pending[work] = None
            if self._coalesced is not None:
                self._coalesced.append(work)
        else:
            work._raise()
        self._forget_dropped(is_async)
        return work

    def _together(self, function, calls, tensors, opts):
        """Several calls as one: each is made, also if the result of another cannot be written."""
        waits = not getattr(opts, "asyncOp", True)
        if waits:
            opts.asyncOp = True
        try:
            work = _Works(self, [function(*call, opts) for call in calls], tensors)
        finally:
            if waits:
                opts.asyncOp = False
        if waits:
            work.wait()
        return work

    def _forget_dropped(self, may_wait):
        """Frees works that the program dropped and that are done since. may_wait: only if there have become
        twice as many, so that a program with many calls under way does not look at all in each."""
        if not may_wait or len(self._pending) >= self._enough_pending:
            left = sum(not work.is_completed() for work in list(self._pending))
            self._enough_pending = 2 * left + 1

    def _reduced(self, tensor, opts, name, collected, keeps_values=True):
        """The arguments (tensor as contiguous memory, element type, operation) of a reduction."""
        op = opts.reduceOp.op
        if tensor.layout is torch.strided and tensor.is_complex():
            if op not in _LINEAR:
                raise _library.InvalidArgumentError(f"acc: no {name} of complex values by {op.name}")
            if tensor.is_conj():
                raise _library.InvalidArgumentError(
                    f"acc: {name} of a conjugated view: use .resolve_conj()")
            tensor = torch.view_as_real(tensor)
        if op not in _OPS:
            raise _library.InvalidArgumentError(f"acc: {name} by {op.name} is not supported")
        memory = collected.written(tensor, keeps_values)
        return memory, _element(memory, name), _OPS[op]

    @_makes
    def allreduce(self, tensors, opts=_c10d.AllreduceOptions()):
        tensor = _one(tensors, "all_reduce")
        collected = _Arguments("all_reduce")
        memory, element, op = self._reduced(tensor, opts, "all_reduce", collected)
        return _Call(_c().group_all_reduce, (memory.data_ptr(), memory.numel(), element, op),
                     [tensor], collected, opts)

    def allreduce_coalesced(self, tensors, opts=_c10d.AllreduceCoalescedOptions()):
        if not self._is_ours(tensors[0]):
            return super().allreduce_coalesced(tensors, opts)
        return self._together(self.allreduce, [([tensor],) for tensor in tensors], tensors, opts)

    @_makes
    def reduce(self, tensors, opts=_c10d.ReduceOptions()):
        tensor = _one(tensors, "reduce")
        collected = _Arguments("reduce")
        memory, element, op = self._reduced(tensor, opts, "reduce", collected)
        return _Call(_c().group_reduce,
                     (memory.data_ptr(), memory.numel(), element, op, opts.rootRank), [tensor], collected,
                     opts)

    @_makes
    def broadcast(self, tensors, opts=_c10d.BroadcastOptions()):
        tensor = _one(tensors, "broadcast")
        collected = _Arguments("broadcast")
        if opts.rootRank == self._rank:
            memory = collected.read(tensor)
        else:
            memory = collected.written(tensor)
        return _Call(_c().group_broadcast,
                     (memory.data_ptr(), memory.nbytes, opts.rootRank), [tensor], collected,
                     opts)

    @_makes
    def barrier(self, opts=_c10d.BarrierOptions()):
        device = getattr(opts, "device", None)
        if device is not None and device.type != "cpu" and len(self._devices) > 1:
            return super().barrier(opts)
        return _Call(_c().group_barrier, (), [], _Arguments("barrier"), opts)

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose timeout names the late rank."""
        opts = _c10d.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        opts.asyncOp = False
        self.barrier(opts)

    @_makes
    def allgather(self, output_tensors, input_tensors, opts=_c10d.AllgatherOptions()):
        """All ranks' inputs in separate tensors, which may have different sizes."""
        collected = _Arguments("all_gather")
        memory = collected.read(_one(input_tensors, "all_gather"))
        parts = [collected.written(output) for output in _one(output_tensors, "all_gather")]
        if len(parts) != self._size or any(part.dtype != memory.dtype for part in parts):
            raise _library.InvalidArgumentError(
                f"acc: all_gather needs {self._size} outputs of {memory.dtype}, got "
                f"{[(tuple(part.shape), part.dtype) for part in parts]}")
        return _Call(_c().group_all_gather,
                     (memory.data_ptr(), memory.nbytes, _pointers(parts),
                      _sizes([part.nbytes for part in parts])),
                     output_tensors, collected, opts)

    def allgather_coalesced(self, output_lists, input_tensors, opts=_c10d.AllgatherOptions()):
        """output_lists: by rank or by tensor; torch has used both."""
        if not self._is_ours(input_tensors[0]):
            return super().allgather_coalesced(output_lists, input_tensors, opts)
        if len(output_lists) == self._size and all(
                len(each) == len(input_tensors) for each in output_lists):
            output_lists = list(zip(*output_lists))
        output_lists = [list(outputs) for outputs in output_lists]
        calls = [([outputs], [tensor])
                 for outputs, tensor in zip(output_lists, input_tensors, strict=True)]
        return self._together(self.allgather, calls, output_lists, opts)

    @_makes
    def all_gather_single(self, output, input_, opts=_c10d.AllgatherOptions()):
        if output.dtype != input_.dtype or output.numel() != input_.numel() * self._size:
            raise _library.InvalidArgumentError(
                f"acc: all_gather of {input_.numel()} x {input_.dtype} on {self._size} ranks into "
                f"{output.numel()} x {output.dtype}")
        collected = _Arguments("all_gather")
        memory, all_ = collected.read(input_), collected.written(output)
        nbytes, base = memory.nbytes, all_.data_ptr()
        places = (_P * self._size)(*[base + nbytes * r for r in range(self._size)])
        return _Call(_c().group_all_gather,
                     (memory.data_ptr(), nbytes, places, _sizes([nbytes] * self._size)), [output],
                     collected, opts)

    def all_gather_single_coalesced(self, outputs, inputs, opts=_c10d.AllgatherOptions()):
        if not self._is_ours(inputs[0]):
            return super().all_gather_single_coalesced(outputs, inputs, opts)
        calls = list(zip(outputs, inputs, strict=True))
        return self._together(self.all_gather_single, calls, outputs, opts)

    @_makes
    def gather(self, output_tensors, input_tensors, opts=_c10d.GatherOptions()):
        collected = _Arguments("gather")
        memory = collected.read(_one(input_tensors, "gather"))
        places = None
        if opts.rootRank == self._rank:
            parts = [collected.written(each) for each in _one(output_tensors, "gather")]
            self._check_count(parts, "gather")
            _same(parts, memory, "gather")
            places = _pointers(parts)
        return _Call(_c().group_gather,
                     (memory.data_ptr(), places, memory.nbytes, opts.rootRank), output_tensors,
                     collected, opts)

    @_makes
    def scatter(self, output_tensors, input_tensors, opts=_c10d.ScatterOptions()):
        collected = _Arguments("scatter")
        memory = collected.written(_one(output_tensors, "scatter"))
        places = None
        if opts.rootRank == self._rank:
            parts = [collected.read(each) for each in _one(input_tensors, "scatter")]
            self._check_count(parts, "scatter")
            _same(parts, memory, "scatter")
            places = _pointers(parts)
        return _Call(_c().group_scatter,
                     (places, memory.data_ptr(), memory.nbytes, opts.rootRank), output_tensors,
                     collected, opts)

    def _check_count(self, parts, name):
        if len(parts) != self._size:
            raise _library.InvalidArgumentError(
                f"acc: {name} needs a tensor for each of {self._size} ranks, got {len(parts)}")

    @_makes
    def reduce_scatter(self, output_tensors, input_tensors, opts=_c10d.ReduceScatterOptions()):
        name = "reduce_scatter"
        output = _one(output_tensors, name)
        collected = _Arguments(name)
        memory, element, op = self._reduced(output, opts, name, collected, keeps_values=False)
        parts = [collected.read(_real(each)) for each in _one(input_tensors, name)]
        self._check_count(parts, name)
        _same(parts, memory, name)
        return _Call(_c().group_reduce_scatter,
                     (_pointers(parts), memory.data_ptr(), memory.numel(), element, op),
                     output_tensors, collected, opts)

    @_makes
    def reduce_scatter_single(self, output, input_, opts=_c10d.ReduceScatterOptions()):
        name = "reduce_scatter"
        if output.dtype != input_.dtype or input_.numel() != output.numel() * self._size:
            raise _library.InvalidArgumentError(
                f"acc: reduce_scatter of {input_.numel()} x {input_.dtype} on {self._size} ranks "
                f"into {output.numel()} x {output.dtype}")
        collected = _Arguments(name)
        memory, element, op = self._reduced(output, opts, name, collected, keeps_values=False)
        all_ = collected.read(_real(input_))
        nbytes, base = memory.nbytes, all_.data_ptr()
        places = (_P * self._size)(*[base + nbytes * r for r in range(self._size)])
        return _Call(_c().group_reduce_scatter,
                     (places, memory.data_ptr(), memory.numel(), element, op), [output],
                     collected, opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=_c10d.ReduceScatterOptions()):
        if not self._is_ours(inputs[0]):
            return super().reduce_scatter_single_coalesced(outputs, inputs, opts)
        calls = list(zip(outputs, inputs, strict=True))
        return self._together(self.reduce_scatter_single, calls, outputs, opts)

    @_makes
    def alltoall(self, output_tensors, input_tensors, opts=_c10d.AllToAllOptions()):
        collected = _Arguments("all_to_all")
        ins = [collected.read(each) for each in input_tensors]
        outs = [collected.written(each) for each in output_tensors]
        self._check_count(ins, "all_to_all")
        self._check_count(outs, "all_to_all")
        return _Call(_c().group_all_to_all,
                     (_pointers(ins), _sizes([each.nbytes for each in ins]), _pointers(outs),
                      _sizes([each.nbytes for each in outs])), output_tensors, collected, opts)

    def _splits(self, tensor, sizes, name):
        """Offsets and sizes in bytes of the parts of a tensor that is split in its first dimension."""
        if not sizes:
            if tensor.dim() and tensor.shape[0] % self._size:
                raise _library.InvalidArgumentError(
                    f"acc: all_to_all: the first dimension of the {name}, {tensor.shape[0]}, is not "
                    f"divisible by the number of ranks, {self._size}")
            nbytes = [tensor.nbytes // self._size] * self._size
        else:
            if len(sizes) != self._size or sum(sizes) != tensor.shape[0]:
                raise _library.InvalidArgumentError(
                    f"acc: all_to_all: the split sizes {list(sizes)} of the {name} do not add up to "
                    f"its first dimension, {tensor.shape[0]}, on {self._size} ranks")
            row = tensor.nbytes // tensor.shape[0] if tensor.shape[0] else 0
            nbytes = [row * size for size in sizes]
        places, at = [], tensor.data_ptr()
        for size in nbytes:
            places.append(at)
            at += size
        return (_P * self._size)(*places), _sizes(nbytes)

    @_makes
    def all_to_all_single(self, output, input_, output_split_sizes, input_split_sizes,
                          opts=_c10d.AllToAllOptions()):
        collected = _Arguments("all_to_all")
        memory, out = collected.read(input_), collected.written(output)
        ins, in_sizes = self._splits(memory, input_split_sizes, "input")
        outs, out_sizes = self._splits(out, output_split_sizes, "output")
        return _Call(_c().group_all_to_all, (ins, in_sizes, outs, out_sizes), [output],
                     collected, opts)

    @_makes_message
    def send(self, tensors, to, tag):
        collected = _Arguments("send")
        memory = collected.read(_one(tensors, "send"))
        return _Call(_c().group_send, (memory.data_ptr(), memory.nbytes, to, tag), tensors,
                     collected, None)

    @_makes_message
    def recv(self, tensors, from_, tag):
        return self._receive(tensors, from_, tag)

    def _receive(self, tensors, from_, tag):
        collected = _Arguments("receive")
        memory = collected.written(_one(tensors, "receive"))

        def receive(group, *arguments):  # the library has one more argument before the last
            *first, work = arguments
            _c().group_receive(group, *first, None, work)

        return _Call(receive, (memory.data_ptr(), memory.nbytes, from_, tag), tensors,
                     collected, None)

    @_makes_message
    def recv_anysource(self, tensors, tag):
        return self._receive(tensors, -1, tag)

    def _start_coalescing(self, device):
        if device.type != "cpu":
            return super()._start_coalescing(device)
        self._coalesced = []

    def _end_coalescing(self, device):
        if device.type != "cpu":
            return super()._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        return _Works(self, works, [tensor for work in works for tensor in work._tensors])

    # Names before torch 2.11, which torch's C++ code still uses in part.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single
    recvAnysource = recv_anysource
    monitoredBarrier = monitored_barrier


# --- creation ---

_generations = collections.Counter()


def _next_prefix(options):
    """Begin of the store keys of a new group. A program may make a group again with the same name and
    ranks in the same store, and the keys of the earlier one must not be read."""
    same = options.group_id, tuple(options.global_ranks_in_group)
    _generations[same] += 1
    return f"acc/{zlib.crc32(repr(same).encode()):08x}/{_generations[same]}/"


def _create_group(options, prefix):
    """Makes the group in the library. The store carries only the name of a local socket."""
    store, failures = options.store, []

    def set_(context, key, value, nbytes):
        try:
            store.set(prefix + key.decode(), c.string_at(value, nbytes))
        except Exception as error:
            failures.append(error)
            return 1
        return 0

    def get(context, key, value, capacity, nbytes):
        try:
            found = store.get(prefix + key.decode())
            nbytes[0] = len(found)
            c.memmove(value, found, min(len(found), capacity))
        except Exception as error:
            failures.append(error)
            return 1
        return 0

    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    secret = os.environ.get("ACC_JOB_SECRET")
    config = _Config(size=c.sizeof(_Config), rank=options.group_rank, num_ranks=options.group_size,
                     ranks=(c.c_int32 * len(ranks))(*ranks), name=str(options.group_id).encode(),
                     timeout_ms=_milliseconds(options.timeout) or 1800000,
                     secret=secret.encode() if secret else None, set=_SetFunction(set_),
                     get=_GetFunction(get))
    made = _P()
    try:
        _c().group_create(c.byref(config), c.byref(made))
    except _library.Error as error:
        raise error from (failures[0] if failures else None)
    return made


def _host():
    """Equal in two processes that can share memory and see each other's end."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        boot = file.read().strip()
    spaces = [os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "net")]
    return "/".join([boot, *spaces, str(os.geteuid())])


def _is_one_host(options, prefix):
    options.store.set(f"{prefix}host/{options.group_rank}", _host())
    hosts = {bytes(options.store.get(f"{prefix}host/{rank}")) for rank in range(options.group_size)}
    return len(hosts) == 1


def _add_other_devices(group, options, backend_options, others, made):
    """Makes the group's back ends for the devices other than the CPU, as torch does."""
    for device, name in others.items():
        if device == "cpu":
            continue
        if made is not None and torch.device(device) in made._device_types:
            group._add_device(device, dist.ProcessGroup.BackendType.CUSTOM,
                              made._get_backend(torch.device(device)))
            continue
        store = dist.PrefixStore(f"{device}/", options.store)
        arguments = store, options.group_rank, options.group_size
        if name == dist.Backend.NCCL:
            nccl = backend_options or dist.ProcessGroupNCCL.Options()
            nccl._timeout = options.timeout
            nccl.global_ranks_in_group, nccl.group_name = \
                options.global_ranks_in_group, options.group_id
            backend = dist.ProcessGroupNCCL(*arguments, nccl)
            kind = dist.ProcessGroup.BackendType.NCCL
        elif name == dist.Backend.GLOO:
            if device != "cuda" or not torch.cuda.is_available():
                continue  # `gloo` alone claims devices that this machine does not have
            backend = dist.ProcessGroupGloo(*arguments, timeout=options.timeout)
            kind = dist.ProcessGroup.BackendType.GLOO
        elif name.upper() in dist.Backend._plugins:
            plugin = dist.Backend._plugins[name.upper()]
            if plugin.extended_api:
                backend = plugin.creator_fn(options, backend_options)
            else:
                backend = plugin.creator_fn(*arguments, options.timeout)
            kind = dist.ProcessGroup.BackendType.CUSTOM
        else:
            raise _library.InvalidArgumentError(
                f"acc: the back end {device}:{name} cannot be used next to cpu:acc")
        group._add_device(device, kind, backend)


def create(options, backend_options, others=None, made=None):
    """The creator function of the back end. options: torch's _DistributedBackendOptions. others: the
    back end of each device; made: a group that already has some of them. Returns a ProcessGroup for
    ranks of one host, and torch's Gloo back end for ranks of several."""
    prefix = _next_prefix(options)
    if not _is_one_host(options, prefix):
        return dist.ProcessGroupGloo(options.store, options.group_rank, options.group_size,
                                     timeout=options.timeout)
    group = ProcessGroup(options, prefix)
    _add_other_devices(group, options, backend_options, others or {}, made)
    return group
