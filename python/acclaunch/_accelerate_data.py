# SPDX-License-Identifier: Apache-2.0
"""`--data_order acc`: loaders that Accelerate prepares use the order of acclaunch.data, and save_state and load_state
their position (docs/data.md)."""

import functools
import inspect
import json
import os
import pathlib
import sys

from acclaunch._imports import call_after_imports
from acclaunch._library import ConfigError, say

FILE = "acc_data_order.json"  # in a folder of save_state


def _serve_loaders(module):
    """module: accelerate.data_loader."""
    import torch
    from accelerate.utils import broadcast_object_list
    from acclaunch._ordered_loader import OrderedDataLoader, check

    prepare, skip, number = module.prepare_data_loader, module.skip_first_batches, iter(range(1 << 30))

    @functools.wraps(prepare)
    def prepare_data_loader(*arguments, **keywords):
        bound = inspect.signature(prepare).bind(*arguments, **keywords)
        bound.apply_defaults()
        given = bound.arguments
        loader = given["dataloader"]
        shuffle = check(loader, given)
        seed = [torch.initial_seed() if given["data_seed"] is None else given["data_seed"]]
        broadcast_object_list(seed)
        return OrderedDataLoader(loader, given, shuffle, seed[0] % 2**64, f"loader{next(number)}")

    @functools.wraps(skip)
    def skip_first_batches(dataloader, num_batches=0):
        is_ours = type(dataloader) is OrderedDataLoader
        return dataloader.skip(num_batches) if is_ours else skip(dataloader, num_batches)

    _replace(prepare, prepare_data_loader)
    _replace(skip, skip_first_batches)


def _replace(original, replacement):
    """Puts a function in the place of another one, in all modules of Accelerate that have it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "accelerate" and vars(module).get(original.__name__) is original:
            setattr(module, original.__name__, replacement)


def _ours(loaders):
    return [each for each in loaders if type(each).__name__ == "OrderedDataLoader"]


def _serve_checkpoints(module):
    """module: accelerate.checkpointing. Rank 0 writes the positions of all loaders to one file, which is complete or
    absent."""
    save, load = module.save_accelerator_state, module.load_accelerator_state

    @functools.wraps(save)
    def save_accelerator_state(*arguments, **keywords):
        given = inspect.signature(save).bind(*arguments, **keywords).arguments
        result = save(*arguments, **keywords)
        states = [each.state_dict() for each in _ours(given["dataloaders"])]  # on each rank: ends its record's lines
        if states and given["process_index"] == 0:
            path = pathlib.Path(given["output_dir"]) / FILE
            temporary = path.with_name(FILE + ".tmp")
            with open(temporary, "w") as file:
                json.dump({"version": 1, "loaders": states}, file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        return result

    @functools.wraps(load)
    def load_accelerator_state(*arguments, **keywords):
        given = inspect.signature(load).bind(*arguments, **keywords).arguments
        result = load(*arguments, **keywords)
        loaders = _ours(given["dataloaders"])
        if loaders:
            _load_positions(loaders, pathlib.Path(given["input_dir"]) / FILE)
        return result

    _replace(save, save_accelerator_state)
    _replace(load, load_accelerator_state)


def _load_positions(loaders, path):
    if not path.exists():
        say(f"{path.parent} has no {FILE}: it was saved without --data_order acc, and the loaders begin their epochs "
            "from the start")
        return
    try:
        found = json.loads(path.read_text())
        states = found["loaders"]
        good = found["version"] == 1 and isinstance(states, list) and all(isinstance(each, dict) for each in states)
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path}: expected version 1 and a list of loaders: {error}") from None
    if not good or len(states) != len(loaders):
        raise ConfigError(f"{path}: expected version 1 and the positions of {len(loaders)} loaders, found "
                          f"{str(found)[:200]}")
    for loader, state in zip(loaders, states):
        loader.load_state_dict(state)


@functools.cache
def install():
    call_after_imports({"accelerate.data_loader": _serve_loaders, "accelerate.checkpointing": _serve_checkpoints})
