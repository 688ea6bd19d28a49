# SPDX-License-Identifier: Apache-2.0
"""torch's samplers and loader over acclaunch.data.DataOrder."""

import hashlib
import itertools
import os
import pickle
import sys

import torch
from torch.utils.data import DataLoader, IterableDataset, Sampler, default_collate, get_worker_info

from acclaunch._library import ConfigError, InvalidArgumentError
from acclaunch._data_order import DataOrder, is_recorded, share


def _checked_ranks(rank, world_size):
    """The two as given; None: those of this process."""
    if (rank is None) != (world_size is None):
        raise InvalidArgumentError(f"rank is {rank} and world_size {world_size}: give both or neither")
    if rank is not None and not 0 <= rank < world_size:
        raise InvalidArgumentError(f"rank is {rank}, expected 0 to {world_size - 1}")
    return None if rank is None else (rank, world_size)


def _ranks_of_process():
    """(rank, number of ranks): of torch.distributed, of the acc.Runtime that was made last, or of the launcher."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    module = sys.modules.get("acclaunch._runtime")
    runtime = module.newest_runtime() if module else None
    if runtime is not None:
        return runtime.rank, runtime.world_size
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def _check_last(order, size, world_size, at):
    """A rank without a sample could not take part in the step."""
    if order.last_batch == "partial" and order.samples_per_epoch is not None:
        last = (order.samples_per_epoch - at.offset) % size
        if 0 < last < world_size:
            raise ConfigError(f"the last batch of epoch {at.epoch} has {last} samples for {world_size} ranks: choose "
                              "last_batch 'next_epoch', 'drop' or 'pad', or another size of the batches")


class _Positioned:
    """What has a position in `order`, a DataOrder."""

    def set_epoch(self, epoch):
        """Goes to the begin of another epoch; does nothing if the position is in this one."""
        if self.order.position.epoch != epoch:
            self.order.seek((epoch, 0))

    def state_dict(self):
        """The position, for a checkpoint (DataOrder.state_dict)."""
        return self.order.state_dict()

    def load_state_dict(self, state):
        """Goes on at the position of a checkpoint, at the next iteration."""
        self.order.load_state_dict(state)


class DataBatchSampler(_Positioned, Sampler):
    """The batches of one rank, as lists of sample numbers: for torch's DataLoader(batch_sampler=). An iteration goes
    from the position to the end of its epoch. The position moves only by `used`, because a loader reads ahead.

    data: the data set, or its length, or a DataOrder; keywords of DataOrder. batch_size: samples of a rank;
    global_batch_size: of all ranks, which keeps its size with another number of ranks."""

    def __init__(self, data, batch_size=None, *, global_batch_size=None, rank=None, world_size=None, **order):
        self._given = _checked_ranks(rank, world_size)
        if (batch_size is None) == (global_batch_size is None):
            raise InvalidArgumentError(f"batch_size is {batch_size} and global_batch_size {global_batch_size}: give "
                                       "one of the two")
        self._sizes, self._begun = (batch_size, global_batch_size), None
        self.size  # raises if it is too small
        if isinstance(data, DataOrder):
            if order:
                raise InvalidArgumentError(f"{', '.join(order)}: the DataOrder has been made already")
            self.order = data
        else:
            self.order = DataOrder(data if isinstance(data, int) else len(data), **order)

    rank = property(lambda self: (self._given or _ranks_of_process())[0])
    world_size = property(lambda self: (self._given or _ranks_of_process())[1])

    @property
    def size(self):
        """Samples of a batch of all ranks. Raises InvalidArgumentError if they are fewer than the ranks."""
        of_rank, of_all = self._sizes
        size = of_all if of_rank is None else of_rank * self.world_size
        if size < self.world_size:
            raise InvalidArgumentError(f"a batch of {size} samples is too small for {self.world_size} ranks")
        return size

    @property
    def batch_size(self):
        """Samples of a batch of this rank, rounded down."""
        return self.size // self.world_size

    def _begin(self):
        """An iteration begins, with the ranks of now."""
        self._begun = self.rank, self.world_size

    def _check_ranks(self):
        """Raises InvalidArgumentError if the ranks have changed since an iteration began, because what was read ahead
        is not this rank's any more."""
        if self._begun not in (None, (self.rank, self.world_size)):
            raise InvalidArgumentError(
                f"the ranks have changed in an iteration, from rank {self._begun[0]} of {self._begun[1]} to "
                f"{self.rank} of {self.world_size}: load the state of the loader, and begin another iteration")

    def __iter__(self):
        self._begin()
        at = self.order.position
        epoch = at.epoch
        _check_last(self.order, self.size, self.world_size, at)
        while True:
            batch = self.order.batch(self.size, at)
            if batch.first.epoch != epoch:
                return
            yield self.order.samples(batch, self.part(batch))
            self._check_ranks()
            at = batch.next

    def __len__(self):
        """The number of batches from the position to the end of the epoch."""
        return self.order.batches(self.size)

    def part(self, batch):
        """This rank's samples of a Batch, as a range."""
        return share(batch.size, self.rank, self.world_size)

    def used(self, batches=1):
        """Counts batches as used, in the order in which they were given."""
        self._check_ranks()
        for _ in range(batches):
            batch = self.order.batch(self.size)
            self.order.advance(batch, self.part(batch) if is_recorded() else None)


