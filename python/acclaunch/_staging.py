# SPDX-License-Identifier: Apache-2.0
"""Copies in host memory of what a program saves, from which a thread makes the files (_save_async)."""

import collections
import collections.abc
import copy
import ctypes as c
import functools
import inspect
import os

import torch

_CHUNK = 32 << 20
_PRIVATE_MEMORY, _READ_WRITE = 0x22, 0x3  # MAP_PRIVATE | MAP_ANONYMOUS, PROT_READ | PROT_WRITE of mmap(2)
_DONTFORK, _HUGEPAGE = 10, 14  # of madvise(2)
_libc = c.CDLL(None, use_errno=True)
_libc.mmap.restype = c.c_void_p
_libc.mmap.argtypes = (c.c_void_p, c.c_size_t, c.c_int, c.c_int, c.c_int, c.c_int64)
_libc.madvise.argtypes = (c.c_void_p, c.c_size_t, c.c_int)


_locked = []  # never freed, as a process that was forked must not


class _Chunk:
    def __init__(self, size, locked):
        self.size, self.used = size, 0
        if locked:
            _locked.append(torch.empty(size, dtype=torch.uint8, pin_memory=True))
            address = _locked[-1].data_ptr()
        else:
            address = _libc.mmap(None, size, _READ_WRITE, _PRIVATE_MEMORY, -1, 0)
            if address in (None, c.c_void_p(-1).value):
                raise MemoryError(f"no {size} bytes of host memory for the copy of what is saved")
            # A process forked while a save is written would else make each page of the next copy a new one.
            _libc.madvise(address, size, _DONTFORK)
            _libc.madvise(address, size, _HUGEPAGE)
        self.memory = (c.c_char * size).from_address(address)
        self.addresses = range(address, address + size)


