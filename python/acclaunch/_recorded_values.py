# SPDX-License-Identifier: Apache-2.0
"""Numbers that a recording has of a tensor (docs/formats/recording.md): the sum of squares, the sketch, exact sums."""

import contextlib

import torch

_WIDTH, _NUMBERS, _MASK = 4096, 4, (1 << 64) - 1
_CHUNK = {"cpu": 64 * _WIDTH}  # elements that are cast at once: they fit into a cache
_LARGE_CHUNK = 4096 * _WIDTH


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


def _product(values, signs):
    """values @ signs. Products of a matrix and a vector use no TF32 and no bf16."""
    if values.device.type == "cpu" and torch.get_float32_matmul_precision() == "highest":
        return values @ signs
    return torch.stack([torch.mv(values, each) for each in signs.t().contiguous()], 1)


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


def of_part(values, begin, dtype=torch.float32):
    """The sum of squares and the sketch of a part of a tensor. values: of one dimension; begin: the index of the first
    in the whole tensor; dtype: the least one for the sums."""
    dtype = torch.promote_types(dtype, values.dtype)
    if values.dtype is dtype:
        return _of_part(values, begin)
    chunk = _CHUNK.get(values.device.type, _LARGE_CHUNK)
    buffer = torch.empty(min(values.numel(), chunk), dtype=dtype, device=values.device)
    squares, sketch, first = 0.0, 0.0, 0
    while first < values.numel():
        part = values[first:first + chunk - (begin + first) % _WIDTH]
        numbers = _of_part(buffer[:part.numel()].copy_(part), begin + first)
        squares, sketch, first = squares + numbers[0], sketch + numbers[1], first + part.numel()
    return squares, sketch


def _of_part(values, begin):
    squares = _squares(values)
    inside, blocks = _signs_on(values.device, values.dtype)
    number, at = divmod(begin, _WIDTH)
    sketch = 0.0
    head = min(values.numel(), -begin % _WIDTH)  # up to the next block
    if head:
        sketch = torch.mv(inside[at:at + head].t(), values[:head]) * blocks[number % _WIDTH]
        number, values = number + 1, values[head:]
    whole = values.numel() // _WIDTH
    first = number % _WIDTH
    if whole:
        signs = blocks[first:first + whole]
        if signs.shape[0] < whole:
            signs = blocks[torch.arange(first, first + whole, device=blocks.device) % _WIDTH]
        product = _product(values[:whole * _WIDTH].view(whole, _WIDTH), inside)
        sketch = sketch + (product * signs).sum(0, dtype=torch.float64)
    rest = values[whole * _WIDTH:]
    if rest.numel():
        sketch = sketch + torch.mv(inside[:rest.numel()].t(), rest) * blocks[(first + whole) % _WIDTH]
    return squares, sketch


# ---- batches -------------------------------------------------------------------------------------


def of_batch(values):
    """The sum of squares, and the sum over all dimensions but the last, whose sketch is that of the batch. A vector has a
    number per sample."""
    last = values.shape[-1] if values.dim() > 1 else 1
    if values.dtype is not _wide(values.dtype):
        values = values.to(torch.float32)
    if not values.is_contiguous():
        return torch.linalg.vector_norm(values).square(), values.sum(tuple(range(values.dim() - 1)))
    flat = values.view(-1)
    if last == 1:
        return _squares(flat), flat.sum().view(1)
    rows = flat.numel() // last
    return _squares(flat), torch.mv(flat.view(rows, last).t(), flat.new_ones(rows))


def of_sums(sums):
    """The sketches of vectors of one length. [vectors, _NUMBERS]"""
    if sums.shape[1] <= _WIDTH:
        inside, blocks = _signs_on(sums.device, sums.dtype)
        return _product(sums, inside[:sums.shape[1]]) * blocks[0]
    return torch.stack([_of_part(each, 0)[1] for each in sums])


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