class DataSampler(DataBatchSampler):
    """The same samples one by one, for torch's DataLoader(sampler=) with the same batch_size. It differs from torch's
    DistributedSampler in its order, and in that it goes on from a position."""

    def __init__(self, data, batch_size=1, **keywords):
        super().__init__(data, batch_size, **keywords)

    def __iter__(self):
        return itertools.chain.from_iterable(super().__iter__())

    def __len__(self):
        return sum(map(len, super().__iter__()))


def _hash_of(sample):
    """64 bits of the content of a sample, the same in every process."""
    digest = hashlib.blake2b(digest_size=8)

    def add(value):
        if isinstance(value, torch.Tensor):
            value = value.detach().cpu()
            digest.update(f"tensor {value.dtype} {tuple(value.shape)};".encode())
            digest.update(bytes(value.contiguous().view(torch.uint8).flatten().tolist()) if value.dim()
                          else repr(value.item()).encode())
        elif hasattr(value, "tobytes") and hasattr(value, "dtype"):
            digest.update(f"array {value.dtype} {value.shape};".encode() + value.tobytes())
        elif isinstance(value, dict):
            digest.update(b"dict;")
            for key in sorted(value, key=repr):
                add(key)
                add(value[key])
        elif isinstance(value, (list, tuple)):
            digest.update(f"list {len(value)};".encode())
            for each in value:
                add(each)
        elif isinstance(value, (str, bytes, int, float, bool, type(None))):
            digest.update(f"{type(value).__name__} {value!r};".encode())
        else:
            digest.update(pickle.dumps(value, protocol=4))

    add(sample)
    return int.from_bytes(digest.digest(), "little")


# ---- what a loader reads from. The numbers of the samples travel with them, so that a record has what was read. ----


class _Items(torch.utils.data.Dataset):
    """Samples of a map-style data set, or of the sources of a mixture, with their numbers."""

    def __init__(self, data, is_mixture):
        self.data, self.is_mixture = data, is_mixture

    def __getitem__(self, key):
        return key, self.data[key[0]][key[1]] if self.is_mixture else self.data[key]

    def __getitems__(self, keys):
        if not self.is_mixture and callable(getattr(self.data, "__getitems__", None)):
            return list(zip(keys, self.data.__getitems__(keys)))
        return [self[key] for key in keys]


class _Numbered:
    """A collate function for samples with their numbers."""

    def __init__(self, collate):
        self.collate = collate

    def __call__(self, samples):
        return [key for key, _ in samples], self.collate([sample for _, sample in samples])


class _Packed(torch.utils.data.Dataset):
    """Sequences of documents. A key is the list of a sequence's pieces."""

    def __init__(self, data, tokens, pad_token):
        self.data, self.tokens, self.pad_token = data, tokens, pad_token

    def __getitem__(self, pieces):
        ids = torch.full((self.tokens,), self.pad_token, dtype=torch.int64)
        positions, segments = torch.zeros(self.tokens, dtype=torch.int64), torch.zeros(self.tokens, dtype=torch.int64)
        at = 0
        for number, piece in enumerate(pieces, 1):
            document = torch.as_tensor(self.data[piece.document])
            if document.dim() != 1 or len(document) != piece.total:
                raise ConfigError(f"document {piece.document} has the shape {list(document.shape)}, expected "
                                  f"[{piece.total}], its entry in `lengths`")
            end = at + piece.length
            ids[at:end] = document[piece.offset:piece.offset + piece.length]
            positions[at:end] = torch.arange(piece.length)
            segments[at:end] = number
            at = end
        return {"input_ids": ids, "position_ids": positions, "segment_ids": segments}


