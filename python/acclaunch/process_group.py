# SPDX-License-Identifier: Apache-2.0
"""A torch ProcessGroup whose collectives on CPU tensors run in libacc_runtime (acc/collectives.h)."""

import collections
import ctypes as c
import datetime
import functools
import itertools
import logging
import os
import queue
import threading
import types
import typing
import zlib

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as _c10d

from acclaunch import _library
from acclaunch._parameters import outside_graphs

_log = logging.getLogger(__name__)
_DEFAULT_TIMEOUT_MS = 30 * 60 * 1000  # torch's
_ELEMENTS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.float64: 3, torch.int8: 4,
             torch.int16: 5, torch.int32: 6, torch.int64: 7, torch.uint8: 8, torch.bool: 9}
# acc_op has the values of torch's enumeration.
_OPS = {int(op) for op in (
    dist.ReduceOp.SUM, dist.ReduceOp.AVG, dist.ReduceOp.PRODUCT, dist.ReduceOp.MIN,
    dist.ReduceOp.MAX, dist.ReduceOp.BAND, dist.ReduceOp.BOR, dist.ReduceOp.BXOR)}
_LINEAR = {int(dist.ReduceOp.SUM), int(dist.ReduceOp.AVG)}


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


def _outside_graphs(made):
    """Decorator of a class, for all its functions."""
    for member in vars(made).values():
        function = member.fget if isinstance(member, property) else member
        if isinstance(function, types.FunctionType):
            outside_graphs(function)
    return made


# --- works ---

