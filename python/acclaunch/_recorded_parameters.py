# SPDX-License-Identifier: Apache-2.0
"""Names of the modules and parameters of a program's models, the same under all wrappers, and the parts of parameters
that this rank's optimizers update: whole ones, rows of DTensors, and ranges of the flat parameters of FSDP 1 and
DeepSpeed."""

import math
import sys
import typing
import weakref

import torch
from torch.utils.weak import WeakIdKeyDictionary

# By class: the attribute of a wrapper that has the module of the program.
_INNER = {"DistributedDataParallel": "module", "DataParallel": "module", "DeepSpeedEngine": "module",
          "FullyShardedDataParallel": "_fsdp_wrapped_module", "OptimizedModule": "_orig_mod",
          "CheckpointWrapper": "_checkpoint_wrapped_module", "OffloadWrapper": "_checkpoint_wrapped_module"}
_WRAPPERS = {"DistributedDataParallel": "ddp", "DataParallel": "ddp", "DeepSpeedEngine": "deepspeed",
             "FullyShardedDataParallel": "fsdp", "FSDPModule": "fsdp2"}


def _classes_of(module):
    return [each.__name__ for each in type(module).__mro__]


def _inner(module):
    """The module in a wrapper, or None."""
    for name in _classes_of(module):
        if name in _INNER:
            return getattr(module, _INNER[name], None)
    return None


def unwrapped(module):
    inner = _inner(module)
    return module if inner is None else unwrapped(inner)


def wrapper_of(root):
    """The outermost wrapper of a model, for the key of this name."""
    engine, own = sys.modules.get("acclaunch._fsdp2"), sys.modules.get("acclaunch._parameters")
    if engine is not None and any(engine.state_of(module) is not None for module in root.modules()):
        return "acc"
    if own is not None and any(isinstance(each, own.ShardedParameter) for each in root.parameters()):
        return "acc"
    return next((_WRAPPERS[name] for module in root.modules() for name in _classes_of(module) if name in _WRAPPERS),
                "none")


def walk(module, name="", known=None):
    """Yields the modules in a module, and their names: of several names of a module the first one, and without those of
    wrappers, of which the innermost module counts."""
    known = set() if known is None else known
    if module in known:
        return
    known.add(module)
    inner = _inner(module)
    if inner is None:
        yield name, module
    for part, child in module._modules.items():
        if child is not None:
            yield from walk(child, name if child is inner else f"{name}.{part}".lstrip("."), known)


class Piece(typing.NamedTuple):
    """A part of a parameter: `count` elements from `begin` in the whole one, row by row, and from `start` in the tensor
    that an optimizer updates."""
    name: str
    shape: tuple
    begin: int
    start: int
    count: int


class Entry(typing.NamedTuple):
    """A parameter as the model has it. tensor: what holds its values, or a part of them."""
    name: str
    shape: tuple
    tensor: torch.Tensor
    same_as: typing.Optional[str]


def _entries_of(root, prefix):
    """All parameters, also those that FSDP 1 has made flat, and tied ones."""
    flats = list(_flat_parameters(root, prefix))
    shapes = {id(parameter): shape for flat, _ in flats for parameter, shape in zip(flat._params or (), flat._shapes)}
    first = {}  # names by the identity of parameters
    for name, module in walk(root, prefix):
        for attribute, parameter in module._parameters.items():
            if parameter is not None and not hasattr(parameter, "_fqns"):
                full = _joined(name, attribute)
                shape = getattr(parameter, "ds_shape", None) or shapes.get(id(parameter), parameter.shape)
                yield Entry(full, tuple(shape), parameter, first.get(id(parameter)))
                first.setdefault(id(parameter), full)
    for flat, before in flats:
        if flat._params is None:  # else the modules have them
            known = {}
            for fqn, shape in zip(flat._fqns, flat._shapes):
                known[fqn] = tuple(shape)
                yield Entry(_joined(before, _plain(fqn)), tuple(shape), flat, None)
            for info in flat._shared_param_infos:
                fqn = _joined(info.prim_module_name, info.prim_param_name)
                yield Entry(_joined(before, _plain(_joined(info.module_name, info.param_name))), known[fqn], flat,
                            _joined(before, _plain(fqn)))