class _Stream(IterableDataset):
    """This rank's part of each batch of a stream, from sample `first` on: (number of samples of all ranks, hashes or
    None, the part, None if it is empty). Worker w of W gives batches w, w + W, …, as torch asks them in turn."""

    def __init__(self, data, drops_last, collate):
        self.data, self.drops_last, self.collate = data, drops_last, collate
        self.begin(0, 1, 0, 1)

    def begin(self, first, size, rank, world_size):
        """Sets what the next iteration gives. size: samples of a batch of all ranks."""
        self.first, self.size, self.rank, self.world_size = first, size, rank, world_size

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info else (0, 1)
        skips = self.first > 0 and callable(getattr(self.data, "skip", None))
        samples = iter(self.data.skip(self.first) if skips else self.data)
        if not skips:
            samples = itertools.islice(samples, self.first, None)
        for number in itertools.count():
            taken = list(itertools.islice(samples, self.size))
            is_whole = len(taken) == self.size
            if not taken or (self.drops_last and not is_whole):
                return
            if number % workers == worker:
                part = share(len(taken), self.rank, self.world_size)
                mine = taken[part.start:part.stop]
                hashes = [_hash_of(each) for each in mine] if is_recorded() else None
                yield len(taken), hashes, self.collate(mine) if mine else None
            if not is_whole:
                return


def _as_it_is(batch):
    return batch