@_outside_graphs
class Work(_c10d.Work):
    """A call of the group; tensors() is its result. collected: the memory of the call. An error, also one
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
        return self._tensors()

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def get_future(self):
        with self._lock:
            if self._future is not None:
                return self._future
            self._group._check_process()
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


@_outside_graphs
class _Works(Work):
    """Several calls as one."""

    def __init__(self, group, works, tensors):
        self._works = works
        super().__init__(group, None, tensors, _Arguments("several calls"))

    def _complete(self, timeout_ms):
        for work in self._works:
            work._complete(timeout_ms)
            self._error = self._error or work._error
            self._source = work._source if self._source < 0 else self._source

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
    if tensor.layout is not torch.strided or tensor.is_nested:
        kind = "that is nested" if tensor.is_nested else f"with layout {tensor.layout}"
        raise _library.InvalidArgumentError(
            f"acc: {name} of a tensor {kind}; only dense tensors are supported "
            "(convert it by .to_dense(), or use the back end gloo)")
    if not tensor.is_cpu:
        raise _library.InvalidArgumentError(
            f"acc: {name} of tensors on the CPU and of one on {tensor.device}")
    needed = tensor.storage_offset() * tensor.itemsize + tensor.nbytes
    if tensor.nbytes and tensor.untyped_storage().nbytes() < needed and tensor.is_contiguous():
        raise _library.InvalidArgumentError(
            f"acc: {name}: a tensor of {tensor.numel()} x {tensor.dtype} needs {needed} bytes, but its storage "
            f"has been resized to {tensor.untyped_storage().nbytes()}")


def _real(tensor):
    """A complex tensor as one of real numbers."""
    return torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor


def _overlaps_itself(tensor):
    """True if two elements of the tensor have the same place."""
    found = torch._debug_has_internal_overlap(tensor)  # 2: not obvious
    if found != 2:
        return found == 1
    places = torch.zeros((), dtype=torch.int64)
    for size, stride in zip(tensor.shape, tensor.stride()):
        places = places.unsqueeze(-1) + torch.arange(size) * stride
    return places.unique().numel() < tensor.numel()


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

    def written(self, tensor, keeps_values=False, needs_copy=False):
        """Memory for a result. keeps_values: the call reads the tensor too, or may leave it."""
        _check(tensor, self.name)
        if not needs_copy and tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            self.inputs.append(tensor)
            return tensor
        copy = torch.empty(tensor.shape, dtype=tensor.dtype)
        if keeps_values:
            copy.copy_(tensor.detach())
        self.inputs.append(copy)
        self.pairs.append((tensor, copy))
        return copy

    def all_written(self, tensors):
        """Memory for results that must not share theirs."""
        places = [tensor.data_ptr() for tensor in tensors if tensor.numel() > 0 and tensor.layout is torch.strided]
        if len({*places}) < len(places):
            raise _library.InvalidArgumentError(
                f"acc: {self.name}: two of {len(tensors)} outputs are the same memory")
        return [self.written(tensor) for tensor in tensors]

    def apart(self, memory, outputs, place=None):
        """The memory of an input, or a copy if it shares memory with a result. outputs: (address, bytes) of
        each; place: address at which the input may be its own result."""
        begin, size = memory.data_ptr(), memory.nbytes
        for at, nbytes in outputs:
            if at < begin + size and begin < at + nbytes and (begin, size) != (place, nbytes):
                self.inputs.append(memory.detach().clone())
                return self.inputs[-1]
        return memory

    def write_back(self):
        """Copies the results that were computed in a copy."""
        for tensor, copy in self.pairs:
            if _overlaps_itself(tensor):
                raise RuntimeError("several of its elements have the same place in memory")
            # Outside the mode in which it was made, a tensor of torch.inference_mode cannot be written.
            with torch.inference_mode(tensor.is_inference()), torch.no_grad():
                tensor.copy_(copy)


def _places(tensors):
    return [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors]


def _split_places(memory, count):
    """The places of `count` equal parts of a tensor."""
    nbytes, begin = memory.nbytes // count, memory.data_ptr()
    return [(begin + nbytes * part, nbytes) for part in range(count)]


def _arrays(places):
    """The addresses and the sizes of places for the library."""
    return ((_P * len(places))(*[address for address, _ in places]),
            (_N * len(places))(*[nbytes for _, nbytes in places]))


def _one(tensors, name):
    if len(tensors) != 1:
        raise _library.InvalidArgumentError(f"acc: {name} of {len(tensors)} tensors, expected 1")
    return tensors[0]


def _element(tensor, name):
    element = _ELEMENTS.get(tensor.dtype)
    if element is None:
        raise _library.InvalidArgumentError(f"acc: no {name} of {tensor.dtype} values")
    return element


def _same(tensors, other, name, count=1):
    """Checks that each tensor has the type of `other` and `count` times its elements."""
    for tensor in tensors:
        if tensor.dtype != other.dtype or tensor.numel() != count * other.numel():
            times = f" for each of {count} ranks" if count > 1 else ""
            raise _library.InvalidArgumentError(
                f"acc: {name}: tensors of {tensor.numel()} x {tensor.dtype} and of "
                f"{other.numel()} x {other.dtype}{times}")


def _check_lengths(outputs, inputs, name):
    if len(outputs) != len(inputs) or not inputs:
        raise _library.InvalidArgumentError(
            f"acc: {name}: {len(inputs)} inputs and {len(outputs)} outputs or lists of outputs")


def _check_root_tensor(root_tensor, name):
    if root_tensor != 0:
        raise _library.InvalidArgumentError(f"acc: {name} with root tensor {root_tensor} of 1 tensor")


def _same_types(tensors, name):
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise _library.InvalidArgumentError(
            f"acc: {name}: the tensors have different types: {[tensor.dtype for tensor in tensors]}")


# --- the way of a call ---

class _Call(typing.NamedTuple):
    """A call of the library. function: takes the group, `arguments`, a timeout and a place for the work.
    result: returns the value of the work, as Gloo has it."""

    function: collections.abc.Callable
    arguments: tuple
    result: collections.abc.Callable
    collected: _Arguments


class _Calls(typing.NamedTuple):
    """Several calls as one."""

    calls: list
    result: collections.abc.Callable


class _Collective(typing.NamedTuple):
    """A call as torch's dispatcher knows it. prepare: a method of ProcessGroup that checks the arguments of
    the operator `op` and makes a _Call or _Calls. The operator takes `num_tensors` arguments with tensors, the
    group, `num_values` other values, and, unless it is a message, whether the call is asynchronous and its
    timeout. returns_tensors: it returns the first argument next to the work."""

    prepare: collections.abc.Callable
    op: str
    num_tensors: int
    num_values: int
    is_message: bool
    returns_tensors: bool


class _Here(threading.local):
    """Of the call that a thread makes. issued: it reached the library; works: keeps the Python parts of works
    while torch's C++ code hands them on."""

    issued, works = False, None


_here = _Here()
# Calls of the group go through torch's dispatcher to the kernels of this key, which nothing else uses.
_KEY = torch._C._dispatch_key_parse("CustomRNGKeyId")
_Included, _Excluded = torch._C._IncludeDispatchKeyGuard, torch._C._ExcludeDispatchKeyGuard