class Staging:
    """Memory for copies, all of which are dropped together. It is kept for the next ones, since the kernel takes as
    long to give a page as to copy one, and never unmapped: in a process that was forked other memory may have its
    place. It has page-locked chunks for what is copied from a GPU."""

    def __init__(self):
        self.chunks = {False: [], True: []}  # by whether they are page-locked
        self.streams = set()  # with copies from GPUs that have not ended

    def reset(self):
        for each in (*self.chunks[False], *self.chunks[True]):
            each.used = 0

    def synchronize(self):
        """Waits for the copies from GPUs."""
        for stream in self.streams:
            stream.synchronize()
        self.streams.clear()

    def _take(self, nbytes, locked=False):
        if nbytes == 0:
            return torch.UntypedStorage(0)
        chunks = self.chunks[locked]
        chunk = next((each for each in chunks if each.size - each.used >= nbytes), None)
        if chunk is None:
            chunk = _Chunk(max(nbytes, _CHUNK), locked)
            chunks.append(chunk)
        begin, chunk.used = chunk.used, min(chunk.size, chunk.used + -(-nbytes // 64) * 64)
        return torch.frombuffer(chunk.memory, dtype=torch.uint8, count=nbytes, offset=begin).untyped_storage()

    def empty(self, shape, stride, dtype, locked=False):
        """A tensor without gaps."""
        made = torch.empty(0, dtype=dtype)
        numel = torch.Size(shape).numel()
        return made.set_(self._take(numel * made.element_size(), locked), 0, shape, stride)

    def _note(self, source):
        if source.device.type == "cuda":
            self.streams.add(torch.cuda.current_stream(source.device))

    def storage_copy(self, storage):
        """A copy of a storage; that of `empty` itself."""
        if any(storage.data_ptr() in each.addresses for each in (*self.chunks[False], *self.chunks[True])):
            return storage
        made = self._take(storage.nbytes(), storage.device.type == "cuda")
        if storage.nbytes():
            made.copy_(storage, non_blocking=True)
            self._note(storage)
        return made

    def tensor_copy(self, tensor):
        """A copy, with the strides that clone() would give it."""
        tensor = tensor.detach()
        if type(tensor) is not torch.Tensor or not _is_dense(tensor):
            return tensor.clone().cpu()
        made = self.empty(tensor.shape, tensor.stride(), tensor.dtype, tensor.device.type == "cuda")
        made.copy_(tensor, non_blocking=True)
        self._note(tensor)
        return made

    def copies(self, tensors):
        """Copies of tensors by name, of which those that share a storage do so too."""
        users = collections.Counter(each.untyped_storage()._cdata for each in tensors.values())
        storages, found = {}, {}
        for name, each in tensors.items():
            each = each.detach()
            memory = each.untyped_storage()._cdata
            if users[memory] == 1 and _is_dense(each):
                found[name] = self.tensor_copy(each)
                continue
            if memory not in storages:
                storages[memory] = self.storage_copy(each.untyped_storage())
            found[name] = torch.empty(0, dtype=each.dtype).set_(storages[memory], each.storage_offset(), each.shape,
                                                                each.stride())
        return found

    def state_copy(self, value):
        """A copy of a state dict for torch DCP."""
        from torch.distributed.tensor import DTensor

        from acclaunch import _rows
        if isinstance(value, DTensor):
            return _rows.with_spec(self.tensor_copy(value._local_tensor), value._spec)
        if isinstance(value, torch.Tensor):
            return self.tensor_copy(value)
        if isinstance(value, collections.abc.Mapping):
            return {key: self.state_copy(each) for key, each in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.state_copy(each) for each in value)
        return copy.deepcopy(value)


def _is_dense(tensor):
    """True for a tensor whose elements are its own, in memory without gaps, as a copy of it has them."""
    return tensor.layout is torch.strided and not (tensor.is_quantized or tensor.is_conj() or tensor.is_neg()) and (
        tensor.is_contiguous() or torch.empty_like(tensor, device="meta").stride() == tensor.stride())


class Records:
    """In place of a file of torch.save: what it would write, of which storages are copied."""

    def __init__(self, staging):
        self.staging, self.calls = staging, []

    def write(self, _):
        raise NotImplementedError("torch.save writes by another way than this version of acclaunch knows")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def write_record(self, name, data, size):
        self.calls.append(("write_record", name, self.staging.storage_copy(data) if torch.is_storage(data) else data,
                           size))

    def write_record_metadata(self, name, size):  # with torch.serialization.skip_data
        self.calls.append(("write_record_metadata", name, size))

    def write_to(self, path, open_writer):
        """open_writer: that of torch.save."""
        try:
            with open_writer(path) as file:
                for function, *arguments in self.calls:
                    getattr(file, function)(*arguments)
        except RuntimeError:  # which does not say why: the next write does
            with open(path, "ab") as file:
                file.write(bytes(1 << 20))
            raise


# ---- dcp.async_save ------------------------------------------------------------------------------------

_idle = []  # memory of those that have ended
os.register_at_fork(after_in_child=_idle.clear)


def serve_async_save(module):
    """module: torch.distributed.checkpoint. The copies of its async_save are in memory that is kept too."""
    original = module.async_save
    if "async_stager" not in inspect.signature(original).parameters:
        return

    class Stager(module.staging.BlockingAsyncStager):
        memory = None

        def stage(self, state_dict):
            copies = self.memory.state_copy(state_dict)
            self.memory.synchronize()
            return copies

    @functools.wraps(original)
    def async_save(state_dict, *, storage_writer=None, async_stager=None, **keywords):
        if async_stager is not None or "async_checkpointer_type" in keywords or not (
                storage_writer is None or type(storage_writer) is module.FileSystemWriter):
            return original(state_dict, storage_writer=storage_writer, async_stager=async_stager, **keywords)
        stager = Stager()
        stager.memory = memory = _idle.pop() if _idle else Staging()

        def end(*_):
            memory.reset()
            _idle.append(memory)

        try:
            future = original(state_dict, storage_writer=storage_writer, async_stager=stager, **keywords)
        except BaseException:
            end()
            raise
        future.add_done_callback(end)
        return future

    module.async_save = async_save
