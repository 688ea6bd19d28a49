# SPDX-License-Identifier: Apache-2.0
"""A loader that Accelerate has prepared, in the order of acclaunch.data (--data_order acc)."""

from accelerate.data_loader import _PYTORCH_DATALOADER_KWARGS, DataLoaderShard
from accelerate.state import DistributedType, PartialState
from accelerate.utils import send_to_device, synchronize_rng_states
from torch.utils.data import BatchSampler, IterableDataset, RandomSampler, SequentialSampler

from acclaunch._data_loader import DataBatchSampler, _Items, _Numbered
from acclaunch._data_order import DataOrder, is_recorded
from acclaunch._library import NotSupportedError, say


def _refuse(what):
    raise NotSupportedError(f"--data_order acc: {what}; leave --data_order acc out, or use "
                            "acclaunch.data.StatefulDataLoader for this loader and do not prepare it")


def check(loader, given):
    """Raises for a loader whose samples have an order of their own. Returns True if it is shuffled."""
    if isinstance(loader.dataset, IterableDataset):
        _refuse("a loader of an IterableDataset has no positions")
    if given["dispatch_batches"]:
        _refuse("dispatch_batches")
    if given["use_stateful_dataloader"]:
        _refuse("use_stateful_dataloader, which keeps a position too")
    if type(loader.batch_sampler) is not BatchSampler:
        _refuse(f"a loader with the batch sampler {type(loader.batch_sampler).__name__}")
    sampler = loader.batch_sampler.sampler
    if type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(loader.dataset):
        return True
    if type(sampler) is not SequentialSampler:
        _refuse(f"a loader with the sampler {type(sampler).__name__}"
                + (", with replacement or a number of samples" if type(sampler) is RandomSampler else ""))
    return False


def _among(given):
    """This rank among those that divide a batch, as Accelerate counts them with a device mesh."""
    state, mesh = PartialState(), given["torch_device_mesh"]
    rank = state.process_index if given["process_index"] is None else given["process_index"]
    world_size = state.num_processes if given["num_processes"] is None else given["num_processes"]
    names = () if not mesh else ("tp",) if state.distributed_type == DistributedType.DEEPSPEED else ("tp", "cp")
    alike = 1  # consecutive ranks that use the same samples
    for name in names:
        alike *= mesh[name].size() if name in mesh.mesh_dim_names else 1
    return rank // alike, world_size // alike


class OrderedDataLoader(DataLoaderShard):
    """A prepared loader whose iterations are the epochs of a DataOrder. The first one after load_state is what is
    left of the epoch in which the checkpoint was saved."""

    def __init__(self, loader, given, shuffle, seed, name):
        rank, world_size = _among(given)
        size = loader.batch_size * (1 if given["split_batches"] else world_size)
        last_batch = "drop" if loader.drop_last else "pad" if given["even_batches"] else "partial"
        self._make_order = lambda seed: DataOrder(len(loader.dataset), seed=seed, shuffle=shuffle, name=name,
                                                  last_batch=last_batch)
        self._seed_is_given = given["data_seed"] is not None
        self._sampler = DataBatchSampler(self._make_order(seed), global_batch_size=size, rank=rank,
                                         world_size=world_size)
        self._resumes = False  # the next iteration begins at the position
        self._skipped = None  # of a loader that skip_first_batches has returned: the loader, and its batches
        keywords = {key: getattr(loader, key, value) for key, value in _PYTORCH_DATALOADER_KWARGS.items()
                    if key not in ("batch_size", "shuffle", "sampler", "batch_sampler", "drop_last")}
        dataset = loader.dataset
        if is_recorded():
            dataset, keywords["collate_fn"] = _Items(dataset, False), _Numbered(loader.collate_fn)
        rng_types = [each for each in given["rng_types"] or () if str(getattr(each, "value", each)) != "generator"]
        super().__init__(dataset, device=given["device"] if given["put_on_device"] else None,
                         rng_types=rng_types or None, _drop_last=loader.drop_last,
                         _non_blocking=given["non_blocking"], batch_sampler=self._sampler, **keywords)
        self.dataset, self.collate_fn = loader.dataset, loader.collate_fn

    @property
    def order(self):
        return self._sampler.order

    @property
    def total_batch_size(self):
        return self._sampler.size

    @property
    def total_dataset_length(self):
        return len(self.dataset)

    def __len__(self):
        loader, skipped = self._skipped or (self, 0)
        return max(0, loader.order.batches(loader._sampler.size, (0, 0)) - skipped)

    def set_epoch(self, epoch):
        if self._skipped:
            self._skipped[0].set_epoch(epoch)
        elif self.iteration != epoch:
            self.iteration, self._resumes = epoch, False

    def get_sampler(self):
        return self._sampler

    def set_sampler(self, sampler):
        _refuse("set_sampler")

    def skip(self, batches):
        """A loader without the first batches of the present epoch. After load_state it begins where the
        checkpoint says, which counts samples and so fits any number of ranks."""
        made = object.__new__(OrderedDataLoader)
        made.__dict__.update(self.__dict__)
        made._skipped = (self, batches)
        return made

    def __iter__(self):
        if self._skipped:
            loader, batches = self._skipped
            if not loader._resumes:
                offset = min(batches * loader._sampler.size, len(loader.dataset))
                loader.order.seek((loader.iteration, offset))
                loader._resumes = True
            elif batches * loader._sampler.size != loader.order.position.offset and loader._sampler.rank == 0:
                say(f"skip_first_batches: {batches} batches of {loader._sampler.size} samples are not the position "
                    f"of the checkpoint, {loader.order.position.offset} samples, which is used")
            return iter(loader)
        return self._epoch()

    def _epoch(self):
        if self.rng_types is not None:
            synchronize_rng_states(self.rng_types, self.synchronized_generator)
        order, sampler = self.order, self._sampler
        if not self._resumes and order.position != (self.iteration, 0, 0):
            order.seek((self.iteration, 0))
        self._resumes = False
        epoch = order.position.epoch
        self.iteration = epoch
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)
        self.begin()
        if not self._drop_last:
            self.remainder = (len(self.dataset) - order.position.offset) % sampler.size
        for batch in self.base_dataloader:
            used, batch = batch if is_recorded() else (None, batch)
            if self.device is not None:
                batch = send_to_device(batch, self.device, non_blocking=self._non_blocking)
            whole = order.batch(sampler.size)
            order.advance(whole, sampler.part(whole) if used is not None else None, used=used)
            self.end_of_dataloader = order.position.epoch != epoch
            yield batch
        if order.position.epoch == epoch:  # its rest is no whole batch, and is left out
            order.seek((epoch + 1, 0))
        self.iteration = order.position.epoch
        self.end()

    def state_dict(self):
        return self.order.state_dict()

    def load_state_dict(self, state):
        key = next((each for each in state if each.endswith(".seed")), None)
        seed = state.get(key, self.order.seed) % 2**64
        if seed != self.order.seed and not self._seed_is_given:
            self._sampler.order = self._make_order(seed)  # drawn anew at each start: the checkpoint's is meant
        self.order.load_state_dict(state)
        self.iteration, self._resumes = self.order.position.epoch, True

    def __reduce__(self):
        raise TypeError("a loader with --data_order acc cannot be pickled")