class StatefulDataLoader(_Positioned):
    """Batches of this rank, with torch's DataLoader, in the order of a DataOrder. An iteration goes from the position
    to the end of its epoch; the next one is the next epoch. `state_dict` is the position after the last batch that was
    given: it does not count what workers have read ahead. After `load_state_dict`, with any number of ranks and of
    workers, the iteration goes on there, and reads nothing of what was used.

    dataset: a map-style data set; a list of them, a mixture with `weights`, which does not end; or an IterableDataset,
    a stream. Every rank reads a whole stream and keeps its part; on resuming, its `skip(n)` is called if it has one, as
    data sets of Hugging Face have. With `tokens`, samples are documents (1-D token ids) with `lengths`, which are
    packed: a batch is a dict of input_ids, position_ids (from 0 in each piece of a document) and segment_ids (number of
    the piece in its sequence, from 1; 0 is padding with `pad_token`), each [rows, tokens], int64.

    batch_size: samples, or sequences, of one rank, or global_batch_size: of all ranks, which keeps its size with
    another number of ranks. rank, world_size: default: those of torch.distributed, of the acc.Runtime, which may change
    between iterations (--elastic_replicas), or of the launcher. seed, shuffle, last_batch, name: of DataOrder; of a
    stream last_batch is "partial" or "drop". Other keywords are those of torch's DataLoader (num_workers, collate_fn,
    pin_memory, …).

    Raises ConfigError if the last batch of an epoch has fewer samples than there are ranks."""

    def __init__(self, dataset, batch_size=None, *, global_batch_size=None, rank=None, world_size=None, seed=0,
                 shuffle=True, last_batch="partial", weights=None, tokens=None, lengths=None, pad_token=0, name="",
                 collate_fn=None, **keywords):
        for refused in ("sampler", "batch_sampler", "drop_last", "in_order"):
            if refused in keywords:
                raise InvalidArgumentError(f"{refused}: the order of the samples is that of acclaunch.data; drop_last "
                                           "is last_batch='drop'")
        if tokens is not None and lengths is None:
            raise InvalidArgumentError("tokens is given without lengths, the number of tokens of each document")
        is_stream = isinstance(dataset, IterableDataset)
        is_mixture = isinstance(dataset, (list, tuple)) and all(hasattr(each, "__getitem__") for each in dataset) \
            and weights is not None
        drops_last = is_stream and last_batch == "drop"
        samples = None if is_stream else [len(each) for each in dataset] if is_mixture else len(dataset)
        order = DataOrder(samples, seed=seed, shuffle=shuffle, weights=weights, name=name,
                          last_batch="partial" if drops_last else last_batch)
        self._sampler = DataBatchSampler(order, batch_size, global_batch_size=global_batch_size, rank=rank,
                                         world_size=world_size)
        self.dataset, self.order = dataset, order
        self.tokens, self.lengths = tokens, lengths
        if is_stream:
            if keywords.get("persistent_workers"):
                raise InvalidArgumentError("persistent_workers: the workers of a stream begin anew in each iteration")
            self._stream = _Stream(dataset, drops_last, collate_fn or default_collate)
            self._loader = DataLoader(self._stream, batch_size=None, collate_fn=_as_it_is, **keywords)
        elif tokens is not None:
            self._stream = None
            self._loader = DataLoader(_Packed(dataset, tokens, pad_token), batch_sampler=_Sequences(self),
                                      collate_fn=collate_fn, **keywords)
        else:
            self._stream = None
            collate = collate_fn or default_collate
            self._loader = DataLoader(_Items(dataset, is_mixture), batch_sampler=self._sampler,
                                      collate_fn=_Numbered(collate), **keywords)

    rank = property(lambda self: self._sampler.rank)
    world_size = property(lambda self: self._sampler.world_size)
    size = property(lambda self: self._sampler.size)

    def _read(self):
        """What torch's loader gives, while the ranks are those that its source has noted at the begin."""
        for each in self._loader:
            self._sampler._check_ranks()
            yield each

    def __iter__(self):
        if self._stream is not None:
            return self._of_stream()
        return self._of_sequences() if self.tokens is not None else self._of_samples()

    def _of_samples(self):
        for used, batch in self._read():
            whole = self.order.batch(self.size)
            self.order.advance(whole, self._sampler.part(whole), used=used)
            yield batch
        self._end_epoch()

    def _of_sequences(self):
        epoch = self.order.position.epoch
        for batch in self._read():
            whole, pieces = self.order.pack(self.lengths, self.tokens, self.size)
            part = share(whole.size, self.rank, self.world_size)
            used = [each for each in pieces if each.sequence in part] if is_recorded() else ()
            self.order.advance_packed(whole, used)
            yield batch
        if self.order.position.epoch == epoch:
            self.order.seek((epoch + 1, 0))

    def _of_stream(self):
        self._sampler._begin()
        self._stream.begin(self.order.position.offset, self.size, self.rank, self.world_size)
        for count, hashes, batch in self._read():
            whole = self.order.batch(count)
            if count < self.world_size:
                raise ConfigError(f"the last batch of the stream has {count} samples for {self.world_size} ranks: "
                                  "choose last_batch='drop'")
            part = share(count, self.rank, self.world_size) if is_recorded() else None
            self.order.advance(whole, part, hashes=hashes)
            yield batch
        self.order.end_epoch()

    def _end_epoch(self):
        """Leaves out the rest of an epoch that has no whole batch (last_batch "drop")."""
        at = self.order.position
        if at.offset and self.order.last_batch == "drop":
            self.order.seek((at.epoch + 1, 0))

    def __len__(self):
        """The number of batches of an epoch from its begin."""
        if self.order.samples_per_epoch is None or self.tokens is not None:
            raise TypeError("a stream, a mixture and packed documents have no number of batches")
        return self.order.batches(self.size, (self.order.position.epoch, 0))

    @property
    def position(self):
        """The Position after the last batch that was given."""
        return self.order.position


class _Sequences(Sampler):
    """Keys of _Packed: the pieces of each sequence of this rank, batch by batch."""

    def __init__(self, loader):
        self.loader = loader

    def __iter__(self):
        loader = self.loader
        loader._sampler._begin()
        at = loader.order.position
        epoch = at.epoch
        while True:
            batch, pieces = loader.order.pack(loader.lengths, loader.tokens, loader.size, at)
            if batch.first.epoch != epoch:
                return
            part = share(batch.size, loader.rank, loader.world_size)
            if not part:
                raise ConfigError(f"the last batch of epoch {epoch} has {batch.size} sequences for {loader.world_size} "
                                  "ranks: choose last_batch 'next_epoch' or 'drop'")
            yield [[each for each in pieces if each.sequence == number] for number in part]
            at = batch.next
