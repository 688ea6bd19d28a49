# SPDX-License-Identifier: Apache-2.0
"""bitsandbytes' optimizers on this rank's rows, with bitsandbytes' own update. Blocks of 8-bit states begin with the
whole parameter: ranks whose rows divide a block send each other their elements of it, and each computes the whole
block. Scales are whole on each rank, so that states can be saved and loaded on any number of ranks."""

import functools
import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from acclaunch import _rows
from acclaunch._library import refuse

_BLOCK = 256  # of bitsandbytes' 8-bit states
_ELEMENTWISE = ("adam", "adagrad", "lion", "momentum", "rmsprop")  # names of rules in bitsandbytes
_CODES = "state1", "state2"
_SCALES = "absmax1", "absmax2"
_KNOWN = {"step", "qmap1", "qmap2", *_CODES, *_SCALES}


def serves(optimizer):
    """True for an optimizer of bitsandbytes whose update treats each element, or block, by itself."""
    return (getattr(optimizer, "optimizer_name", None) in _ELEMENTWISE
            and type(optimizer).__module__.startswith("bitsandbytes.") and optimizer.args.max_unorm == 0)


def serve(module):
    """module: bitsandbytes.optim.optimizer."""
    original = module.Optimizer8bit.step

    @functools.wraps(original)
    @torch.no_grad()
    def step(self, closure=None):
        parameters = [each for group in self.param_groups for each in group["params"]]
        if not any(isinstance(each, DTensor) for each in parameters):
            return original(self, closure)
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self.initialized:
            self.check_overrides()
            self.initialized = True
        _step(self)
        return loss

    override = module.GlobalOptimManager.override_config

    @functools.wraps(override)
    def override_config(self, parameters, *arguments, **keywords):
        found = []
        for each in [parameters] if isinstance(parameters, torch.Tensor) else parameters:
            successor, _ = _rows.successor_of(each)
            found.append(each if successor is None else successor)
        override(self, found, *arguments, **keywords)

    module.Optimizer8bit.step = step
    module.GlobalOptimManager.override_config = override_config


def follow(parameter, successor):
    """Gives a parameter in the place of another one its options, which bitsandbytes keeps by the id of the object."""
    module = sys.modules.get("bitsandbytes.optim.optimizer")
    options = getattr(module and module.GlobalOptimManager._instance, "pid2config", {})
    if id(parameter) in options:
        options[id(successor)] = options[id(parameter)]


