# SPDX-License-Identifier: Apache-2.0
"""Parameters of a sharded module: what stands in their place between uses, and tensors that are views
of the library's memory."""

import ctypes
import functools

import torch

from acclaunch._library import InvalidArgumentError

# By acc_dtype; None: a number that is not used, or a dtype that this torch lacks. The first three are
# those of parameters.
DTYPES = tuple(getattr(torch, name, None) for name in (
    "float32", "bfloat16", "float16", "float64", "", "uint8", "bool", "int8", "int16", "uint16", "int32",
    "uint32", "int64", "uint64", "complex32", "complex64", "complex128", "float8_e4m3fn",
    "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu"))
# What optimizers need that differ, or fail, on a part of a parameter: by their package, or by the name of their class.
_NEEDS = {"bitsandbytes": "norms, or blocks of elements, of whole parameters",
          "ZeroRedundancyOptimizer": "whole parameters, which it divides over ranks itself"}


def needs_of(optimizer, more=()):
    """What an optimizer, or the class that it is a subclass of, is known to need; None: nothing. more: names of further
    classes, which need more than one element at a time."""
    needs = _NEEDS | dict.fromkeys(more, "more than one element at a time")
    keys = (key for cls in type(optimizer).__mro__ for key in (cls.__module__.partition(".")[0], cls.__name__))
    return next((needs[key] for key in keys if key in needs), None)


def outside_graphs(function):
    """Decorator: torch.compile does not look into the function, nor into what it calls, as it does not into torch's
    functions in C++ and torch's hooks of sharded modules. What runs between two such calls may be compiled with
    fullgraph=True."""
    frames = torch._C._dynamo.eval_frame
    if not hasattr(frames, "_FrameExecStrategy"):  # torch 2.6
        return torch._dynamo.disable(function)
    function._torchdynamo_disable = True  # where it would be a part of a graph
    frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(  # where it is called between graphs
        frames._FrameAction.SKIP, frames._FrameAction.SKIP))
    return function


def aligned(nbytes, to=64):
    return -(-nbytes // to) * to


_WEIGHTS = torch.arange(1, 2 ** 17, 2, device="cpu")


def checksum(tensors):
    """A number below 2**53 in which a change of the values shows, and one of their order."""
    total = 0
    for each in tensors:
        found = each.detach().contiguous().view(-1).view(torch.uint8)
        if found.numel() % 8 or found.storage_offset() % 8:
            found = torch.nn.functional.pad(found, (0, -found.numel() % 8))
        weights = _WEIGHTS.to(found.device)
        for part in found.view(torch.int64).split(len(weights)):
            total = total * 3 + (part * weights[:len(part)]).sum()  # int64, which wraps around
    return float(int(total) % (2 ** 53 - 111))


class Uncopied:
    """Refuses copies and pickles of a sharded module: its parts belong to this process's library."""

    def __reduce_ex__(self, _):
        raise InvalidArgumentError("a sharded module cannot be copied or pickled (copy.deepcopy, torch.save): copy it "
                                   "before it is sharded, or take its state dict (with acc.fully_shard: "
                                   "acc.state_dict(module))")


class ShardedParameter(Uncopied, torch.Tensor):
    """Stands for a parameter outside of the uses of its unit: it has shape, dtype, device and
    requires_grad, but no values."""

    _is_param = True  # isinstance(…, torch.nn.Parameter)

    @staticmethod
    def __new__(cls, name, unit, shape, dtype, device, requires_grad):
        """unit: the Unit that contains it."""
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device,
                                                   requires_grad=requires_grad)
        made.acc_name, made._unit = name, unit
        return made

    @property
    def grad(self):
        """None: the library holds gradients. Raises after a backward that wrote some: code that clips or
        changes them would find none."""
        if self.requires_grad and self._unit.model.has_gradients:
            raise InvalidArgumentError(
                f"grad of the sharded parameter '{self.acc_name}': the runtime holds the gradients until "
                "optimizer.step(), which returns their norm. optimizer.clip_norm = 1.0 clips by norm (instead "
                "of torch.nn.utils.clip_grad_norm_), optimizer.clip_value by value; optimizer.zero_grad() and that "
                "of the sharded module drop them")
        return None

    @grad.setter
    def grad(self, value):
        if value is not None:
            raise InvalidArgumentError(f"grad of the sharded parameter '{self.acc_name}' cannot be set: the "
                                       "runtime holds the gradients")

    @property
    def data(self):
        return self.detach()

    @data.setter
    def data(self, _):
        raise self._misused("data = …")

    def data_ptr(self):
        raise self._misused("data_ptr")

    def untyped_storage(self):
        raise self._misused("untyped_storage")

    def __repr__(self, **_):
        return (f"ShardedParameter({self.acc_name!r}, {list(self.shape)}, {self.dtype}, "
                f"requires_grad={self.requires_grad})")

    def __deepcopy__(self, _):
        self.__reduce_ex__(4)

    def _misused(self, function):
        return InvalidArgumentError(
            f"{function}: parameter '{self.acc_name}' is sharded and has values only while the "
            f"forward of its unit '{self._unit.label}' runs; acc.state_dict(module) returns the values "
            "of all parameters, `with acc.gathered(module):` makes them whole, acc.load_weights sets "
            "them, and the unit's dtype and device cannot be changed")

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        if function is torch.ops.aten.detach.default:  # module.state_dict() takes one of each
            given = arguments[0]
            return cls(given.acc_name, given._unit, given.shape, given.dtype, given.device, False)
        for each in torch.utils._pytree.tree_leaves((arguments, keywords)):
            if isinstance(each, cls):
                raise each._misused(str(function))
        raise InvalidArgumentError(f"{function} of a sharded parameter")


# Names of NumPy's array interface for a dtype of this width.
_TYPE_STRINGS = {1: "|u1", 2: "<i2", 4: "<f4", 8: "<i8", 16: "<c16"}


class _DeviceMemory:
    """Memory of a GPU for torch.as_tensor."""

    def __init__(self, address, shape, nbytes, owner):
        self.owner = owner
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "version": 2,
                                         "typestr": _TYPE_STRINGS[nbytes]}


@functools.cache  # made anew, such a type takes longer than all else in a view
def _bytes_of(nbytes):
    return ctypes.c_char * nbytes


def view(address, shape, dtype, device, owner=None):
    """A tensor, [shape], whose elements are the library's memory at `address`. owner: an object that lives
    as long as the tensor's memory is used."""
    if torch.is_inference_mode_enabled():  # a tensor made there could not be used in a backward
        with torch.inference_mode(False):
            return view(address, shape, dtype, device, owner)
    if shape.numel() == 0:
        return torch.empty(shape, dtype=dtype, device=device)
    if device.type == "cuda":
        found = torch.as_tensor(_DeviceMemory(address, tuple(shape), dtype.itemsize, owner), device=device)
        return found if found.dtype is dtype else found.view(dtype)
    nbytes = shape.numel() * dtype.itemsize
    memory = _bytes_of(nbytes).from_address(address)
    memory.owner = owner
    return torch.frombuffer(memory, dtype=dtype).view(shape)
