# SPDX-License-Identifier: Apache-2.0
"""Files of DeepSpeed checkpoints of an engine of _deepspeed.py (docs/formats/deepspeed.md).

DeepSpeed keeps the trained parameters of a group in one flat tensor. Stages 1 and 2 cut it into one partition per rank;
in stage 3 each parameter is cut by itself. Parameters here are cut by rows, so that saving gathers one tensor at a
time, and loading reads the elements of this rank's rows, out of the files of any number of ranks."""

import collections
import contextlib
import ctypes
import functools
import glob
import os
import re
import shutil
import weakref

import torch
import torch.distributed as dist
from deepspeed import __version__ as deepspeed_version
from deepspeed.runtime.zero.config import ZeroStageEnum
from deepspeed.utils import logger
from deepspeed.utils.tensor_fragment import fragment_address
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from acclaunch import _rows, _save_async
from acclaunch._library import ConfigError, NotSupportedError
from acclaunch._units import as_plain


class Flat:
    """The places of parameters in a flat tensor. size: of one rank's part."""

    def __init__(self, numels, ranks, by_parameter, paddings=None):
        self.numels, self.ranks, self.by_parameter = numels, ranks, by_parameter
        self.parts = [-(-numel // ranks) for numel in numels]
        lengths = self.parts if by_parameter else [sum(each) for each in zip(numels, paddings or [0] * len(numels))]
        self.starts = [sum(lengths[:number]) for number in range(len(numels))]
        self.total = sum(lengths)
        self.size = self.total if by_parameter else -(-self.total // (2 * ranks)) * 2

    def places(self, number):
        """(rank, begin, end, position): a rank has the elements [begin, end) of a parameter at a position in its
        part."""
        numel, start = self.numels[number], self.starts[number]
        for rank in range(self.ranks):
            if self.by_parameter:
                begin, end = rank * self.parts[number], (rank + 1) * self.parts[number]
            else:
                begin, end = rank * self.size - start, (rank + 1) * self.size - start
            position = start if self.by_parameter else max(0, -begin)
            begin, end = max(0, begin), min(numel, end)
            if begin < end:
                yield rank, begin, end, position


# ---- state dicts of the module ------------------------------------------------------------------------


def serve_whole_state_dicts(engine):
    """Lets state_dict() and load_state_dict() of the module, and of its parts, have whole parameters, as in DeepSpeed's
    stages 0 to 2. Collective in stages 1 and 2 only if rows were changed since the last step."""
    made = {}  # by the id of a parameter, whose names in a state dict share one tensor: a weak reference to it
    read = {}  # whole values of this call, by parameter

    def begin(module, prefix, keep_vars):
        if prefix == "":
            read.clear()
            if not keep_vars:
                wanted = set(module.parameters())
                read.update((each, value) for each, value in engine.read_whole().items() if each in wanted)

    def give(module, state_dict, prefix, _):
        for attribute, parameter in module._parameters.items():
            found = state_dict.get(prefix + attribute)
            if not isinstance(found, DTensor) or found is parameter:  # else keep_vars
                continue
            whole = made.get(id(parameter), lambda: None)()
            if whole is None or not any(each is whole for each in state_dict.values()):
                whole = in_compute_dtype(engine, parameter, read)
                made[id(parameter)] = weakref.ref(whole)
            state_dict[prefix + attribute] = whole

    def take(module, state_dict, prefix, *_):
        for attribute, parameter in module._parameters.items():
            found = state_dict.get(prefix + attribute)
            if torch.is_tensor(found) and isinstance(parameter, DTensor):
                state_dict[prefix + attribute] = _rows.distributed(found.to(parameter.dtype), parameter)

    engine.register_state_dict_pre_hook(begin)
    for module in engine.module.modules():
        module.register_state_dict_pre_hook(begin)
        if module._parameters:
            module.register_state_dict_post_hook(give)
            module.register_load_state_dict_pre_hook(take)


def in_compute_dtype(engine, parameter, read):
    """The whole value of a parameter: out of `read`, or gathered."""
    whole = read.pop(parameter, None)
    if whole is None:
        number = getattr(parameter, "_acc_model", None)
        if parameter.numel() and number is not None:
            _rows.fence([number])  # one rank may read alone: not of other models, in which forwards may be open
        whole = _rows.whole_of(parameter)
    return whole.to(engine.compute_dtype) if whole.is_floating_point() else whole


# ---- saving -------------------------------------------------------------------------------------------


@contextlib.contextmanager
def complete_or_absent(engine, save_dir, tag, save_latest):
    """A folder and a tag to save under, which gets its final name at the end, before `latest` names it: with save_async
    when a thread has written the files."""
    final = str(tag) if tag is not None else f"global_step{engine.global_steps}"
    temporary = _save_async.unfinished_name(final)
    writes = (engine.local_rank if engine.use_node_local_storage() else engine.global_rank) == 0
    made = os.path.abspath(os.path.join(save_dir, temporary))

    def commit():
        folder = os.path.dirname(save.place(made))
        here, target = os.path.join(folder, temporary), os.path.join(folder, final)
        if os.path.isdir(target):
            _exchange(here, target)
            for name in os.listdir(here):
                if not os.path.exists(os.path.join(target, name)) and not name.endswith("_states.pt"):
                    os.rename(os.path.join(here, name), os.path.join(target, name))
            shutil.rmtree(here)
        else:
            os.rename(here, target)
        if save_latest:
            path = os.path.join(folder, "latest")
            with open(_save_async.unfinished_name(path), "w") as file:
                file.write(final)
            os.replace(file.name, path)

    with _save_async.saving(os.path.join(save_dir, final), made) as save:
        if writes:
            beside = glob.escape(os.path.abspath(save_dir))
            for each in _save_async.unfinished(os.path.join(beside, glob.escape(final))):
                shutil.rmtree(each, ignore_errors=True)
            for each in _save_async.unfinished(os.path.join(beside, "latest")):
                os.unlink(each)
            save.at_end(commit, made)
        dist.barrier()
        _rows.fence()
        yield save_dir, temporary


def _exchange(one, other):
    """Two folders get each other's name, at once where the file system can do that (renameat2(2))."""
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    if ctypes.CDLL(None).renameat2(here, os.fsencode(one), here, os.fsencode(other), exchange) != 0:
        aside = f"{other}.acc-old"
        shutil.rmtree(aside, ignore_errors=True)  # of a job that was killed here
        os.rename(other, aside)
        os.rename(one, other)
        os.rename(aside, one)


def flat_groups(optimizer):
    """Lists of the parameters of each flat tensor."""
    found = []
    for group in optimizer.param_groups:
        members = [each for each in group["params"] if each.requires_grad and each.numel()]
        if not members:
            continue
        if optimizer.stage == 3:
            found += _sub_groups(members, optimizer.engine.zero_sub_group_size())
        elif optimizer.engine.zero_round_robin_gradients():
            ranks = dist.get_world_size()
            found.append([each for rank in range(ranks) for each in members[rank::ranks]])
        else:
            found.append(members)
    return found


def _sub_groups(members, limit):
    found, numel = [[]], 0
    for each in members:
        if numel >= limit:
            found, numel = found + [[]], 0
        found[-1].append(each)
        numel += -(-each.numel() // dist.get_world_size())
    return found


def module_state(engine, exclude_frozen, gathers=False):
    """The module's state dict in the dtype that it computes with. In stage 3 parameters are empty, unless
    it gathers."""
    save = _save_async.beside()
    copy = save.copy if save is not None and engine.device.type == "cpu" else torch.clone
    if save is not None and not engine.save_non_zero_checkpoint:
        copy = torch.detach  # the rank does not save it, but reads it as the others
    read = engine.read_whole(copy)
    hollow = engine.zero_optimization_partition_weights() and not gathers
    found, made = collections.OrderedDict(), {}
    parameters = set(engine.module.parameters())
    for name, value in engine.module.state_dict(keep_vars=True).items():
        if not torch.is_tensor(value):
            found[name] = value
        elif value not in parameters:
            found[name] = value.detach()
        elif value.requires_grad or not exclude_frozen:
            if value not in made:
                made[value] = in_compute_dtype(engine, value._local_tensor.new_empty(0) if hollow else value, read)
            found[name] = made[value]
    return found


def frozen_fragment(engine, parameter):
    whole = _rows.whole_of(parameter).to(engine.compute_dtype).cpu()
    if not engine.zero_optimization_partition_weights():
        return whole
    part = -(-whole.numel() // dist.get_world_size())
    begin = part * dist.get_rank()
    own = whole.view(-1)[begin:begin + part]
    return torch.nn.functional.pad(own, (0, part - own.numel()))


def _part(flat, tensors, zeros=torch.zeros):
    """This rank's part of a flat tensor, made by `zeros`. Collective."""
    made = None
    for number, each in enumerate(tensors):
        whole = _rows.whole_of(each).reshape(-1)
        if made is None:
            made = zeros(flat.size, dtype=whole.dtype, device=whole.device)
        for rank, begin, end, position in flat.places(number):
            if rank == dist.get_rank():
                made[position:position + end - begin] = whole[begin:end]
    return made


def _part_later(flat, tensors, save):
    """As _part, for a Save whose thread fetches what other ranks have."""
    tensors = [*tensors]
    with as_plain():  # a DTensor's attributes take a fifth of the time otherwise
        made = save.empty(flat.size, tensors[0].dtype)
        if sum(end - begin for number in range(len(tensors)) for rank, begin, end, _ in flat.places(number)
               if rank == save.rank) < flat.size:
            made.zero_()
        sends, receives = [], []
        for number, each in enumerate(tensors):
            own, is_cut = _rows.local_of(each).detach().reshape(-1), isinstance(each, DTensor) and each.dim() > 0
            first = _rows.own_elements(each)[0] if is_cut else 0
            for rank, begin, end, position in flat.places(number):
                for source in range(save.ranks) if rank == save.rank and is_cut else (save.rank,):
                    start, stop = _rows.own_elements(each, source) if is_cut else (0, each.numel())
                    start, stop = max(start, begin), min(stop, end)
                    if start >= stop or not is_cut and rank != save.rank:
                        continue
                    if source != save.rank:
                        receives.append((source, made[position + start - begin:position + stop - begin]))
                    elif rank != save.rank:
                        sends.append((rank, save.copy(own[start - first:stop - first])))
                    else:
                        made[position + start - begin:position + stop - begin] = own[start - first:stop - first]
    save.exchange(sends, receives)
    return made


def _scalar(values, key, with_int_steps):
    """A state of a flat tensor that is no tensor of its size."""
    first = values[0]
    for each in values:
        is_equal = torch.equal(each, first) if torch.is_tensor(first) and torch.is_tensor(each) else each == first
        if (torch.is_tensor(each) and each.dim() > 0) or not is_equal:
            raise NotSupportedError(f"save_checkpoint: the state '{key}' of the optimizer is not the same for all "
                                    "parameters of a group, nor of their shapes: DeepSpeed's files cannot hold it")
    if isinstance(first, DTensor):
        first = first.full_tensor()
    if key == "step" and with_int_steps:
        return int(first)
    return first.clone() if torch.is_tensor(first) else first


def _parts(optimizer, zeros=torch.zeros):
    """The function that makes this rank's parts of flat tensors."""
    save = _save_async.beside()
    if save is None or optimizer.files is not None or optimizer.engine.device.type != "cpu":
        return functools.partial(_part, zeros=zeros)
    return functools.partial(_part_later, save=save)


def _flat_state(optimizer, flat, parameters):
    states = [optimizer.state.get(each, {}) for each in parameters]
    made = {}
    part = _parts(optimizer, torch.zeros if optimizer.files is None else optimizer.files.zeros)
    for key in dict.fromkeys(key for each in states for key in each):
        if any(_rows.is_elementwise(key, each.get(key), like) for each, like in zip(states, parameters)):
            values = (each.get(key) for each in states)  # one at a time: each may be read from a file
            made[key] = part(flat, (torch.zeros_like(like) if value is None else value
                                    for value, like in zip(values, parameters)))
        else:
            made[key] = _scalar([each.get(key) for each in states], key, optimizer.is_twin)
    if optimizer.files is not None:
        optimizer.files.flush()
    return made


def optimizer_state(optimizer):
    if optimizer.stage == 0:
        return _whole_optimizer_state(optimizer)
    _rows.fence()
    ranks, by_parameter = dist.get_world_size(), optimizer.stage == 3
    groups = flat_groups(optimizer)
    flats = [Flat([each.numel() for each in group], ranks, by_parameter) for group in groups]
    part = _parts(optimizer)
    masters = [part(flat, group) for flat, group in zip(flats, groups)]
    numbers = {each: number for number, group in enumerate(groups) for each in group}
    base = {"state": {number: _flat_state(optimizer, flat, group)
                      for number, (flat, group) in enumerate(zip(flats, groups))},
            "param_groups": [group | {"params": sorted({numbers[each] for each in group["params"] if each in numbers})}
                             for group in optimizer.param_groups]}
    base["state"] = {number: state for number, state in base["state"].items() if state}
    found = {"loss_scaler": optimizer.loss_scaler, "dynamic_loss_scale": optimizer.dynamic_loss_scale,
             "overflow": optimizer.overflow, "zero_stage": ZeroStageEnum(optimizer.stage)}
    if by_parameter:
        return {**found, "partition_count": ranks, "optimizer_state_dict": base, "fp32_flat_groups": masters}
    begin = [flat.size * dist.get_rank() for flat in flats]
    paddings = [max(0, min(flat.size, start + flat.size - flat.total)) for flat, start in zip(flats, begin)]
    names = optimizer.engine.param_names
    slices = [collections.OrderedDict((names[each], fragment_address(numel=end - begin, start=position))
                                      for number, each in enumerate(group)
                                      for rank, begin, end, position in flat.places(number) if rank == dist.get_rank())
              for flat, group in zip(flats, groups)]
    return {**found, "clip_grad": optimizer.clip_grad, "base_optimizer_state": base,
            "single_partition_of_fp32_groups": [part[:part.numel() - padding]
                                                for part, padding in zip(masters, paddings)],
            "group_paddings": paddings, "param_alignment_paddings": [[0] * len(group) for group in groups],
            "partition_count": [ranks] * len(groups), "ds_version": deepspeed_version, "param_slice_mappings": slices}


_SCALER = ("cur_scale", "cur_iter", "last_overflow_iter", "scale_factor", "scale_window")


def _whole_optimizer_state(optimizer):
    """As DeepSpeed saves stage 0: the state dict of a torch optimizer, with 16 bits in that of an
    FP16_UnfusedOptimizer."""
    found = optimizer.optimizer.state_dict()
    found["state"] = tree_map_only(torch.Tensor, _rows.whole_of, found["state"])
    if optimizer.dtype is torch.float32:
        return found
    scaler = {"cur_iter": 0, **{key: value for key, value in vars(optimizer.loss_scaler).items() if key in _SCALER}}
    return {**scaler, "dynamic_loss_scale": optimizer.dynamic_loss_scale, "optimizer_state_dict": found,
            "fp32_groups": [[_rows.whole_of(each) for each in group["params"]] for group in optimizer.param_groups]}


# ---- loading ------------------------------------------------------------------------------------------


def _load_file(path):
    """What torch.save has written. Raises ConfigError with the path."""
    try:
        return torch.load(path, map_location="cpu", mmap=True, weights_only=False)
    except Exception as error:  # torch has no class for a damaged file, and its texts no path
        raise ConfigError(f"{path}: cannot be read as a file of torch.save: {error}") from error


# A parameter with master weights: its shape, the index of its flat tensor, and its place there (Flat, number in it,
# tensors of the ranks).
_Value = collections.namedtuple("_Value", "shape index flat number parts", defaults=(None, None, None))


class Saved:
    """A tag of a DeepSpeed checkpoint, whose tensors are read as they are needed."""

    def __init__(self, folder):
        self.folder = folder
        names = os.listdir(folder) if os.path.isdir(folder) else []
        for name in names:
            if re.match(r"layer_|.*expert_|.*mp_rank_0*[1-9]", name):
                raise NotSupportedError(f"{folder}: '{name}' belongs to tensor or pipeline parallelism or experts of "
                                        "DeepSpeed, which the engine acc does not load")
        self.model_path = os.path.join(folder, "mp_rank_00_model_states.pt")
        models = self._of_ranks(names, r"zero_pp_rank_(\d+)_mp_rank_00_model_states\.pt")
        self.by_parameter = bool(models)
        if models:
            self.model_path = models[0]
        elif not os.path.isfile(self.model_path):
            raise ConfigError(f"{folder}: no DeepSpeed checkpoint, it has no file mp_rank_00_model_states.pt")
        self.models = [_load_file(path) for path in models or [self.model_path]]
        self.model = self.models[0]
        if models:
            self._check_ranks("model", len(models), self.model["dp_world_size"])
        self.values = {}  # by name of a parameter
        self._find_values(names)

    def _check_ranks(self, kind, found, expected):
        if found != expected:
            raise ConfigError(f"{self.folder}: has {found} files *_{kind}_states.pt of ranks, expected {expected}")

    def _find_values(self, names):
        if "zero" in names:
            raise ConfigError(f"{self.folder}: is a universal checkpoint (it has a folder 'zero'), which is loaded "
                              'with "checkpoint": {"load_universal": true} in the configuration')
        optimizers = [_load_file(path)["optimizer_state_dict"] for path in self._of_ranks(
            names, r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_00_?optim_states\.pt")]
        self.ranks = len(optimizers)
        self.inner = optimizers[0] if optimizers else None
        if optimizers or self.by_parameter:
            self._check_ranks("optim", len(optimizers), self.model["dp_world_size"])
        if optimizers:
            self._find_flats(optimizers)

    def _of_ranks(self, names, pattern):
        found = {int(match[1]): name for name in names if (match := re.fullmatch(pattern, name))}
        if sorted(found) != list(range(len(found))):
            raise ConfigError(f"{self.folder}: files of ranks are missing, there are those of {sorted(found)}")
        return [os.path.join(self.folder, found[rank]) for rank in sorted(found)]

    def _find_flats(self, optimizers):
        base_key, flats_key = ("optimizer_state_dict", "fp32_flat_groups") if self.by_parameter else \
            ("base_optimizer_state", "single_partition_of_fp32_groups")
        self.bases = [each[base_key] for each in optimizers]
        if not isinstance(self.bases[0], dict):
            raise NotSupportedError(f"{self.folder}: an elastic checkpoint of DeepSpeed, which the engine acc does "
                                    "not load")
        steps = [[float(state["step"]) for state in each["state"].values() if "step" in state] for each in self.bases]
        if any(each != steps[0] for each in steps):
            raise ConfigError(f"{self.folder}: the files of the ranks are of more than one save: the steps of their "
                              f"optimizers are {steps}")
        alignments = self.inner.get("param_alignment_paddings") or [None] * len(self.model["param_shapes"])
        for index, shapes in enumerate(self.model["param_shapes"]):
            flat = Flat([shape.numel() for shape in shapes.values()], self.ranks, self.by_parameter,
                        None if self.by_parameter else alignments[index])
            parts = [each[flats_key][index] for each in optimizers]
            lengths = [part.numel() + (0 if self.by_parameter else each["group_paddings"][index])
                       for part, each in zip(parts, optimizers)]
            if set(lengths) != {flat.size}:
                raise ConfigError(f"{self.folder}: the files of the ranks have {lengths} elements of group {index}, "
                                  f"expected {flat.size} in each")
            for number, (name, shape) in enumerate(shapes.items()):
                self.values[name] = _Value(shape, index, flat, number, parts)

    def flat_number(self, name):
        """The number of a parameter's flat tensor in the optimizer's state dict."""
        numbers = [number for group in self.bases[0]["param_groups"] for number in group["params"]]
        return numbers[self.values[name].index]

    def read(self, name, begin, end, key=None):
        """The elements [begin, end) of a parameter's master weights, or of the state `key` of its optimizer."""
        value = self.values[name]
        pieces = []
        for rank, first, last, position in value.flat.places(value.number):
            low, high = max(begin, first), min(end, last)
            if low < high:
                part = value.parts[rank] if key is None else self.bases[rank]["state"][self.flat_number(name)][key]
                pieces.append(part.view(-1)[position + low - first:position + high - first])
        return torch.cat(pieces) if pieces else torch.empty(0)

    def state_of(self, name, like):
        """The optimizer's state of a parameter, this rank's rows."""
        size = self.values[name].flat.size
        return {key: self._own_rows(name, like, key)
                if torch.is_tensor(value) and value.dim() == 1 and value.numel() == size else _own_scalar(key, value)
                for key, value in self.bases[0]["state"].get(self.flat_number(name), {}).items()}

    def _own_rows(self, name, like, key):
        rows = self.read(name, *_rows.own_elements(like), key)
        return _rows.of_rows(rows.to(like.device).view_as(like._local_tensor), like)

    def shape_of(self, name):
        if name in self.values:
            return self.values[name].shape
        frozen = self.model.get("frozen_param_shapes") or {}
        return frozen[name] if name in frozen else self.model["module"][name].shape

    def whole_rows(self, name, begin, end):
        """The elements of a parameter that the optimizer does not have: frozen, or of a checkpoint without ZeRO."""
        if begin == end:
            return torch.empty(0)
        if self.by_parameter:
            part = self.models[0]["frozen_param_fragments"][name].numel()
            found = torch.cat([each["frozen_param_fragments"][name] for each in
                               self.models[begin // part:-(-end // part)]])
            return found[begin - begin // part * part:][:end - begin]
        fragments = self.model.get("frozen_param_fragments") or {}
        value = fragments[name] if name in fragments else self.model["module"][name]
        return value.reshape(-1)[begin:end]

    def names(self):
        """All names of the module's state dict that have values."""
        buffers = self.model.get("buffer_names") or []
        if not self.by_parameter:
            return {**dict.fromkeys(self.model["module"])} | dict.fromkeys(self.values) \
                | dict.fromkeys(self.model.get("frozen_param_fragments") or ())
        return dict.fromkeys([*self.values, *(self.model.get("frozen_param_shapes") or ()),
                              *(self.model.get("shared_params") or ()), *buffers])


class Universal(Saved):
    """A tag that DeepSpeed's ds_to_universal has made: a folder for each parameter, with a file for its master weights
    and one for each of its states."""

    def _find_values(self, names):
        self.zero = os.path.join(self.folder, "zero")
        if "zero" not in names:
            raise ConfigError(f"{self.folder}: is no universal checkpoint, it has no folder 'zero': convert it with "
                              "ds_to_universal, or leave checkpoint.load_universal out of the configuration")
        self.inner = _load_file(os.path.join(self.zero, "optimizer_state.pt"))
        self.bases = [self.inner.get("optimizer_state_dict") or {**self.inner, "state": {}}]
        for index, shapes in enumerate(self.model["param_shapes"]):
            self.values.update((name, _Value(shape, index)) for name, shape in shapes.items())

    def read(self, name, begin, end, key="fp32"):
        path = os.path.join(self.zero, name, f"{key}.pt")
        found, shape = _load_file(path), self.values[name].shape
        whole = found["param"] if isinstance(found, dict) else found
        if whole.numel() != shape.numel():
            raise ConfigError(f"{path}: has {whole.numel()} elements, expected {shape.numel()}, of {list(shape)}")
        return whole.reshape(-1)[begin:end].clone()

    def state_of(self, name, like):
        files = {file[:-3] for file in os.listdir(os.path.join(self.zero, name)) if file.endswith(".pt")} - {"fp32"}
        found = {key: self._own_rows(name, like, key) for key in sorted(files - {"step"})}
        if "step" in files:
            found["step"] = _own_scalar("step", _load_file(os.path.join(self.zero, name, "step.pt")))
        for key, value in self.bases[0]["state"].get(self.flat_number(name), {}).items():  # of stage 3, without files
            if key not in found and torch.is_tensor(value) and value.dim() > 0:
                raise ConfigError(f"{os.path.join(self.zero, name)}: has no file {key}.pt, which this state of the "
                                  "optimizer needs")
            found.setdefault(key, _own_scalar(key, value))
        return found


def _own_scalar(key, value):
    if key == "step" and not torch.is_tensor(value):
        return torch.tensor(float(value))
    return value.clone() if torch.is_tensor(value) else value


def load(engine, load_dir, tag, strict, with_optimizer, with_scheduler, module_only):
    """As DeepSpeedEngine.load_checkpoint. Returns the path and the client's state."""
    _save_async.wait()
    _save_async.check_complete(load_dir)
    universal = engine.load_universal_checkpoint()
    if tag is None:
        path = os.path.join(load_dir, "latest_universal" if universal else "latest")
        text = None
        with contextlib.suppress(FileNotFoundError), open(path) as file:
            text = file.read().strip()
        tag = _rows.of_all_ranks(text)[0]  # another job may save meanwhile
        if tag is None:
            if universal:
                raise ValueError(f"{path}, which names the universal checkpoint, does not exist")
            logger.warning(f"Unable to find latest file at {path}: pass an explicit checkpoint tag, if there is one")
            return None, None
    _rows.fence()
    folder = os.path.join(load_dir, str(tag))
    stamp = _save_async.stamp(folder)
    saved = (Universal if universal else Saved)(folder)
    _load_module(engine.module, saved, strict)
    if with_optimizer and engine.optimizer is not None:
        _load_optimizer(engine.optimizer, saved)
    if not engine.zero_load_from_fp32_weights():
        with torch.no_grad():
            for each in engine.module.parameters():
                if each.requires_grad:
                    each._local_tensor.copy_(each._local_tensor.to(engine.compute_dtype))
    engine.forget_whole()
    engine.publish_whole()
    model = saved.model
    engine.loaded_checkpoint_dp_world_size = model["dp_world_size"]
    taken = ["module"]
    if not module_only:
        if with_scheduler and engine.lr_scheduler is not None:
            engine.lr_scheduler.load_state_dict(model["lr_scheduler"])
        engine.global_steps, engine.skipped_steps = model["global_steps"], model["skipped_steps"]
        engine.global_samples = model.get("global_samples", engine.global_steps * engine.train_batch_size())
        engine.loaded_checkpoint_mp_world_size = model["mp_world_size"]
        taken += ["skipped_steps", "global_steps", "dp_world_size", "mp_world_size", "data_sampler", "random_ltd"]
    taken += ["lr_scheduler"] * with_scheduler + ["optimizer"] * with_optimizer
    dist.barrier()  # all have read
    if not all(_rows.of_all_ranks(_save_async.stamp(folder) == stamp)):
        raise _save_async.changed(folder)
    return saved.model_path, {key: value for key, value in model.items() if key not in taken}


def _load_module(module, saved, strict):
    aliases = saved.model.get("shared_params") or {}
    names, used, missing = saved.names(), set(), []
    by_parameter = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        by_parameter.setdefault(parameter, []).append(name)
    with torch.no_grad():
        for parameter, known in by_parameter.items():
            name = next((each for each in [aliases.get(each, each) for each in known] + known if each in names), None)
            used.update(known)
            if name is None:
                missing += known
                continue
            if saved.shape_of(name) != parameter.shape:
                raise ConfigError(f"{saved.folder}: '{name}' has the shape {list(saved.shape_of(name))}, expected "
                                  f"{list(parameter.shape)}")
            rows = _rows.own_elements(parameter)
            values = saved.read(name, *rows) if name in saved.values else saved.whole_rows(name, *rows)
            parameter._local_tensor.view(-1).copy_(values)
        whole = module.state_dict(keep_vars=True)
        for name, value in whole.items():
            if name in used:
                continue
            used.add(name)
            if name not in saved.model["module"]:
                missing.append(name)
            elif torch.is_tensor(value):
                value.copy_(saved.model["module"][name])
            else:
                module.get_submodule(name.rpartition(".")[0]).set_extra_state(saved.model["module"][name])
    unexpected = [name for name in names if name not in used]
    if strict and (missing or unexpected):
        raise RuntimeError(f"Error(s) in loading state_dict for {type(module).__name__} from {saved.folder}: "
                           f"Missing key(s): {missing}. Unexpected key(s): {unexpected}.")


def _load_optimizer(optimizer, saved):
    if saved.inner is None:
        return _load_whole_optimizer(optimizer, saved.model.get("optimizer"), saved)
    names = _names_of(optimizer, saved)
    _forget_states(optimizer)
    for group, other in zip(optimizer.param_groups, saved.bases[0]["param_groups"]):
        members = [each for each in group["params"] if each in names]
        for parameter in members:
            state = saved.state_of(names[parameter], parameter)
            if state:
                optimizer.set_state(parameter, state)
            expected = optimizer.state.get(members[0], {}).keys()
            if state.keys() != expected:
                raise ConfigError(f"{saved.folder}: has the states {sorted(state)} of '{names[parameter]}' for the "
                                  f"optimizer, expected {sorted(expected)}, as of '{names[members[0]]}'")
        group.update({key: value for key, value in other.items() if key in group and key != "params"})
    if optimizer.stage in (1, 2):
        optimizer.clip_grad = saved.inner.get("clip_grad", optimizer.clip_grad)
    if optimizer.dtype is torch.float16:
        optimizer.loss_scaler = saved.inner["loss_scaler"]
        optimizer.dynamic_loss_scale = saved.inner["dynamic_loss_scale"]


def _names_of(optimizer, saved):
    """By parameter, its name in the files. Raises ConfigError if they have other groups or parameters."""
    groups, others = optimizer.param_groups, saved.bases[0]["param_groups"]
    if len(groups) != len(others):
        raise ConfigError(f"{saved.folder}: has {len(others)} parameter groups, this optimizer {len(groups)}")
    known, found = {}, {}
    for name, parameter in optimizer.engine.module.named_parameters(remove_duplicate=False):
        known.setdefault(parameter, []).append(name)
    for group, other in zip(groups, others):
        for parameter in group["params"]:
            name = next((each for each in known[parameter] if each in saved.values), None)
            if name is None:
                if parameter.requires_grad and parameter.numel():
                    raise ConfigError(f"{saved.folder}: has no state of the optimizer for '{known[parameter][0]}'")
            elif saved.flat_number(name) not in other["params"]:
                raise ConfigError(f"{saved.folder}: '{name}' is in another parameter group there than in this "
                                  "optimizer")
            else:
                found[parameter] = name
    return found


def _forget_states(optimizer):
    """A checkpoint from before the first step has none. Of parameters without elements no file has one."""
    for each in [each for each in optimizer.state if each.numel()]:
        del optimizer.state[each]


_WRAPPED_BY_BITSANDBYTES = "__bnb_optimizer_quant_state__"  # in its state dicts


def _load_whole_optimizer(optimizer, found, saved):
    masters = (found or {}).get("fp32_groups")
    state = found["optimizer_state_dict"] if masters else found
    if not state or "param_groups" not in state:
        raise NotSupportedError(f"{saved.folder}: the optimizer's state is neither that of DeepSpeed's stages 1 to 3, "
                                "nor that of one of torch's optimizers: load with load_optimizer_states=False")
    lengths, own = ([len(each["params"]) for each in groups]
                    for groups in (state["param_groups"], optimizer.param_groups))
    if lengths != own:
        raise ConfigError(f"{saved.folder}: has other parameter groups than this optimizer")
    _forget_states(optimizer)
    for index, (group, other) in enumerate(zip(optimizer.param_groups, state["param_groups"])):
        for position, (parameter, number) in enumerate(zip(group["params"], other["params"])):
            given = dict(state["state"].get(number, {}))
            wrapped = given.pop(_WRAPPED_BY_BITSANDBYTES, {})
            own = {key: _rows.distributed(value, parameter)
                   if _rows.is_elementwise(key, value, parameter) else _own_scalar(key, value)
                   for key, value in {**given, **wrapped}.items()}
            if wrapped:
                own["step"] = given["step"]  # an int
            if own:
                optimizer.set_state(parameter, own)
            if masters:
                _rows.set_rows(parameter, masters[index][position])
        group.update({key: value for key, value in other.items() if key in group and key != "params"})
    if optimizer.dtype is torch.float16 and masters:
        vars(optimizer.loss_scaler).update({key: found[key] for key in _SCALER if key in found})
