# SPDX-License-Identifier: Apache-2.0
"""Numbers that a recording has of a tensor (docs/formats/recording.md): the sum of squares, the sketch, exact sums."""

import contextlib
import threading

import torch

_WIDTH, _NUMBERS, _MASK = 4096, 4, (1 << 64) - 1
_CHUNK, _LARGE_CHUNK = 32 * _WIDTH, 1024 * _WIDTH  # elements that are cast at once, on CPUs (in a cache) and GPUs


# ---- signs ---------------------------------------------------------------------------------------


def splitmix64(seed):
    value = (seed + 0x9E3779B97F4A7C15) & _MASK
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB & _MASK
    return value ^ (value >> 31)


_signs = {}  # by device and dtype: of the positions in a block, and of the blocks; [_WIDTH, _NUMBERS]


def _signs_on(device, dtype):
    if (device, dtype) not in _signs:
        bits = torch.tensor([splitmix64(each) & 0xFF for each in range(_WIDTH)], device="cpu")
        signs = 1 - 2 * (bits[:, None] >> torch.arange(2 * _NUMBERS, device="cpu") & 1)
        inside, blocks = signs.to(device, dtype).split(_NUMBERS, 1)
        _signs[device, dtype] = inside.contiguous(), blocks.contiguous()
    return _signs[device, dtype]


# ---- arithmetic that no setting of the program changes -------------------------------------------


@contextlib.contextmanager
def plainly(device):
    """Computes without gradients, autocast and modes of the program."""
    with torch.no_grad(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        kind = device.type
        if not torch.is_autocast_enabled(kind):
            yield
            return
        torch.set_autocast_enabled(kind, False)
        try:
            yield
        finally:
            torch.set_autocast_enabled(kind, True)


def _product(signs, values):
    """signs @ values. Products of a matrix and a vector use no TF32 and no bf16."""
    if values.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest":
        return signs @ values
    return torch.stack([torch.mv(values.t(), each) for each in signs])


def _squares(flat):
    if flat.numel() == 0:
        return flat.new_zeros(())
    return torch.dot(flat, flat) if flat.numel() < 2**31 else torch.linalg.vector_norm(flat).square()


# ---- parts of parameters -------------------------------------------------------------------------


def real(values):
    """Without complex numbers, which are pairs, and without sparse ones."""
    values = values.detach()
    values = values.to_dense() if values.layout is not torch.strided else values
    return torch.view_as_real(values.resolve_conj()) if values.is_complex() else values.resolve_neg()


def _wide(dtype):
    return dtype if dtype is torch.float64 else torch.float32


_scratch = threading.local()


def _chunk_of(values):
    return _CHUNK if values.device.type == "cpu" else _LARGE_CHUNK


def _cast(values, dtype):
    """Values of at most a chunk in another dtype, in memory that the next call uses again: fresh memory costs more than
    the cast."""
    if values.dtype is dtype:
        return values
    key, buffers = (values.device, dtype), _scratch.__dict__
    if key not in buffers:
        buffers[key] = torch.empty(_chunk_of(values), dtype=dtype, device=values.device)
    return buffers[key][:values.numel()].view(values.shape).copy_(values)


def of_part(values, begin):
    """The sum of squares and the sketch of a part of a tensor, in float64. values: of one dimension; begin: the index
    of the first in the whole tensor."""
    inside, blocks = _signs_on(values.device, torch.float64)
    number, at = divmod(begin, _WIDTH)
    numbers = values.new_zeros(1 + _NUMBERS, dtype=torch.float64)
    head = min(values.numel(), -begin % _WIDTH)  # up to the next block
    whole = (values.numel() - head) // _WIDTH
    first = number + (head > 0)
    rest = values[head + whole * _WIDTH:]
    for part, block, at in ((values[:head], number, at), (rest, first + whole, 0)):
        if part.numel():
            part = part.double()
            numbers[0] += torch.dot(part, part)
            numbers[1:] += torch.mv(inside[at:at + part.numel()].t(), part) * blocks[block % _WIDTH]
    if whole:
        _add_blocks(numbers, values[head:head + whole * _WIDTH].view(whole, _WIDTH), first % _WIDTH)
    return numbers


def _add_blocks(numbers, values, first):
    """Adds up blocks, few at a time: sums in float32 of many numbers would be less exact, and caches hold few."""
    dtype, count = _wide(values.dtype), _chunk_of(values) // _WIDTH
    inside, _ = _signs_on(values.device, torch.float64)
    _, signs = _signs_on(values.device, dtype)
    signs = signs.t()
    if first + values.shape[0] > _WIDTH:
        signs = signs[:, torch.arange(first, first + values.shape[0], device=signs.device) % _WIDTH]
        first = 0
    sums = values.new_zeros((_NUMBERS, _WIDTH), dtype=torch.float64)
    for begin in range(0, values.shape[0], count):
        chunk = _cast(values[begin:begin + count], dtype)
        sums += _product(signs[:, first + begin:first + begin + chunk.shape[0]], chunk)
        numbers[0] += _squares(chunk.reshape(-1))
    numbers[1:] += (sums * inside.t()).sum(1)


# ---- batches -------------------------------------------------------------------------------------


def of_batch(values):
    """The sum of squares, and the sum over all dimensions but the last, whose sketch is that of the batch. A vector has
    a number per sample."""
    values = values.unsqueeze(-1) if values.dim() < 2 else values
    dtype, last = _wide(values.dtype), values.shape[-1]
    if not values.is_contiguous():
        values = values.to(dtype)
        return torch.linalg.vector_norm(values).square(), values.sum(tuple(range(values.dim() - 1)))
    rows = values.view(-1, last)
    if values.dtype is dtype or last > _chunk_of(values):
        return _of_rows(rows.to(dtype))
    squares, sums, chunk = 0.0, 0.0, _chunk_of(values) // last
    for first in range(0, rows.shape[0], chunk):
        numbers = _of_rows(_cast(rows[first:first + chunk], dtype))
        squares, sums = squares + numbers[0], sums + numbers[1]
    return squares, sums


def _of_rows(rows):
    return _squares(rows.view(-1)), torch.mv(rows.t(), rows.new_ones(rows.shape[0]))


def of_sums(squares, sums):
    """The numbers of batches, of vectors of one length. [vectors, 1 + _NUMBERS], float64"""
    squares, sums = torch.stack(squares).double(), torch.stack(sums).double()
    if sums.shape[1] <= _WIDTH:
        inside, blocks = _signs_on(sums.device, torch.float64)
        return torch.cat((squares[:, None], sums @ inside[:sums.shape[1]] * blocks[0]), 1)
    numbers = torch.stack([of_part(each, 0) for each in sums])
    numbers[:, 0] = squares
    return numbers


def exact_of(values):
    """Two sums in int64, with overflow, for values that have to be the same. The order of the rows does not count for
    the first one."""
    values = real(values)
    words = values.double().view(torch.int64) if values.is_floating_point() else values.to(torch.int64)
    words = words.reshape(words.shape[0], -1) if words.dim() > 1 else words.reshape(-1, 1)
    weights = torch.arange(1, words.shape[1] + 1, device=words.device) * 0x9E3779B97F4A7C1 + 1
    rows = (words * weights).sum(1)
    rows = (rows ^ (rows >> 29)) * 0x5851F42D4C957F2D
    order = torch.arange(1, rows.numel() + 1, device=words.device)
    return torch.stack((rows.sum(), (rows * order).sum()))