class _Span:
    """This rank's rows of a parameter, or those of another rank: elements [begin, end), and [first, last) with the
    whole blocks that they are part of."""

    def __init__(self, parameter, rank=None):
        numel = parameter.numel()
        self.begin, self.end = _rows.own_elements(parameter, rank)
        self.first = self.begin // _BLOCK * _BLOCK
        self.last = min(numel, -(-self.end // _BLOCK) * _BLOCK) if self.end > self.begin else self.first
        head = min(self.end, -(-self.begin // _BLOCK) * _BLOCK)
        tail = max(head, self.end // _BLOCK * _BLOCK) if self.end < numel else self.end
        self.shared = [each for each in ((self.begin, head), (tail, self.end)) if each[0] < each[1]]


def _blocks(begin, end):
    """Numbers of the blocks whose first element is in [begin, end)."""
    return slice(-(-begin // _BLOCK), -(-end // _BLOCK))


def _step(optimizer):
    _rows.distribute_states(optimizer, _CODES)
    work = {}  # by meshes
    for number, group in enumerate(optimizer.param_groups):
        for index, parameter in enumerate(group["params"]):
            if parameter.grad is None:
                continue
            if not optimizer.state[parameter]:
                optimizer.init_state(group, parameter, number, index)
            if not isinstance(parameter, DTensor):
                optimizer.update_step(group, parameter, number, index)
                continue
            _check(optimizer.state[parameter], parameter)
            if _SCALES[0] not in optimizer.state[parameter]:
                _update(optimizer, (group, parameter, number, index), _arrays(optimizer, parameter), {})
            else:
                work.setdefault(parameter.device_mesh, []).append((group, parameter, number, index))
    for mesh, members in work.items():
        parameters = [parameter for _, parameter, _, _ in members]
        arrays = [_arrays(optimizer, each) for each in parameters]
        for member, own, whole in zip(members, arrays, _with_shared(parameters, arrays, mesh)):
            span, state = _Span(member[1]), optimizer.state[member[1]]
            if span.begin == span.end:
                state["step"] += 1
                continue
            scales = {key: state[key][_blocks(span.first, span.last)] for key in _SCALES if key in state}
            _update(optimizer, member, whole, scales)
            for to, found in zip(own, whole):
                to.copy_(found[span.begin - span.first:span.end - span.first])
        _share_scales(optimizer, parameters, mesh)


def _check(state, parameter):
    """Refuses states of options for one parameter, such as max_unorm, and of versions of bitsandbytes with others."""
    if state.keys() - _KNOWN:
        refuse(f"bitsandbytes with the state '{min(state.keys() - _KNOWN)}' of a parameter")
    if _SCALES[0] in state and len(state[_SCALES[0]]) != -(-parameter.numel() // _BLOCK):
        refuse(f"bitsandbytes with blocks of other than {_BLOCK} elements")


def _arrays(optimizer, parameter):
    """This rank's elements of a parameter, of its gradient and its states: one dimension, views."""
    state = optimizer.state[parameter]
    tensors = [parameter, parameter.grad, *(state[key] for key in _CODES if key in state)]
    return [each._local_tensor.view(-1) for each in tensors]


def _update(optimizer, member, arrays, scales):
    """Calls bitsandbytes' update with these elements in the place of the parameter's."""
    group, parameter, number, index = member
    state, (values, gradient, *codes) = optimizer.state[parameter], arrays
    stand_in = torch.nn.Parameter(values, requires_grad=False)
    stand_in.grad = gradient
    optimizer.state[stand_in] = {**state, **dict(zip(_CODES, codes)), **scales}
    try:
        optimizer.update_step(group, stand_in, number, index)
        state["step"] = optimizer.state[stand_in]["step"]
    finally:
        del optimizer.state[stand_in]


def _with_shared(parameters, arrays, mesh):
    """The arrays of this rank, with the elements of other ranks that its blocks have. Collective."""
    group = mesh.get_group(mesh.ndim - 1)
    ranks = range(dist.get_world_size(group))
    spans = [[_Span(each, rank) for each in parameters] for rank in ranks]
    widths = [sum(array.dtype.itemsize for array in own) for own in arrays]
    sizes = [sum(width * (end - begin) for span, width in zip(own, widths) for begin, end in span.shared)
             for own in spans]
    own = [_Span(each) for each in parameters]
    sent = torch.zeros(max(sizes), dtype=torch.uint8, device=mesh.device_type)
    at = 0
    for span, parts in zip(own, arrays):
        for begin, end in span.shared:
            for part in parts:
                piece = part[begin - span.begin:end - span.begin].view(torch.uint8)
                sent[at:at + len(piece)] = piece
                at += len(piece)
    received = [torch.empty_like(sent) for _ in ranks]
    if len(sent):
        dist.all_gather(received, sent, group=group)
    made = [[part.new_empty(span.last - span.first) for part in parts] for span, parts in zip(own, arrays)]
    for rank, found in zip(ranks, received):
        at = 0
        for other, span, parts in zip(spans[rank], own, made):
            for begin, end in other.shared:
                for part in parts:
                    nbytes = (end - begin) * part.dtype.itemsize
                    if span.first <= begin < span.last:
                        part[begin - span.first:end - span.first].view(torch.uint8).copy_(found[at:at + nbytes])
                    at += nbytes
    for span, parts, values in zip(own, made, arrays):
        for part, array in zip(parts, values):
            part[span.begin - span.first:span.end - span.first] = array
    return made


def _share_scales(optimizer, parameters, mesh):
    """Gives all ranks the scales that one has computed. Collective."""
    every = [(each, optimizer.state[each][key]) for each in parameters if each.dim() > 0  # each rank has all of others
             for key in _SCALES if key in optimizer.state[each]]
    if not every:
        return
    sums = []
    for parameter, scales in every:
        span, own = _Span(parameter), torch.zeros_like(scales)
        blocks = _blocks(span.begin, span.end)
        own[blocks] = scales[blocks]
        sums.append(own)
    total = torch.cat(sums)
    dist.all_reduce(total, group=mesh.get_group(mesh.ndim - 1))
    for (_, scales), found in zip(every, total.split([len(each) for each in sums])):
        scales.copy_(found)
