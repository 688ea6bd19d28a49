# SPDX-License-Identifier: Apache-2.0
"""data_loader_test.py PACKAGE: acclaunch.data with torch's loaders: workers, any number of ranks, resuming in the
middle of an epoch, streams, mixtures, packed documents. Exits with 77 without torch."""

import importlib.util
import random
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)
sys.path[:0] = [sys.argv[1]]

# ---- the core needs no torch
from acclaunch import data  # noqa: E402

assert "torch" not in sys.modules
order = data.DataOrder(1000, seed=7)
assert order.samples(order.batch(6)) == [966, 924, 62, 951, 564, 581]  # as in data_order_test.cpp
mixed = data.DataOrder([100, 10, None], seed=1, weights=[0.5, 0.3, 0.2])
assert mixed.samples(mixed.batch(4)) == [(2, 0), (0, 24), (1, 8), (2, 1)]
order.advance(order.batch(6))
state = order.state_dict()
assert state["acc.data.offset"] == 6, state
again = data.DataOrder(1000, seed=7)
again.load_state_dict(state)
assert again.position == (0, 6, 0) and again.batches(10) == 100
assert "torch" not in sys.modules

import torch  # noqa: E402
from torch.utils.data import DataLoader, Dataset, IterableDataset  # noqa: E402


class Numbers(Dataset):
    """Counts what is read, in this process."""

    def __init__(self, size, first=0):
        self.size, self.first, self.read = size, first, 0

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        self.read += 1
        return torch.tensor([self.first + index])


class Stream(IterableDataset):
    def __init__(self, size, first=0):
        self.size, self.first = size, first

    def __iter__(self):
        return iter(torch.tensor([index]) for index in range(self.first, self.size))


class SkippingStream(Stream):
    def skip(self, count):
        return SkippingStream(self.size, self.first + count)


def values(batch):
    return batch.flatten().tolist()


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), (text, str(error))
    else:
        raise AssertionError(f"not refused: {text}")


def sampler_and_loader():
    """torch's loader with our samplers, with and without workers."""
    for workers in (0, 2):
        for size, last_batch in ((29, "partial"), (29, "pad"), (29, "drop"), (32, "next_epoch")):
            seen, lengths = [], []
            for rank in range(3):
                sampler = data.DataBatchSampler(size, 2, rank=rank, world_size=3, seed=4, last_batch=last_batch)
                loader = DataLoader(Numbers(size), batch_sampler=sampler, num_workers=workers)
                lengths.append(len(loader))
                found = []
                for batch in loader:
                    found.append(values(batch))
                    sampler.used()
                assert len(found) == lengths[-1], (found, lengths)
                assert sampler.order.position.epoch == 1
                seen += [each for batch in found for each in batch]
                one_by_one = data.DataSampler(size, 2, rank=rank, world_size=3, seed=4, last_batch=last_batch)
                plain = [values(batch) for batch in DataLoader(Numbers(size), sampler=one_by_one, batch_size=2)]
                assert sum(plain, []) == sum(found, [])
            assert len(set(lengths)) == 1
            counts = {"partial": (29, 29), "pad": (30, 29), "drop": (24, 24), "next_epoch": (36, 32)}[last_batch]
            assert (len(seen), len(set(seen))) == counts, (last_batch, sorted(seen))