def _joined(*parts):
    return ".".join(filter(None, parts))


# ---- FSDP 1 --------------------------------------------------------------------------------------


def _flat_parameters(root, prefix):
    """The flat parameters of torch's FSDP 1, and the names of the modules from which their parameters' names start."""
    wrappers = [each for each in root.modules() if hasattr(getattr(each, "_handle", None), "flat_param")]
    if wrappers:
        names = {module: name for name, module in walk(root, prefix)}
        for each in wrappers:
            yield each._handle.flat_param, names.get(unwrapped(each), "")


def _plain(fqn):
    """Without the names of other wrappers."""
    return fqn.replace("_checkpoint_wrapped_module.", "").replace("_orig_mod.", "")


def _pieces_of_flat(flat, before):
    """Yields parameters of an optimizer, and pieces in them."""
    sharded = getattr(flat, "_shard_param_infos", None)
    for number, (fqn, shape) in enumerate(zip(flat._fqns, flat._shapes)):
        begin, start, count = 0, _offset_in(flat, number), math.prod(shape)
        if sharded:
            info = sharded[number]
            begin, start, count = (info.intra_param_start_idx, info.offset_in_shard, info.numel_in_shard) \
                if info.in_shard else (0, 0, 0)
        piece = Piece(_joined(before, _plain(fqn)), tuple(shape), begin, start, count)
        if flat._params is None:
            yield flat, piece
        else:
            yield flat._params[number], piece._replace(start=0)


def _offset_in(flat, number):
    real = [index for index, is_padding in enumerate(flat._is_padding_mask) if not is_padding]
    return sum(flat._numels_with_padding[:real[number]])


# ---- DeepSpeed -----------------------------------------------------------------------------------


def _part_of_deepspeed(parameter, name):
    """The tensor in which DeepSpeed's optimizer updates a part of a parameter, and the piece; None: without a part."""
    fragment = getattr(parameter, "_hp_mapping", None)
    if fragment is not None:
        where = fragment.lp_fragment_address
        return fragment.hp_fragment, Piece(name, tuple(parameter.shape), where.start, 0, where.numel)
    optimizer = getattr(parameter, "_z3_optimizer", None)
    if optimizer is None or optimizer.get_param_id(parameter) not in optimizer.grad_position:
        return None
    group, start, _ = optimizer.grad_position[optimizer.get_param_id(parameter)]
    begin = parameter.partition_numel() * optimizer._get_param_partition_rank(parameter)
    count = max(0, min(parameter.partition_numel(), parameter.ds_numel - begin))
    return optimizer.fp32_partitioned_groups_flat[group][start:start + count], \
        Piece(name, tuple(parameter.ds_shape), begin, 0, count)


def _masters_of(engine):
    """Parameters and the tensors in which DeepSpeed's optimizers without ZeRO update them in 32 bits."""
    optimizer = getattr(engine, "optimizer", None)
    groups = getattr(optimizer, "fp16_groups", ())
    for group, flat in zip(groups, getattr(optimizer, "fp32_groups_flat", ())):
        yield from zip(group, flat.detach().split([each.numel() for each in group]))
    for group, masters in zip(groups, getattr(optimizer, "fp32_groups", ())):
        yield from zip(group, masters)


# ---- all -----------------------------------------------------------------------------------------


def _is_rows(tensor):
    return all(each.is_replicate() or each.is_shard(0) for each in tensor.placements)


def local_of(tensor):
    """This rank's elements of a parameter or gradient."""
    if hasattr(tensor, "placements"):
        return tensor._local_tensor if _is_rows(tensor) else tensor.full_tensor()
    return tensor