def _first_tensor(values):
    for value in values:
        if isinstance(value, (list, tuple)):
            value = _first_tensor(value)
        if isinstance(value, torch.Tensor):
            return value
    return None


def _are_plain(values):
    """True for tensors on the CPU, and lists of them, that are no subclasses."""
    for value in values:
        kind = type(value)
        if kind is list:
            if not _are_plain(value):
                return False
        elif not ((kind is torch.Tensor or kind is torch.nn.Parameter) and value.is_cpu):
            return False
    return True


def _is_watched():
    """True if something in torch's dispatcher must see the calls of this thread."""
    return (torch._C._len_torch_dispatch_stack() > 0 or torch.autograd._profiler_enabled()
            or _c10d._allow_inflight_collective_as_graph_input())


def _device_of(options):
    """The device of a barrier."""
    return getattr(options, "device", None)


def _name_of(op):
    return dist.ReduceOp.RedOpType(op).name


def _operation(op):
    """The value of acc_op for torch's ReduceOp, in Python or as the dispatcher passes it."""
    return op.op() if isinstance(op, torch.ScriptObject) else int(op.op)


def _kernel_of(collective):
    """The kernel of the collective's operator."""
    op = getattr(torch.ops.c10d, collective.op).default
    num_tensors, num_values = collective.num_tensors, collective.num_values

    def kernel(*arguments):
        tensors, values = arguments[:num_tensors], arguments[num_tensors + 1:]
        first = _first_tensor(tensors)
        group = dist.ProcessGroup.unbox(arguments[num_tensors])
        # The inside of a FakeTensor, or a call of another group by a mode that sees one of this.
        if (first is not None and not first.is_cpu) or not isinstance(group, ProcessGroup):
            with _Excluded(torch._C.DispatchKeySet(_KEY)):
                return op(*arguments)
        # torch leaves out values that are the defaults.
        is_async, timeout = (*values[num_values:], *(True, -1)[len(values) - num_values:])[:2]
        prepared = collective.prepare(group, *tensors, *values[:num_values])
        work = group._issue(prepared, is_async or collective.is_message, timeout)
        _here.works.append(work)
        boxed = work.boxed()
        return (tensors[0], boxed) if collective.returns_tensors else boxed

    return kernel


def _makes(op, options, tensors, *, values=(), fields=(), returns_tensors=False):
    """Makes a method of a process group, with all the forms of torch's, of the method that prepares it. Its
    arguments are `tensors`, `values` and, unless it is a message, an object of `options`; `fields` of that
    object are the last arguments of the method that prepares.

    As torch's methods do, it goes through torch's dispatcher, where subclasses of tensors, modes and profilers
    see it. That takes as long as a small call itself, so a call with plain tensors that nothing watches goes
    directly to the library.

    A collective with wrong arguments counts as one that this rank has refused: the next one must not meet the
    other ranks' call of this one."""

    def method_of(prepare):
        name, is_message = prepare.__name__, options is None
        base, num_tensors = getattr(dist.ProcessGroup, name), len(tensors)
        num_arguments = num_tensors + len(values) + (not is_message)

        def method(self, *arguments, **named):
            _here.issued = False
            try:
                if len(named) == 1 and "opts" in named:
                    arguments, named = (*arguments, *named.values()), {}
                if (len(arguments) == num_arguments and not named and not _is_watched()
                        and (is_message or type(arguments[-1]) is options)
                        and (_are_plain(arguments[:num_tensors]) if tensors else self._is_ours(arguments, named))):
                    if is_message:
                        return self._issue(prepare(self, *arguments), True, -1)
                    *given, opts = arguments
                    prepared = prepare(self, *given, *[getattr(opts, field, None) for field in fields])
                    return self._issue(prepared, opts.asyncOp, opts.timeout)
                if not self._is_ours(arguments, named):
                    _here.issued = True  # to another back end
                    return base(self, *arguments, **named)
                outer, _here.works = _here.works, []
                try:
                    with _Included(_KEY):
                        returned = base(self, *arguments, **named)
                    works = _here.works
                    # A subclass that wraps several tensors calls for each, and returns the work of the first one.
                    return _Works(self, works, works[0].result) if len(works) > 1 else returned
                finally:
                    _here.works = outer
            except Exception:
                if not is_message and not _here.issued and self._handle is not None:
                    _c().group_refuse(self._handle)
                raise

        functools.update_wrapper(method, prepare)
        # torch's method does not call back a method of this name and object.
        method.__code__ = method.__code__.replace(co_name=name)
        # The operator of a barrier has a tensor, for its device.
        method.collective = _Collective(prepare, op, max(1, num_tensors), len(values) + len(fields), is_message,
                                        returns_tensors)
        return method

    return method_of