def resumes():
    """20 histories: any number of ranks and workers, iterations that end anywhere. Each sample of an epoch once."""
    draw = random.Random(5)
    for history in range(20):
        size, epochs, used, state = draw.randrange(20, 120), 2, {0: [], 1: [], 2: []}, None
        while True:
            world_size, stop = draw.randrange(1, 5), draw.randrange(0, 9)
            loaders = [data.StatefulDataLoader(
                Numbers(size), global_batch_size=4 * world_size, rank=rank, world_size=world_size, seed=history,
                last_batch="next_epoch", num_workers=draw.choice((0, 0, 0, 1, 2)) if history < 5 else 0)
                for rank in range(world_size)]
            for loader in loaders:
                if state is not None:
                    loader.load_state_dict(state)
            before = loaders[0].position
            iterators = [iter(loader) for loader in loaders]
            for _ in range(stop):
                batches = [next(iterator, None) for iterator in iterators]
                assert len({batch is None for batch in batches}) == 1
                if batches[0] is None:
                    iterators = [iter(loader) for loader in loaders]
                    continue
                start = before.epoch * size + before.offset
                numbers = sum(map(values, batches), [])
                for place, number in enumerate(numbers, start):
                    used.setdefault(place // size, []).append(number)
                before = loaders[0].position
                assert len({loader.position for loader in loaders}) == 1
            state = loaders[-1].state_dict()
            assert state == loaders[0].state_dict()
            if before.epoch >= epochs:
                break
        for epoch in range(epochs):
            assert sorted(used[epoch]) == list(range(size)), (history, epoch, sorted(used[epoch]))


def reads_nothing_twice():
    dataset = Numbers(1000)
    loader = data.StatefulDataLoader(dataset, 10, seed=1)
    iterator = iter(loader)
    first = [values(next(iterator)) for _ in range(40)]
    state = loader.state_dict()
    resumed = Numbers(1000)
    loader = data.StatefulDataLoader(resumed, 10, seed=1)
    loader.load_state_dict(state)
    rest = [values(batch) for batch in loader]
    assert resumed.read == 600  # nothing of what was used
    assert sorted(sum(first + rest, [])) == list(range(1000))
    assert len(loader) == 100
    loader.set_epoch(1)
    assert loader.position == (1, 0, 0)
    next(iter(loader))
    loader.set_epoch(1)
    assert loader.position == (1, 10, 0)  # in this epoch already
    loader.set_epoch(0)
    assert loader.position == (0, 0, 0)
    # With workers and a break: the position counts what was given, not what was fetched.
    loader = data.StatefulDataLoader(Numbers(100), 5, seed=1, num_workers=2, prefetch_factor=4)
    for number, batch in enumerate(loader, 1):
        if number == 3:
            break
    assert loader.position == (0, 15, 0)
    seen = sum((values(batch) for batch in loader), [])
    assert len(seen) == 85 and len(set(seen)) == 85


def streams():
    for kind in (Stream, SkippingStream):
        for workers in (0, 2):
            for stop in (0, 3):
                seen, state = [], None
                if stop:
                    for rank in range(2):
                        loader = data.StatefulDataLoader(kind(50), 4, rank=rank, world_size=2, num_workers=workers)
                        for number, batch in enumerate(loader, 1):
                            seen += values(batch)
                            if number == stop:
                                break
                        state = loader.state_dict()
                for rank in range(3):
                    loader = data.StatefulDataLoader(kind(50), 3, rank=rank, world_size=3, num_workers=workers)
                    if state is not None:
                        loader.load_state_dict(state)
                    seen += [each for batch in loader for each in values(batch)]
                    assert loader.position == (1, 0, 0)
                assert sorted(seen) == list(range(50)), (kind, workers, stop, sorted(seen))
    short = data.StatefulDataLoader(Stream(9), 4, rank=0, world_size=2)
    refused(data.ConfigError, "the last batch of the stream has 1 samples for 2 ranks", lambda: list(short))
    dropping = data.StatefulDataLoader(Stream(9), 4, rank=0, world_size=2, last_batch="drop")
    assert [values(batch) for batch in dropping] == [[0, 1, 2, 3]]


def mixtures():
    loaders = [data.StatefulDataLoader([Numbers(30), Numbers(1000, 1000)], 5, rank=rank, world_size=2,
                                       weights=[0.3, 0.7], seed=2, num_workers=rank) for rank in range(2)]
    seen = []
    for _, *batches in zip(range(20), *loaders):
        seen += sum(map(values, batches), [])
    small = [each for each in seen if each < 1000]
    assert len(seen) == 200 and len(small) == 60 and sorted(small) == sorted(2 * list(range(30)))
    assert len(set(seen) - set(small)) == 140
    refused(TypeError, "have no number of batches", lambda: len(loaders[0]))


def packing():
    draw = random.Random(1)
    lengths = [draw.randrange(1, 40) for _ in range(25)]
    documents = [torch.arange(length) + 1000 * number for number, length in enumerate(lengths)]
    for workers in (0, 1):
        tokens = []
        state = None
        for world_size, stop in ((2, 2), (1, 1000)):
            states = []
            for rank in range(world_size):
                loader = data.StatefulDataLoader(documents, 2, rank=rank, world_size=world_size, tokens=16,
                                                 lengths=lengths, seed=3, pad_token=-1, num_workers=workers)
                if state:
                    loader.load_state_dict(state)
                for number, batch in enumerate(loader, 1):
                    ids, positions, segments = (batch[name] for name in ("input_ids", "position_ids", "segment_ids"))
                    assert ids.shape == positions.shape == segments.shape and ids.shape[1] == 16
                    for row, at, segment in zip(ids.tolist(), positions.tolist(), segments.tolist()):
                        for place in range(16):
                            if segment[place] == 0:
                                assert row[place] == -1
                                continue
                            begins = place == 0 or segment[place] != segment[place - 1]
                            assert at[place] == (0 if begins else at[place - 1] + 1)
                            assert begins or row[place] == row[place - 1] + 1
                            tokens.append(row[place])
                    if number == stop:
                        break
                states.append(loader.state_dict())
            assert all(each == states[0] for each in states)
            state = states[0]
        assert loader.position == (1, 0, 0)
        assert sorted(tokens) == sorted(torch.cat(documents).tolist())
    wrong = data.StatefulDataLoader(documents, 2, tokens=16, lengths=[5] * 25)
    refused(data.ConfigError, "its entry in `lengths`", lambda: list(wrong))
    import numpy
    batch, pieces = data.DataOrder(25, seed=3).pack(numpy.array(lengths), 16, 3)
    assert (batch, pieces) == data.DataOrder(25, seed=3).pack(lengths, 16, 3)


def in_a_checkpoint():
    """The position among the program's values in a checkpoint of the runtime, with that of a second order."""
    import acclaunch.torch as acc
    runtime = acc.Runtime()
    model = acc.fully_shard(torch.nn.Linear(2, 2), runtime)
    optimizer = acc.AdamW(model, lr=0.1)
    loader = data.StatefulDataLoader(Numbers(40), 4, seed=1)
    other = data.DataOrder(9, seed=2, name="other")
    seen = [values(batch) for _, batch in zip(range(3), loader)]
    other.advance(other.batch(5))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with tempfile.TemporaryDirectory() as folder:
        runtime.save(f"{folder}/saved", model, optimizer, state={"step": 3} | loader.state_dict() | other.state_dict())
        state = runtime.load(f"{folder}/saved", model, optimizer)
        assert state.get("step") == 3
        loader, other = data.StatefulDataLoader(Numbers(40), 4, seed=1), data.DataOrder(9, seed=2, name="other")
        loader.load_state_dict(state)
        other.load_state_dict(state)
    assert loader.position == (0, 12, 0) and other.position == (0, 5, 0)
    assert sorted(sum(seen + [values(batch) for batch in loader], [])) == list(range(40))


def ranks_that_change():
    """As those of an acc.Runtime after a rejoin. The next iteration has the part of the rank of now; one that has read
    ahead for another rank ends."""
    from acclaunch import _runtime

    class Runtime:
        rank, world_size = 1, 3

    runtime = Runtime()
    _runtime.newest_runtime = lambda: runtime
    packed = {"tokens": 4, "lengths": [4] * 60, "shuffle": False}
    for dataset, keywords in ((Numbers(60), {}), (Stream(60), {}), ([[index] * 4 for index in range(60)], packed)):
        of_all = data.StatefulDataLoader(dataset, 6, rank=0, world_size=1, **keywords)
        loader = data.StatefulDataLoader(dataset, global_batch_size=6, **keywords)
        of_rank = data.StatefulDataLoader(dataset, 2, **keywords)

        def rows(batch):
            return (batch["input_ids"] if keywords else batch).tolist()

        first, second, *_ = of_all
        runtime.rank, runtime.world_size = 1, 3
        iteration = iter(loader)
        assert rows(next(iteration)) == rows(first)[2:4]
        assert (loader.rank, loader.world_size, loader.size, of_rank.size) == (1, 3, 6, 6)
        runtime.rank, runtime.world_size = 0, 2
        refused(data.InvalidArgumentError, "from rank 1 of 3 to 0 of 2", lambda: next(iteration))
        assert rows(next(iter(loader))) == rows(second)[:3]
        assert (loader.rank, loader.world_size, loader.size, of_rank.size) == (0, 2, 6, 4)
    sampler = data.DataBatchSampler(60, global_batch_size=6, shuffle=False)
    iteration = iter(torch.utils.data.DataLoader(Numbers(60), batch_sampler=sampler))
    next(iteration)
    runtime.rank, runtime.world_size = 2, 3
    for call in (lambda: next(iteration), sampler.used):
        refused(data.InvalidArgumentError, "from rank 0 of 2 to 2 of 3", call)
    assert next(iter(sampler)) == [4, 5]
    sampler.used()
    runtime.world_size = 7
    refused(data.InvalidArgumentError, "too small for 7 ranks", lambda: next(iter(loader)))
    _runtime.newest_runtime = lambda: None


def mistakes():
    refused(data.InvalidArgumentError, "last_batch is 'last'", lambda: data.DataOrder(5, last_batch="last"))
    refused(data.InvalidArgumentError, "source 0 has 0 samples", lambda: data.DataOrder(0))
    refused(data.InvalidArgumentError, "2 weights are given for 1", lambda: data.DataOrder(5, weights=[1, 2]))
    refused(data.InvalidArgumentError, "drop_last", lambda: data.StatefulDataLoader(Numbers(5), 1, drop_last=True))
    refused(data.InvalidArgumentError, "give one of the two", lambda: data.StatefulDataLoader(Numbers(5)))
    refused(data.InvalidArgumentError, "too small for 4 ranks",
            lambda: data.StatefulDataLoader(Numbers(5), global_batch_size=3, rank=0, world_size=4))
    refused(data.ConfigError, "the last batch of epoch 0 has 1 samples for 4 ranks",
            lambda: list(data.StatefulDataLoader(Numbers(5), 1, rank=0, world_size=4)))
    loader = data.StatefulDataLoader(Numbers(50), 5, seed=1)
    refused(data.NotFoundError, "acc.data.epoch", lambda: loader.load_state_dict({"step": 3}))
    other = data.StatefulDataLoader(Numbers(50), 5, seed=2).state_dict()
    refused(data.ConfigError, "seed is 2 in the checkpoint and 1", lambda: loader.load_state_dict(other))
    refused(data.ConfigError, "expected an integer",
            lambda: loader.load_state_dict(loader.state_dict() | {"acc.data.offset": 1.5}))
    order = data.DataOrder(10)
    refused(data.InvalidArgumentError, "were read for the batch",
            lambda: order.advance(order.batch(2), range(2), used=[0, 0]))
    assert order.position == (0, 0, 0)


torch.set_num_threads(1)
for check in (sampler_and_loader, resumes, reads_nothing_twice, streams, mixtures, packing, in_a_checkpoint,
              ranks_that_change, mistakes):
    check()
    print("ok", check.__name__, flush=True)
