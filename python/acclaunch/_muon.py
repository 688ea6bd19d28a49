# SPDX-License-Identifier: Apache-2.0
"""torch.optim.Muon on the engine acc: each matrix is gathered to one rank, which orthogonalizes it with torch's own
function, and the rows of the result go back. torch's operations on DTensors would compute each product on all ranks,
with other roundings than those of whole matrices."""

import functools

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Shard

from acclaunch._library import NotSupportedError


def serve(module):
    """module: torch.optim._muon."""
    original = module.muon

    def muon(params, grads, muon_momentum_bufs, **options):
        if any(isinstance(each, DTensor) for each in params):
            _sharded_muon(module, params, grads, muon_momentum_bufs, **options)
        else:
            original(params, grads, muon_momentum_bufs, **options)

    module.muon = muon


def _owners(shapes, ranks):
    """The costliest matrices first, each to the rank with the least work."""
    costs = [each.numel() * min(each[-2:]) for each in shapes]
    work, owners = [0] * ranks, [0] * len(shapes)
    for number in sorted(range(len(shapes)), key=lambda each: (-costs[each], each)):
        owners[number] = work.index(min(work))
        work[owners[number]] += costs[number]
    return owners


class _Matrix:
    """The rows of a matrix on the way to its owner and back. All ranks send the same number, the last ones padded."""

    def __init__(self, parameter, update, owner):
        self.shape, self.owner = parameter.shape, owner
        mesh = parameter.device_mesh
        dimensions = [number for number, each in enumerate(parameter.placements) if each.is_shard()]
        if len(dimensions) > 1 or any(each.is_shard() and each != Shard(0) for each in parameter.placements):
            raise NotSupportedError(f"torch.optim.Muon on a DTensor {parameter.placements}: the engine acc serves "
                                    "parameters that are divided by rows")
        self.group = mesh.get_group(dimensions[0]) if dimensions else None
        self.rank, self.ranks = (dist.get_rank(self.group), dist.get_world_size(self.group)) if self.group else (0, 1)
        self.is_owner = self.group is None or self.rank == owner
        self.rows = -(-self.shape[0] // self.ranks)
        self.own = update
        if self.group is None:
            return
        self.root = dist.get_global_rank(self.group, owner)
        self.sent = update.new_zeros(self.rows, *self.shape[1:])
        self.sent[:len(update)] = update
        self.parts = [torch.empty_like(self.sent) for _ in range(self.ranks)] if self.is_owner else None
        self.work = dist.gather(self.sent, self.parts, dst=self.root, group=self.group, async_op=True)

    def compute(self, function):
        """On the owner, replaces the update by function(update)."""
        if self.group is None:
            self.own = function(self.own)
            return
        self.work.wait()
        if self.is_owner:
            whole = function(torch.cat(self.parts)[:self.shape[0]])
            for part, rows in zip(self.parts, whole.split(self.rows)):
                part[:len(rows)] = rows

    def send_back(self):
        if self.group is not None:
            self.work = dist.scatter(self.sent, self.parts, src=self.root, group=self.group, async_op=True)

    def result(self):
        if self.group is None:
            return self.own
        self.work.wait()
        return self.sent[:len(self.own)]


def whole_updates(parameters, updates, function):
    """The rows of function(number, whole update), which one rank computes of each matrix. updates: the rows of each,
    from an iterator. Collective."""
    ranks = max((each.device_mesh.size(each.device_mesh.ndim - 1) for each in parameters), default=1)
    owners = _owners([each.shape for each in parameters], ranks)
    matrices = [_Matrix(*each) for each in zip(parameters, updates, owners)]
    for number, matrix in enumerate(matrices):
        matrix.compute(functools.partial(function, number))
    for matrix in matrices:  # in one order on all ranks
        matrix.send_back()
    return [matrix.result() for matrix in matrices]


def _sharded_muon(module, params, grads, bufs, *, lr, weight_decay, momentum, nesterov, ns_coefficients, ns_steps, eps,
                  adjust_lr_fn, has_complex, foreach=None):
    """As _single_tensor_muon of torch 2.13, with whole matrices."""
    lr = module._to_scalar(lr)
    if not all(isinstance(each, DTensor) for each in params):
        raise NotSupportedError("torch.optim.Muon with DTensors and other parameters in one group: make two groups")
    local = [[each.to_local() for each in tensors] for tensors in (params, grads, bufs)]

    def directions():
        for grad, buf in zip(*local[1:]):
            buf.lerp_(grad, 1 - momentum)
            yield grad.lerp(buf, momentum) if nesterov else buf

    updates = whole_updates(params, directions(), lambda _, update: module._zeropower_via_newtonschulz(
        update, ns_coefficients, ns_steps, eps))
    for parameter, own, update in zip(params, local[0], updates):
        own.mul_(1 - lr * weight_decay)
        own.add_(update, alpha=-module._adjust_lr(lr, adjust_lr_fn, parameter.shape))