# --- the group ---

@_outside_graphs
class ProcessGroup(dist.ProcessGroup):
    """Made by `create`. Calls on tensors of other devices go to the back ends that are registered
    for them."""

    def __init__(self, options, prefix):
        super().__init__(options.group_rank, options.group_size)
        self._store = options.store
        self._name, self._desc = options.group_id, ""
        self._rank, self._size = options.group_rank, options.group_size
        self._timeout_ms = _milliseconds(options.timeout) or _DEFAULT_TIMEOUT_MS
        self._devices = [torch.device("cpu")]
        self._pending = {}  # works that are not known to be done; the program may have dropped them
        self._enough_pending = 1
        self._coalesced = None
        self._sequence = 0
        self._resolvers = _Resolvers()
        self._handle = _create_group(options, prefix)
        _register_kernels()
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

    def _check_process(self):
        """Raises InvalidArgumentError in a child that fork made, which has none of the group's threads."""
        if os.getpid() != self._pid:
            _c().group_check(self._handle)

    def shutdown(self):
        if os.getpid() != self._pid:
            return  # the group is the parent's
        if self._handle:
            handle, self._handle = self._handle, None
            if not all([work.is_completed() for work in list(self._pending)]):
                _c().group_abort(handle, f"rank {self._rank} destroyed the group".encode())
            self._resolvers.stop()
            self._pending.clear()
            _c().group_free(handle)
        if len(self._devices) > 1:
            super().shutdown()

    def abort(self):
        self._check_process()
        if self._handle:
            _c().group_abort(self._handle, f"rank {self._rank} aborted the group".encode())
        if len(self._devices) > 1:
            super().abort()

    # The group is its own back end for the CPU.

    def _get_backend(self, device):
        return self if torch.device(device).type == "cpu" else super()._get_backend(device)

    supports_splitting = supports_coalescing = supports_time_estimate = supports_shrinking = False

    @property
    def options(self):
        return types.SimpleNamespace(backend=self.getBackendName(),
                                     _timeout=datetime.timedelta(milliseconds=self._timeout_ms))

    def _set_default_timeout(self, timeout):
        self._timeout_ms = _milliseconds(timeout)

    def set_timeout(self, timeout):
        self._set_default_timeout(timeout)
        if len(self._devices) > 1:
            super().set_timeout(timeout)

    def _get_sequence_number_for_group(self):
        """The number of calls so far."""
        return self._sequence

    def _set_sequence_number_for_group(self):
        """The calls are counted from 0 on all ranks."""

    # Calls.

    def _is_ours(self, arguments, named):
        """False if another back end of the group has the device of the call."""
        tensor = _first_tensor([*arguments, *named.values()])
        if tensor is not None:
            device = tensor.device
        else:  # a barrier
            device = next((found for found in map(_device_of, [*arguments, *named.values()]) if found), None)
            if device is None or len(self._devices) == 1:
                return True
        if device.type == "cpu":
            return True
        if torch.device(device.type) not in self._devices:
            raise _library.InvalidArgumentError(
                f"acc: a tensor on {device}; acc is a back end for CPU tensors: make the group "
                f"with \"cpu:acc,{device.type}:…\" and a back end for {device.type}")
        return False

    def _issue(self, prepared, is_async, timeout):
        """timeout: a timedelta, or milliseconds; not positive for the default."""
        if self._handle is None:
            raise _library.InvalidArgumentError("acc: the process group has been destroyed")
        _here.issued = True
        self._sequence += 1
        if isinstance(timeout, datetime.timedelta):
            timeout = _milliseconds(timeout)
        timeout = max(0, timeout) or self._timeout_ms
        if isinstance(prepared, _Calls):
            work = _Works(self, [self._call(each, True, timeout) for each in prepared.calls], prepared.result)
            if not is_async:
                work.wait()
            return work
        is_async = is_async or self._coalesced is not None
        work = self._call(prepared, is_async, timeout)
        if not is_async:
            work._raise()
        elif self._coalesced is not None:
            self._coalesced.append(work)
        self._forget_dropped(is_async)
        return work

    def _call(self, call, is_async, timeout):
        handle = _Handle() if is_async else None
        call.function(self._handle, *call.arguments, timeout,
                      c.byref(handle._as_parameter_) if is_async else None)
        work = Work(self, handle, call.result, call.collected)
        if is_async:
            self._pending[work] = None
        return work

    def _forget_dropped(self, may_wait):
        """Frees works that the program dropped and that are done since. may_wait: only if there have become
        twice as many, so that a program with many calls under way does not look at all in each."""
        if not may_wait or len(self._pending) >= self._enough_pending:
            left = sum(not work.is_completed() for work in list(self._pending))
            self._enough_pending = 2 * left + 1

    def _reduced(self, tensor, op, collected, **how):
        """The arguments (tensor as contiguous memory, element type, operation) of a reduction."""
        name, op = collected.name, _operation(op)
        if op not in _OPS:
            raise _library.InvalidArgumentError(f"acc: {name} by {_name_of(op)} is not supported")
        if tensor.layout is torch.strided and tensor.is_complex():
            if op not in _LINEAR:
                raise _library.InvalidArgumentError(f"acc: no {name} of complex values by {_name_of(op)}")
            if tensor.is_conj():
                raise _library.InvalidArgumentError(
                    f"acc: {name} of a conjugated view: use .resolve_conj()")
            tensor = torch.view_as_real(tensor)
        memory = collected.written(tensor, **how)
        return memory, _element(memory, name), op

    def _reduced_everywhere(self, tensor, op, **how):
        collected = _Arguments("all_reduce")
        memory, element, op = self._reduced(tensor, op, collected, keeps_values=True, **how)
        return _Call(_c().group_all_reduce, (memory.data_ptr(), memory.numel(), element, op),
                     lambda: [tensor], collected)

    def _check_count(self, parts, name):
        if len(parts) != self._size:
            raise _library.InvalidArgumentError(
                f"acc: {name} needs a tensor for each of {self._size} ranks, got {len(parts)}")

    def _parts(self, lists, root, name):
        """The list of tensors that only the root has."""
        if root != self._rank and lists and lists[0]:
            raise _library.InvalidArgumentError(
                f"acc: {name}: only the root, rank {root}, has a list of tensors; rank {self._rank} got one "
                f"of {len(lists[0])}")
        if root != self._rank:
            return []
        parts = _one(lists, name)
        self._check_count(parts, name)
        return parts

    @_makes("allreduce_", _c10d.AllreduceOptions, ["tensors"], fields=["reduceOp", "sparseIndices"],
            returns_tensors=True)
    def allreduce(self, tensors, op, sparse_indices):
        if sparse_indices is not None:
            raise _library.InvalidArgumentError("acc: all_reduce with sparse indices is not supported")
        return self._reduced_everywhere(_one(tensors, "all_reduce"), op)

    @_makes("allreduce_coalesced_", _c10d.AllreduceCoalescedOptions, ["tensors"], fields=["reduceOp"])
    def allreduce_coalesced(self, tensors, op):
        _check_lengths(tensors, tensors, "all_reduce_coalesced")
        # A tensor that is there twice is reduced once: each is read before any is written.
        shares = len(tensors) > 1 and len({tensor.untyped_storage().data_ptr() for tensor in tensors
                                           if tensor.layout is torch.strided}) < len(tensors)
        return _Calls([self._reduced_everywhere(tensor, op, needs_copy=shares) for tensor in tensors],
                      lambda: tensors)

    @_makes("reduce_", _c10d.ReduceOptions, ["tensors"], fields=["reduceOp", "rootRank", "rootTensor"])
    def reduce(self, tensors, op, root, root_tensor):
        tensor = _one(tensors, "reduce")
        _check_root_tensor(root_tensor, "reduce")
        collected = _Arguments("reduce")
        memory, element, op = self._reduced(tensor, op, collected, keeps_values=True)
        return _Call(_c().group_reduce, (memory.data_ptr(), memory.numel(), element, op, root),
                     lambda: [tensor], collected)

    @_makes("broadcast_", _c10d.BroadcastOptions, ["tensors"], fields=["rootRank", "rootTensor"],
            returns_tensors=True)
    def broadcast(self, tensors, root, root_tensor):
        tensor = _one(tensors, "broadcast")
        _check_root_tensor(root_tensor, "broadcast")
        collected = _Arguments("broadcast")
        memory = (collected.read if root == self._rank else collected.written)(tensor)
        return _Call(_c().group_broadcast, (memory.data_ptr(), memory.nbytes, root), lambda: [tensor], collected)

    @_makes("barrier", _c10d.BarrierOptions, [], fields=["device_ids"])
    def barrier(self, *_):
        return _Call(_c().group_barrier, (), list, _Arguments("barrier"))

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """A barrier whose timeout names the late rank."""
        opts = _c10d.BarrierOptions()
        if timeout is not None:
            opts.timeout = timeout
        opts.asyncOp = False
        self.barrier(opts)

    def _gathered(self, outputs, tensor):
        """All ranks' inputs in separate tensors, which may have different sizes."""
        name = "all_gather"
        collected = _Arguments(name)
        self._check_count(outputs, name)
        _same_types([tensor, *outputs], name)
        own = outputs[self._rank]
        if own.numel() != tensor.numel():
            raise _library.InvalidArgumentError(
                f"acc: all_gather: rank {self._rank} has an input of {tensor.numel()} x {tensor.dtype}, and an "
                f"output of {own.numel()} x {own.dtype} for it")
        places = _places(collected.all_written(outputs))
        memory = collected.apart(collected.read(tensor), places, places[self._rank][0])
        return _Call(_c().group_all_gather,
                     (memory.data_ptr(), memory.nbytes, *_arrays(places)), lambda: outputs, collected)

    @_makes("allgather_", _c10d.AllgatherOptions, ["outputs", "inputs"], returns_tensors=True)
    def allgather(self, output_tensors, input_tensors):
        return self._gathered(_one(output_tensors, "all_gather"), _one(input_tensors, "all_gather"))

    @_makes("allgather_coalesced_", _c10d.AllgatherOptions, ["outputs", "inputs"])
    def allgather_coalesced(self, output_lists, input_list):
        """output_lists: by rank or by tensor; torch has used both."""
        by_tensor = output_lists
        if len(output_lists) == self._size and all(len(each) == len(input_list) for each in output_lists):
            by_tensor = list(zip(*output_lists))
        _check_lengths(by_tensor, input_list, "all_gather_coalesced")
        return _Calls([self._gathered(list(outputs), tensor) for outputs, tensor in zip(by_tensor, input_list)],
                      lambda: output_lists)

    def _gathered_in_one(self, output, tensor):
        name = "all_gather"
        _same([output], tensor, name, self._size)
        collected = _Arguments(name)
        places = _split_places(collected.written(output), self._size)
        memory = collected.apart(collected.read(tensor), places, places[self._rank][0])
        return _Call(_c().group_all_gather, (memory.data_ptr(), memory.nbytes, *_arrays(places)),
                     lambda: list(output.chunk(self._size) if output.dim() else [output]), collected)

    @_makes("_allgather_base_", _c10d.AllgatherOptions, ["outputs", "inputs"], returns_tensors=True)
    def all_gather_single(self, output, input_):
        return self._gathered_in_one(output, input_)

    @_makes("allgather_into_tensor_coalesced_", _c10d.AllgatherOptions, ["outputs", "inputs"])
    def all_gather_single_coalesced(self, outputs, inputs):
        _check_lengths(outputs, inputs, "all_gather_into_tensor_coalesced")
        calls = [self._gathered_in_one(*each) for each in zip(outputs, inputs)]
        return _Calls(calls, lambda: [list(of_rank) for of_rank in zip(*[call.result() for call in calls])])

    @_makes("gather_", _c10d.GatherOptions, ["outputs", "inputs"], fields=["rootRank"])
    def gather(self, output_tensors, input_tensors, root):
        name = "gather"
        tensor = _one(input_tensors, name)
        outputs = self._parts(output_tensors, root, name)
        _same(outputs, tensor, name)
        collected = _Arguments(name)
        places = _places(collected.all_written(outputs))
        memory = collected.apart(collected.read(tensor), places, places[root][0] if places else None)
        return _Call(_c().group_gather, (memory.data_ptr(), _arrays(places)[0], memory.nbytes, root),
                     lambda: outputs, collected)

    @_makes("scatter_", _c10d.ScatterOptions, ["outputs", "inputs"], fields=["rootRank"], returns_tensors=True)
    def scatter(self, output_tensors, input_tensors, root):
        name = "scatter"
        output = _one(output_tensors, name)
        inputs = self._parts(input_tensors, root, name)
        _same(inputs, output, name)
        collected = _Arguments(name)
        memory = collected.written(output)
        parts = [collected.read(each) for each in inputs]
        place = parts[root].data_ptr() if parts else None
        parts = [collected.apart(part, _places([memory]), place) for part in parts]
        return _Call(_c().group_scatter, (_arrays(_places(parts))[0], memory.data_ptr(), memory.nbytes, root),
                     lambda: output_tensors, collected)

    @_makes("reduce_scatter_", _c10d.ReduceScatterOptions, ["outputs", "inputs"], fields=["reduceOp"],
            returns_tensors=True)
    def reduce_scatter(self, output_tensors, input_tensors, op):
        name = "reduce_scatter"
        output, inputs = _one(output_tensors, name), _one(input_tensors, name)
        self._check_count(inputs, name)
        _same([inputs[self._rank]], output, name)
        if len({each.numel() for each in inputs}) > 1:
            return self._reduced_one_by_one(output, inputs, op)
        _same(inputs, output, name)
        collected = _Arguments(name)
        memory, element, op = self._reduced(output, op, collected)
        parts = [collected.apart(collected.read(_real(each)), _places([memory]), memory.data_ptr())
                 for each in inputs]
        return _Call(_c().group_reduce_scatter,
                     (_arrays(_places(parts))[0], memory.data_ptr(), memory.numel(), element, op),
                     lambda: output_tensors, collected)

    def _reduced_one_by_one(self, output, inputs, op):
        """reduce_scatter of inputs of different sizes: each is reduced to its rank."""
        _same_types([output, *inputs], "reduce_scatter")
        calls = []
        for root, tensor in enumerate(inputs):
            collected = _Arguments("reduce_scatter")
            tensor = collected.apart(collected.read(tensor), _places([output]))
            if root == self._rank:
                tensor = tensor.detach().clone()
                collected.pairs.append((output, tensor))
            memory, element, number = self._reduced(tensor, op, collected)
            calls.append(_Call(_c().group_reduce, (memory.data_ptr(), memory.numel(), element, number, root),
                               list, collected))
        return _Calls(calls, lambda: [output])

    def _reduced_to_parts(self, output, tensor, op):
        name = "reduce_scatter"
        _same([tensor], output, name, self._size)
        collected = _Arguments(name)
        memory, element, op = self._reduced(output, op, collected)
        whole = collected.read(_real(tensor))
        places = _split_places(whole, self._size)
        if (memory.data_ptr(), memory.nbytes) not in places:  # a result may have the place of a part of the input
            places = _split_places(collected.apart(whole, _places([memory])), self._size)
        return _Call(_c().group_reduce_scatter,
                     (_arrays(places)[0], memory.data_ptr(), memory.numel(), element,
                      op), lambda: [output], collected)

    @_makes("_reduce_scatter_base_", _c10d.ReduceScatterOptions, ["outputs", "inputs"], fields=["reduceOp"],
            returns_tensors=True)
    def reduce_scatter_single(self, output, input_, op):
        return self._reduced_to_parts(output, input_, op)

    @_makes("reduce_scatter_tensor_coalesced_", _c10d.ReduceScatterOptions, ["outputs", "inputs"], fields=["reduceOp"])
    def reduce_scatter_single_coalesced(self, outputs, inputs, op):
        _check_lengths(outputs, inputs, "reduce_scatter_tensor_coalesced")
        return _Calls([self._reduced_to_parts(*each, op) for each in zip(outputs, inputs)], lambda: outputs)

    @_makes("alltoall_", _c10d.AllToAllOptions, ["outputs", "inputs"], returns_tensors=True)
    def alltoall(self, output_tensors, input_tensors):
        name = "all_to_all"
        self._check_count(input_tensors, name)
        self._check_count(output_tensors, name)
        _same_types([*input_tensors, *output_tensors], name)
        collected = _Arguments(name)
        places = _places(collected.all_written(output_tensors))
        ins = [collected.apart(collected.read(each), places) for each in input_tensors]
        return _Call(_c().group_all_to_all, (*_arrays(_places(ins)), *_arrays(places)),
                     lambda: output_tensors, collected)

    def _splits(self, tensor, sizes, name):
        """The places of the parts of a tensor that is split in its first dimension."""
        length = tensor.shape[0] if tensor.dim() else None
        if length is None or (not sizes and length % self._size):
            raise _library.InvalidArgumentError(
                f"acc: all_to_all: the first dimension of the {name}, {length}, is not "
                f"divisible by the number of ranks, {self._size}")
        if not sizes:
            return _split_places(tensor, self._size)
        if len(sizes) != self._size or sum(sizes) != length or min(sizes) < 0:
            raise _library.InvalidArgumentError(
                f"acc: all_to_all: the split sizes {list(sizes)} of the {name} do not add up to "
                f"its first dimension, {length}, on {self._size} ranks")
        row = tensor.nbytes // length if length else 0
        ends = [row * end for end in itertools.accumulate(sizes, initial=0)]
        return [(tensor.data_ptr() + begin, end - begin) for begin, end in zip(ends, ends[1:])]

    @_makes("alltoall_base_", _c10d.AllToAllOptions, ["output", "input"], values=["output splits", "input splits"])
    def all_to_all_single(self, output, input_, output_split_sizes, input_split_sizes):
        _same_types([output, input_], "all_to_all")
        collected = _Arguments("all_to_all")
        out = collected.written(output)
        memory = collected.apart(collected.read(input_), _places([out]))
        ins = self._splits(memory, input_split_sizes, "input")
        outs = self._splits(out, output_split_sizes, "output")
        return _Call(_c().group_all_to_all, (*_arrays(ins), *_arrays(outs)), lambda: [output], collected)

    @_makes("send", None, ["tensors"], values=["to", "tag"])
    def send(self, tensors, to, tag):
        collected = _Arguments("send")
        memory = collected.read(_one(tensors, "send"))
        return _Call(_c().group_send, (memory.data_ptr(), memory.nbytes, to, tag), lambda: tensors, collected)

    def _received(self, tensors, from_, tag):
        collected = _Arguments("receive")
        memory = collected.written(_one(tensors, "receive"))

        def receive(group, *arguments):  # the library has one more argument before the last
            *first, work = arguments
            _c().group_receive(group, *first, None, work)

        return _Call(receive, (memory.data_ptr(), memory.nbytes, from_, tag), lambda: tensors, collected)

    @_makes("recv_", None, ["tensors"], values=["from", "tag"])
    def recv(self, tensors, from_, tag):
        if from_ < 0:
            raise _library.InvalidArgumentError(f"acc: receive from rank {from_}")
        return self._received(tensors, from_, tag)

    @_makes("recv_any_source_", None, ["tensors"], values=["tag"])
    def recv_anysource(self, tensors, tag):
        return self._received(tensors, -1, tag)

    def _start_coalescing(self, device):
        if device.type != "cpu":
            return super()._start_coalescing(device)
        self._coalesced = []

    def _end_coalescing(self, device):
        if device.type != "cpu":
            return super()._end_coalescing(device)
        works, self._coalesced = self._coalesced, None
        return _Works(self, works, lambda: [tensor for work in works for tensor in work.result()])

    # Names before torch 2.11. For the other old names torch itself calls the new ones.
    _allgather_base = all_gather_single
    _reduce_scatter_base = reduce_scatter_single