def _begin_of_rows(tensor):
    """The index of the first element of this rank of a DTensor."""
    if not _is_rows(tensor) or tensor.dim() == 0:
        return 0
    begin, count = 0, tensor.shape[0]
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_shard(0):
            each = -(-count // tensor.device_mesh.size(dimension))
            first = min(count, each * tensor.device_mesh.get_local_rank(dimension))
            begin, count = begin + first, min(count - first, each)
    return begin * math.prod(tensor.shape[1:])


class Names:
    """Of all models that the program has used."""

    def __init__(self):
        self.modules = weakref.WeakKeyDictionary()
        self.roots = {}  # weak references to outermost modules, by the beginnings of their names
        self._parameters = WeakIdKeyDictionary()  # by a tensor of an optimizer: pieces
        self._ranges = {}  # of DeepSpeed, by the storage: the first element's address, its end, and a piece

    def learn(self, root):
        """Returns the beginning of the model's names, and True if the model is new."""
        inner, self._parameters = unwrapped(root), WeakIdKeyDictionary()
        for prefix, known in self.roots.items():
            if known() is root:
                return prefix, False
            if known() is not None and unwrapped(known()) is inner:
                break
        else:
            prefix = f"{type(inner).__name__}{len(self.roots)}" if self.roots else ""
        self.roots[prefix] = weakref.ref(root)
        self._name_modules(root, prefix)
        return prefix, True

    def _name_modules(self, root, prefix):
        for name, module in walk(root, prefix):
            self.modules.setdefault(module, name)

    def entries(self, root, prefix):
        return list(_entries_of(root, prefix))

    def _learn_parameters(self):
        self._ranges = {}
        for prefix, known in self.roots.items():
            root = known()
            if root is None:
                continue
            found = WeakIdKeyDictionary()
            for flat, before in _flat_parameters(root, prefix):
                for parameter, piece in _pieces_of_flat(flat, before):
                    found.setdefault(parameter, []).append(piece)
            for name, _, parameter, same_as in _entries_of(root, prefix):
                if same_as is None and parameter not in found:
                    found[parameter] = [self._piece_of(parameter, name)]
            for parameter, master in _masters_of(root):
                self._add_range(master, *found[parameter])
            self._parameters.update(found)

    def _piece_of(self, parameter, name):
        part = _part_of_deepspeed(parameter, name)
        if part is not None:
            self._add_range(*part)
        whole = Piece(name, tuple(parameter.shape), 0, 0, parameter.numel())
        if not hasattr(parameter, "placements") or not _is_rows(parameter):
            return whole
        local = local_of(parameter)
        piece = whole._replace(begin=_begin_of_rows(parameter), count=local.numel())
        self._add_range(local, piece)
        return piece

    def _add_range(self, tensor, piece):
        if tensor.numel():
            self._ranges.setdefault(tensor.untyped_storage().data_ptr(), []).append((tensor.data_ptr(), piece))

    def pieces_of(self, parameter):
        """The pieces in a tensor of an optimizer; none: no model has it."""
        found = self._parameters.get(parameter)
        if found is None:
            found = self._pieces_in(parameter)
            if not found:
                self._learn_parameters()
                found = self._parameters.get(parameter) or self._pieces_in(parameter)
            self._parameters[parameter] = found
        return found

    def _pieces_in(self, parameter):
        """Those in a tensor that shares its memory with a part of a parameter."""
        tensor = local_of(parameter.detach())
        if not tensor.numel() or tensor.layout is not torch.strided:
            return []
        begin, size = tensor.data_ptr(), tensor.element_size()
        end = begin + tensor.numel() * size
        return [piece._replace(start=(address - begin) // size)
                for address, piece in self._ranges.get(tensor.untyped_storage().data_ptr(), ())
                if begin <= address < end]
