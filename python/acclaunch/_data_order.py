# SPDX-License-Identifier: Apache-2.0
"""The order of samples (acclaunch.data), without torch."""

import ctypes as c
import functools
import os
import typing

from acclaunch._library import (InvalidArgumentError, NotFoundError, ProgramValue, library, program_values, sized,
                                text)

LAST_BATCHES = ("partial", "next_epoch", "drop", "pad")
_UNKNOWN = -1


class _Position(c.Structure):
    _fields_ = [("epoch", c.c_int64), ("offset", c.c_int64), ("token", c.c_int64)]


class _Batch(c.Structure):
    _fields_ = [("first", _Position), ("count", c.c_int64), ("padding", c.c_int64), ("next", _Position)]


class _Sample(c.Structure):
    _fields_ = [("source", c.c_int64), ("epoch", c.c_int64), ("index", c.c_int64)]


class _Piece(c.Structure):
    _fields_ = [(name, c.c_int64) for name in ("sequence", "epoch", "document", "offset", "length", "total")]


_Config = sized("DataConfig", ("samples", c.POINTER(c.c_int64)), ("weights", c.POINTER(c.c_double)),
                ("num_sources", c.c_size_t), ("seed", c.c_uint64), ("shuffle", c.c_int32),
                ("last_batch", c.c_int32), ("name", c.c_char_p))
_POINTER = c.c_void_p
_AT, _BATCH, _SAMPLES, _PIECES = map(c.POINTER, (_Position, _Batch, _Sample, _Piece))
_VALUES, _NUMBER, _SIZE = c.POINTER(ProgramValue), c.POINTER(c.c_int64), c.POINTER(c.c_size_t)
_CALLS = {
    "acc_data_order_create": (c.POINTER(_Config), c.POINTER(_POINTER)),
    "acc_data_order_position": (_POINTER, _AT),
    "acc_data_order_seek": (_POINTER, _AT),
    "acc_data_order_batch": (_POINTER, _AT, c.c_int64, _BATCH),
    "acc_data_order_batches": (_POINTER, _AT, c.c_int64, _NUMBER),
    "acc_data_order_samples": (_POINTER, _BATCH, c.c_int64, c.c_int64, _SAMPLES),
    "acc_data_share": (c.c_int64, c.c_int64, c.c_int64, _NUMBER, _NUMBER),
    "acc_data_order_pack": (_POINTER, _AT, _NUMBER, c.c_size_t, c.c_int64, c.c_int64, _BATCH, _PIECES, c.c_size_t,
                            _SIZE),
    "acc_data_order_advance": (_POINTER, _BATCH, _SAMPLES, c.c_size_t, c.POINTER(c.c_uint64)),
    "acc_data_order_advance_packed": (_POINTER, _BATCH, _PIECES, c.c_size_t),
    "acc_data_order_end_epoch": (_POINTER,),
    "acc_data_order_state": (_POINTER, _VALUES, c.c_size_t, _SIZE),
    "acc_data_order_load_values": (_POINTER, _VALUES, c.c_size_t),
}
_VALUES_OF_STATE = 16
_STATE = ("seed", "shuffle", "samples", "sources", "weights", "epoch", "offset", "token", "attempt")  # names of values


@functools.cache
def _library():
    """The library, with the functions of acc/runtime_data.h."""
    library().declare(_CALLS, {"acc_data_order_free": (None, _POINTER)})
    return library()


class Position(typing.NamedTuple):
    """A position in the order of all samples. offset: samples of the epoch that come before it, or documents, if they
    are packed; token: tokens of the next document that come before it."""

    epoch: int = 0
    offset: int = 0
    token: int = 0


class Batch(typing.NamedTuple):
    """The samples, or packed sequences, that all ranks together use at once. size: their number; padding: of them, at
    the end, those that are used a second time (last_batch "pad"); next: the position after it."""

    first: Position
    size: int
    padding: int
    next: Position


class Piece(typing.NamedTuple):
    """Tokens [offset, offset + length) of a document that has `total`, in sequence number `sequence` of a batch."""

    sequence: int
    epoch: int
    document: int
    offset: int
    length: int
    total: int