@functools.cache
def _register_kernels():
    """Gives torch's operators the kernels that calls of the groups reach. They are kept for ever."""
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "CustomRNGKeyId")
    kernels = torch.library.Library("c10d", "IMPL")
    for method in {*vars(ProcessGroup).values()}:
        if collective := getattr(method, "collective", None):
            kernels.impl(collective.op, _kernel_of(collective), "CustomRNGKeyId")
    return others, kernels


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
    store = options.store

    def set_(context, key, value, nbytes):
        store.set(prefix + key.decode(), c.string_at(value, nbytes))

    def get(context, key, value, capacity, nbytes):
        found = store.get(prefix + key.decode())
        nbytes[0] = len(found)
        c.memmove(value, found, min(len(found), capacity))

    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    secret = os.environ.get("ACC_JOB_SECRET")
    config = _Config(size=c.sizeof(_Config), rank=options.group_rank, num_ranks=options.group_size,
                     ranks=(c.c_int32 * len(ranks))(*ranks), name=str(options.group_id).encode(),
                     timeout_ms=_milliseconds(options.timeout) or _DEFAULT_TIMEOUT_MS,
                     secret=secret.encode() if secret else None,
                     set=_library.callback(_SetFunction, set_),
                     get=_library.callback(_GetFunction, get), context=_c().callback_context)
    made = _P()
    _c().group_create(c.byref(config), c.byref(made))
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
