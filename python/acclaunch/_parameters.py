# SPDX-License-Identifier: Apache-2.0
"""Parameters of a sharded module: what stands in their place between uses, and tensors that are views
of the library's memory."""

import ctypes

import torch

from acclaunch._library import InvalidArgumentError

DTYPES = (torch.float32, torch.bfloat16, torch.float16)  # by acc_dtype


class Uncopied:
    """Refuses copies and pickles of a sharded module: its parts belong to this process's library."""

    def __reduce_ex__(self, _):
        raise InvalidArgumentError("a sharded module cannot be copied or pickled (copy.deepcopy, "
                                   "torch.save): acc.state_dict(module) returns its values")


class ShardedParameter(Uncopied, torch.Tensor):
    """Stands for a parameter outside of the uses of its unit: it has shape, dtype, device and
    requires_grad, but no values."""

    _is_param = True  # isinstance(…, torch.nn.Parameter)

    @staticmethod
    def __new__(cls, name, unit, shape, dtype, device, requires_grad):
        made = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device,
                                                   requires_grad=requires_grad)
        made.acc_name, made.acc_unit = name, unit
        return made

    def __repr__(self, **_):
        return (f"ShardedParameter({self.acc_name!r}, {list(self.shape)}, {self.dtype}, "
                f"requires_grad={self.requires_grad})")

    def __deepcopy__(self, _):
        self.__reduce_ex__(4)

    def _misused(self, function):
        return InvalidArgumentError(
            f"{function}: parameter '{self.acc_name}' is sharded and has values only while the "
            f"forward of its unit '{self.acc_unit}' runs; acc.state_dict(module) returns the values "
            "of all parameters, acc.load_weights sets them, and the unit's dtype and device cannot "
            "be changed")

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        for each in torch.utils._pytree.tree_leaves((arguments, keywords)):
            if isinstance(each, cls):
                raise each._misused(str(function))
        raise InvalidArgumentError(f"{function} of a sharded parameter")


# Names of NumPy's array interface for integers of the width of a dtype.
_TYPE_STRINGS = {4: "<f4", 2: "<i2"}


class _DeviceMemory:
    """Memory of a GPU for torch.as_tensor."""

    def __init__(self, address, shape, nbytes):
        self.__cuda_array_interface__ = {"data": (address, False), "shape": shape, "version": 2,
                                         "typestr": _TYPE_STRINGS[nbytes]}


@torch.inference_mode(False)  # a tensor made in inference mode could not be used in a backward
def view(address, shape, dtype, device):
    """A tensor, [shape], whose elements are the library's memory at `address`."""
    if device.type == "cuda":
        found = torch.as_tensor(_DeviceMemory(address, tuple(shape), dtype.itemsize), device=device)
        return found if found.dtype is dtype else found.view(dtype)
    nbytes = shape.numel() * dtype.itemsize
    memory = (ctypes.c_char * nbytes).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