def _batch_of(found):
    first, after = (Position(each.epoch, each.offset, each.token) for each in (found.first, found.next))
    return Batch(first, found.count, found.padding, after)


def _to_c(batch):
    return _Batch(_Position(*batch.first), batch.size, batch.padding, _Position(*batch.next))


def share(size, part, parts):
    """The samples that part number `part` of `parts` has of a batch of `size`, as a range. Parts follow each other and
    differ by at most one sample."""
    first, count = c.c_int64(), c.c_int64()
    _library().data_share(size, part, parts, first, count)
    return range(first.value, first.value + count.value)


def is_recorded():
    """True if this process records the samples that it uses (--data_record)."""
    return bool(os.environ.get("ACC_DATA_RECORD"))


class DataOrder:
    """samples: the number of samples; None for a stream, whose samples come in its own order; a list of these for a
    mixture of sources with `weights`. last_batch: what becomes of the samples at the end of an epoch that do not fill
    a batch: "partial" (they are a smaller batch), "next_epoch" (the batch is filled with the first samples of the next
    epoch), "drop" (they are left out), "pad" (the batch is filled with the first samples of the same epoch). name: in
    checkpoints and records, for a program with several orders.

    Raises InvalidArgumentError for values that contradict each other. All ranks make the same calls; none is
    collective."""

    def __init__(self, samples, *, seed=0, shuffle=True, last_batch="partial", weights=None, name=""):
        self.is_mixture = isinstance(samples, (list, tuple))
        counts = [_UNKNOWN if each is None else each for each in (samples if self.is_mixture else [samples])]
        if last_batch not in LAST_BATCHES:
            raise InvalidArgumentError(f"last_batch is {last_batch!r}, expected one of {', '.join(LAST_BATCHES)}")
        if weights is not None and len(weights) != len(counts):
            raise InvalidArgumentError(f"{len(weights)} weights are given for {len(counts)} sources")
        self.last_batch, self.seed, self.name = last_batch, seed, name
        self.samples_per_epoch = None if len(counts) > 1 or counts[0] == _UNKNOWN else counts[0]
        self._library = _library()
        self._handle = self._library.make(
            "data_order_create",
            _Config(samples=(c.c_int64 * len(counts))(*counts), num_sources=len(counts), seed=seed,
                    weights=(c.c_double * len(counts))(*weights) if weights is not None else None,
                    shuffle=bool(shuffle), last_batch=LAST_BATCHES.index(last_batch),
                    name=text(name, "name") if name else None))

    def __del__(self):
        if getattr(self, "_handle", None):
            self._library.data_order_free(self._handle)
            self._handle = None

    @property
    def position(self):
        """The position after the samples that the training has used."""
        found = _Position()
        self._library.data_order_position(self._handle, found)
        return Position(found.epoch, found.offset, found.token)

    def seek(self, position):
        """Sets the position: a Position, or (epoch, offset)."""
        self._library.data_order_seek(self._handle, _Position(*position))

    def batch(self, size, at=None):
        """The batch of `size` samples at a position, by default at that of the training."""
        found = _Batch()
        self._library.data_order_batch(self._handle, _Position(*(at or self.position)), size, found)
        return _batch_of(found)

    def batches(self, size, at=None):
        """The number of batches that begin between a position and the end of its epoch."""
        return self._library.read("data_order_batches", c.c_int64, self._handle, _Position(*(at or self.position)),
                                  size)

    def samples(self, batch, part=None):
        """Samples of a batch. part: a range of them (see `share`); default: all. Returns the numbers of the samples;
        of a mixture, pairs (source, number)."""
        return self._numbers_of(self._drawn(batch, part))

    def _numbers_of(self, drawn):
        numbers = memoryview(drawn).cast("B").cast("q")
        return list(zip(numbers[0::3], numbers[2::3])) if self.is_mixture else numbers[2::3].tolist()

    def _drawn(self, batch, part):
        part = range(batch.size) if part is None else part
        found = (_Sample * len(part))()
        self._library.data_order_samples(self._handle, _to_c(batch), part.start, len(part), found)
        return found

    def pack(self, lengths, tokens, count, at=None):
        """`count` sequences of `tokens` tokens at a position: documents in their order, one after the other, cut where
        a sequence is full. lengths: tokens of each document, an array of int64 (numpy, or array.array("q")) or any
        sequence of integers. Returns a Batch, whose size is the number of sequences, and their Pieces."""
        view = _array_of_int64(lengths)
        at = _Position(*(at or self.position))
        found, number, capacity = _Batch(), c.c_size_t(), 4 * count
        while True:
            pieces = (_Piece * capacity)()
            self._library.data_order_pack(self._handle, at, view, len(lengths), tokens, count, found, pieces, capacity,
                                          number)
            if number.value <= capacity:
                break
            capacity = number.value
        numbers = memoryview(pieces).cast("B").cast("q").tolist()
        return _batch_of(found), [Piece(*numbers[6 * i:6 * i + 6]) for i in range(number.value)]

    def advance(self, batch, part=None, *, used=None, hashes=None):
        """Moves the position behind a batch that the training has used. For the record: part, the range of its samples
        that this rank has used; or used, their numbers (of a mixture pairs with the source); hashes: of their
        contents, integers from 0 to 2^64 - 1."""
        samples = None
        if part is not None:
            samples = self._drawn(batch, part)
            if used is not None:
                self._check_used(batch, samples, used)
        count = 0 if samples is None else len(samples)
        self._library.data_order_advance(self._handle, _to_c(batch), samples, count,
                                         (c.c_uint64 * count)(*hashes) if hashes is not None else None)

    def _check_used(self, batch, samples, used):
        """What a loader has read must be what the order says."""
        expected = self._numbers_of(samples)
        used = [tuple(each) for each in used] if self.is_mixture else list(used)
        if used != expected:
            raise InvalidArgumentError(f"samples {used[:8]} were read for the batch at {tuple(batch.first)}, "
                                       f"expected {expected[:8]}")

    def advance_packed(self, batch, pieces=()):
        """The same for a packed batch. pieces: those of this rank's sequences."""
        used = (_Piece * len(pieces))(*(_Piece(*each) for each in pieces))
        self._library.data_order_advance_packed(self._handle, _to_c(batch), used, len(pieces))

    def end_epoch(self):
        """Moves to the begin of the next epoch, at the end of a stream."""
        self._library.data_order_end_epoch(self._handle)

    def state_dict(self):
        """The position for a checkpoint, as values by name, int and str, the same names at any time: for
        `runtime.save(..., state=...)` or torch.save. What was recorded is on disk then."""
        values = (ProgramValue * _VALUES_OF_STATE)()
        for each in values:
            each.__init__()
        count = c.c_size_t()
        self._library.data_order_state(self._handle, values, len(values), count)
        return {each.name.decode(): each.integer if each.kind == 0 else c.string_at(each.bytes, each.num_bytes).decode()
                for each in values[:count.value]}

    def load_state_dict(self, state):
        """Goes on at the position of a checkpoint. state: what `state_dict` has returned, or what `runtime.load` has.
        Raises NotFoundError if it has no position of an order with this name, ConfigError for that of another order
        (another seed, number of samples or weight)."""
        prefix = f"acc.data.{self.name}." if self.name else "acc.data."
        found = [(prefix + name, state.get(prefix + name), False) for name in _STATE]
        if state.get(prefix + "epoch") is None:
            raise NotFoundError(f"the checkpoint has no position of the data order: '{prefix}epoch' is missing")
        values = program_values([each for each in found if each[1] is not None])
        self._library.data_order_load_values(self._handle, values, len(values))


def _array_of_int64(values):
    """The values as a C array, without a copy if they are one."""
    try:
        view = memoryview(values)
        if view.format in ("q", "l") and view.itemsize == 8 and view.contiguous and not view.readonly:
            return c.cast((c.c_int64 * len(values)).from_buffer(view), _NUMBER)
        if view.format in ("q", "l") and view.itemsize == 8 and view.contiguous and hasattr(values, "ctypes"):
            return values.ctypes.data_as(_NUMBER)  # a read-only array of numpy, such as a mapped file
    except TypeError:
        pass
    return c.cast((c.c_int64 * len(values))(*values), _NUMBER)
