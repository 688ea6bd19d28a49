# SPDX-License-Identifier: Apache-2.0
"""acc.fully_shard: declares a module's parameters to the library and installs the hooks."""

import contextlib
import ctypes as c
import functools
import zlib

import torch

from acclaunch._library import (INITIALIZER_CUSTOM, INITIALIZER_PURE_ONCE, ConfigError, Error, ExportConfig,
                                FillFunction, InvalidArgumentError, MemoryReport, ModelConfig, Module,
                                NotSupportedError, ParameterConfig, StateDictConfig, TrafficReport, VisitFunction,
                                callback, library, path_of)
from acclaunch._parameters import DTYPES, ShardedParameter, Uncopied, checksum, view
from acclaunch._runtime import model_of, release
from acclaunch._units import GatheredMemory, Member, Unit, in_backward, top_hooks


class Lifetime:
    """The library's model is freed with this object, which tensors over its memory own as well."""

    def __init__(self, runtime):
        self.runtime = runtime


class Model(Uncopied):
    """A sharded module: the library's model, its units, and the state of the running backward."""

    def __init__(self, module, runtime, dtype, seed, unused_units, by_rows=False):
        self.library = library()
        self.module, self.runtime, self.device = module, runtime, runtime.device
        self.units = []
        self.buffers = []  # SavedBuffers
        self.shared = []  # of all buffers: name, module, attribute, the memory that model_share has got
        self.memory = GatheredMemory()
        self.source = None  # of the initial values, which the library may ask for as long as it lives
        self.open_forwards = 0  # of all units
        self.backwards = None  # Uses of the running backward, in the order of their begin
        self.gathered = False  # in acc.gathered: the parameters are whole
        self.has_gradients = False  # of backwards since the last step
        self.steps = 0  # of the optimizer since fully_shard
        self.handle = self.library.make("model_create_with", runtime.handle, ModelConfig(
            seed=seed, dtype=DTYPES.index(dtype), bfloat16_on_cpu=1, float16_on_cpu=1,
            unused_units=unused_units, units_as_declared=1, autograd=1, by_rows=by_rows))
        self.lifetime = Lifetime(runtime)
        release(self.lifetime, self.library.model_free, self.handle)
        self.compute_dtype = DTYPES[self.library.read("model_compute_dtype", c.c_int, self.handle)]
        self.casts_inputs = self.compute_dtype is not dtype

    # ---- checks

    def remember_module(self):
        """Keeps what `check_parameters` compares: the parameters and submodules of each module."""
        self.tree = tuple(self.module.modules())
        self.ids = self._ids_in_tree()
        for unit in self.units:
            unit.module_parameters = tuple(each for module in unit.modules for each in module.parameters())
        self.note_versions([member for unit in self.units for member in unit.members])

    def note_versions(self, members):
        """members: those whose whole values a forward must not change from now on."""
        self.versions = [(each, each.working._version) for each in members]

    def check_versions(self):
        """Raises if a forward has changed whole parameters: ranks that share memory would change them for each
        other, and where each has a copy the change would be lost."""
        for member, version in self.versions:
            if member.working._version != version:
                raise NotSupportedError(
                    f"the forward of {type(self.module).__name__} changed its parameter '{member.names[0]}' in place, "
                    "as torch.nn.Embedding with max_norm does, which is not supported for sharded modules: change "
                    "parameters between forwards, or without --engine acc by acc.load_weights")

    def check_backward(self):
        if self.backwards is not None:
            raise InvalidArgumentError("a backward of this module has failed: its scopes are still open, "
                                       "and the module cannot be used any more")

    def check_module(self):
        self.check_backward()
        self.check_parameters()

    def check_parameters(self):
        """Nothing would shard a parameter that is new in the module, nor reduce its gradient."""
        if self._ids_in_tree() == self.ids:
            return
        known = {id(each) for unit in self.units for each in unit.own_parameters()}
        for name, parameter in self.module.named_parameters():
            if parameter.numel() and id(parameter) not in known:
                raise put_in_later(name)
        self.remember_module()

    def _ids_in_tree(self):
        """Of the submodules and parameters of each module, in the tree's order."""
        return [id(each) for module in self.tree
                for each in (*module._modules.values(), None, *module._parameters.values())]

    def check_inputs(self, unit, tensors):
        for each in tensors:
            if not each.is_cpu and each.device.type != self.device.type:
                raise InvalidArgumentError(f"unit '{unit.label}' got a tensor on {each.device}, but the "
                                           f"runtime computes on {self.device}")

    def leave_forward(self, forward):
        """At the end of a forward in no other one: of the root, or of a unit that the program calls by itself."""
        if forward.error() is None:
            self.check_versions()

    # ---- backward

    def enter_backward(self, use):
        if self.backwards is None:
            self.backwards = []
            torch.autograd.Variable._execution_engine.queue_callback(_BackwardEnd(self))
        self.backwards.append(use)

    def leave_backward(self):
        """At the end of the whole backward: ends the uses that no hook has ended, the root last."""
        backwards, self.backwards = self.backwards, None
        for use in sorted(backwards, key=lambda use: use.unit.is_root):
            use.end_backward()

    def fail_backward(self):
        """Tells the peers, which wait in the scopes of the backward, that it failed."""
        label = self.backwards[-1].unit.label
        with contextlib.suppress(Error):
            self.runtime.abort(f"rank {self.runtime.rank} left the backward of unit '{label}' because of an error "
                               "of the program")

    def give_up(self):
        """Drops what the forwards and backwards have left open that a lost rank has ended, and the gradients."""
        if in_backward() != -1 or any(unit.forwards for unit in self.units):
            raise InvalidArgumentError("series.rejoin in a forward or backward of the module: call it outside")
        self.backwards, self.gathered = None, False
        self.runtime.abort(f"rank {self.runtime.rank} gives up groups that have lost a rank")
        for unit in self.units:
            unit.give_up()
        self.steps += 1  # a backward of an old forward is refused as one before a step
        self.has_gradients = False

    # ---- step

    def check_not_gathered(self, call):
        if self.gathered:
            raise InvalidArgumentError(f"{call} in acc.gathered: call it outside")

    def before_step(self):
        self.check_not_gathered("optimizer.step()")
        for unit in self.units:
            unit.follow_requires_grad()

    def after_step(self):
        self.steps += 1
        self.has_gradients = False
        for unit in self.units:
            unit.awaiting.clear()

    def zero_grad(self):
        self.library.model_zero_grad(self.handle)
        self.has_gradients = False

    # ---- buffers, which torch keeps and the library saves

    def write_buffers(self):
        known = {slot for buffer in self.buffers for slot in buffer.slots}
        for places in _places_of_buffers(self.module).values():
            for name, *slot in _persistent(places):
                if tuple(slot) not in known:
                    raise InvalidArgumentError(f"buffer '{name}' is new since acc.fully_shard: register it, "
                                               "with a tensor, before")
        for buffer in self.buffers:
            buffer.memory.copy_(buffer.tensor())

    def read_buffers(self):
        with torch.no_grad():
            for buffer in self.buffers:
                buffer.tensor().copy_(buffer.memory)

    @contextlib.contextmanager
    def shared_again(self):
        """A context in which the library gives the buffers that it does not save rank 0's values again."""
        kept = []
        for name, module, attribute, memory in self.shared:
            if attribute not in module._non_persistent_buffers_set:
                continue
            tensor = module._buffers.get(attribute)
            if tensor is None or (tensor.shape, tensor.dtype) != (memory.shape, memory.dtype):
                raise InvalidArgumentError(f"series.rejoin: buffer '{name}' was {list(memory.shape)} {memory.dtype} in "
                                           "acc.fully_shard, and is another kind of tensor now")
            kept.append((tensor, memory))
        with torch.no_grad():
            for tensor, memory in kept:
                memory.copy_(tensor)
            yield
            for tensor, memory in kept:
                tensor.copy_(memory)

    # ---- extra states (torch.nn.Module.get_extra_state), which the library does not know

    def extra_states(self):
        """By their names in torch's state dict."""
        return {name: module.get_extra_state() for name, module in self._with_extra_state()}

    def has_extra_states(self):
        return any(True for _ in self._with_extra_state())

    def set_extra_states(self, states, where):
        modules = dict(self._with_extra_state())
        if set(states) != set(modules):
            raise ConfigError(f"{where} has the extra states {', '.join(states)}, this model has "
                              f"{', '.join(modules) or 'none'}: load the weights alone with "
                              "acc.load_weights")
        for name, module in modules.items():
            module.set_extra_state(states[name])

    def _with_extra_state(self):
        for name, module in self.module.named_modules():
            if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
                yield f"{name}._extra_state" if name else "_extra_state", module


class _BackwardEnd:
    """Called by autograd at the end of a backward, and dropped without a call when an exception ends it, also
    one that the program catches."""

    def __init__(self, model):
        self.model, self.uses = model, model.backwards

    def __call__(self):
        model, self.model = self.model, None
        model.leave_backward()

    def __del__(self):
        if self.model is not None and self.model.backwards is self.uses:
            self.model.fail_backward()


class SavedBuffer:
    """A persistent buffer. names, slots (module, attribute): of each place that holds it; memory: the
    library's, as a tensor."""

    def __init__(self, names, slots, unit, handle):
        self.names, self.slots, self.unit, self.handle = names, slots, unit, handle
        self.memory = None

    def tensor(self):
        """The module's tensor. Raises InvalidArgumentError if it is another kind than in fully_shard."""
        found = [module._buffers.get(attribute) for module, attribute in self.slots]
        for name, each in zip(self.names, found):
            if each is not found[0]:
                raise InvalidArgumentError(f"buffers '{self.names[0]}' and '{name}' were one tensor in "
                                           "acc.fully_shard and are two now: change them in place")
        if found[0] is None or (found[0].shape, found[0].dtype) != (self.memory.shape, self.memory.dtype):
            what = "None" if found[0] is None else f"{list(found[0].shape)} {found[0].dtype}"
            raise InvalidArgumentError(
                f"buffer '{self.names[0]}' is {what}, and was {list(self.memory.shape)} "
                f"{self.memory.dtype} in acc.fully_shard: its shape and dtype must stay the same")
        return found[0]


def put_in_later(name):
    return InvalidArgumentError(f"parameter '{name}' was put into the module after fully_shard, which has not sharded "
                                "it: change the module before")


def _fields(function, handle, report):
    function(handle, report)
    return {name: getattr(report, name) for name, _ in report._fields_[1:]}


# ---- choice of units ----------------------------------------------------------------------------


def _candidates(module):
    """Modules that become units where the launcher's wrap policy leaves the choice to the program: those
    of the classes in `_no_split_modules` (transformers), else the elements of each ModuleList."""
    classes = set(getattr(module, "_no_split_modules", None) or ())
    if classes:
        return {each for each in module.modules() if type(each).__name__ in classes}
    return {element for each in module.modules() if isinstance(each, torch.nn.ModuleList)
            for element in each}


def _named_units(module, units):
    """The modules that `units` names: names, classes or modules."""
    found = set()
    modules = dict(module.named_modules())
    for wanted in units:
        if isinstance(wanted, str):
            chosen = [modules[wanted]] if wanted in modules else \
                [each for each in modules.values() if type(each).__name__ == wanted]
        elif isinstance(wanted, type):
            chosen = [each for each in modules.values() if isinstance(each, wanted)]
        else:
            chosen = [each for each in modules.values() if each is wanted]
        if not chosen:
            raise InvalidArgumentError(
                f"units: {wanted!r} is no name, class or instance of a submodule of "
                f"{type(module).__name__}; its classes are "
                + ", ".join(sorted({type(each).__name__ for each in modules.values()})))
        found.update(chosen)
    return found


def _policy_units(module, runtime):
    """The modules that the launcher's wrap policy chooses."""
    candidates = _candidates(module)
    first_names = {}
    modules = list(module.named_modules())
    infos = (Module * len(modules))()
    for info, (name, each) in zip(infos, modules):
        own = {}
        for attribute, parameter in each._parameters.items():
            if parameter is not None:
                full = first_names.setdefault(parameter, f"{name}.{attribute}" if name else attribute)
                own[full] = parameter.numel()
        info.__init__(name=name.encode(), class_name=type(each).__name__.encode(),
                      parameters=(c.c_char_p * len(own))(*(full.encode() for full in own)),
                      numels=(c.c_int64 * len(own))(*own.values()), num_parameters=len(own),
                      is_candidate=each in candidates)
    chosen = (c.c_int32 * len(modules))()
    library().runtime_wrap(runtime.handle, infos, len(modules), chosen)
    return {each for (_, each), is_unit in zip(modules, chosen) if is_unit}


# ---- parameters ---------------------------------------------------------------------------------


def _reset_of(module):
    """The function that gives a module's tensors their initial values; that of MultiheadAttention and
    of the transformer modules has an underscore."""
    return getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)


class _Source:
    """Initial values of parameters and buffers, which the library asks for."""

    def __init__(self, seed):
        self.seed = seed
        self.functions = []  # live until the model is initialised
        self.made = None  # the module that was made last from the meta device, with its tensors

    def config(self, name, module, attribute, tensor):
        """The library's config of a parameter. Values of a tensor may differ between ranks; those of the
        meta device are a function of its module's name."""
        self.check(name, module, tensor)

        def fill(_, offset, out, count, __):
            target = view(out, torch.Size([count]), torch.float32, torch.device("cpu"))
            values = self.values(name, module, attribute, tensor)
            target.copy_(values.detach().reshape(-1)[offset:offset + count])

        self.functions.append(callback(FillFunction, fill))
        return ParameterConfig(
            trainable=tensor.requires_grad, weight_decay=1, fill=self.functions[-1],
            context=library().callback_context,
            initializer=INITIALIZER_PURE_ONCE if tensor.is_meta else INITIALIZER_CUSTOM)

    def release(self):
        """Drops the functions that keep the original tensors alive in reference cycles."""
        self.functions.clear()
        self.made = None

    def check(self, name, module, tensor):
        if tensor.is_meta and _reset_of(module) is None:
            raise InvalidArgumentError(
                f"'{name}' is on the meta device, and {type(module).__name__} has no "
                "reset_parameters() that gives it values: add one, or create it on the CPU")

    def values(self, name, module, attribute, tensor):
        """The values of a parameter or buffer: its own, or those that reset_parameters() gives it."""
        if not tensor.is_meta:
            return tensor
        self.check(name, module, tensor)
        made, blanks = self._make(name, module)
        values = made[attribute]
        if values is None or values.shape != tensor.shape:
            raise InvalidArgumentError(
                f"'{name}' has shape {list(tensor.shape)}, and reset_parameters() of "
                f"{type(module).__name__} makes it {None if values is None else list(values.shape)}")
        if values is blanks[attribute] and _is_blank(values):
            raise InvalidArgumentError(
                f"'{name}' is on the meta device, and reset_parameters() of {type(module).__name__} "
                "leaves it, or a part of it, without values: fill it there, or create it on the CPU")
        return values.to(tensor.dtype)

    def _make(self, name, module):
        """Tensors of a module on the meta device, as its reset_parameters() makes them, and those that it
        was given. The random numbers depend on the seed and the module's name only."""
        if self.made is None or self.made[0] is not module:
            kept = [(tensors, dict(tensors)) for each in module.modules()
                    for tensors in (each._parameters, each._buffers)]
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(self.seed ^ zlib.crc32(name.rpartition(".")[0].encode()))
                for tensors, originals in kept:
                    is_own = tensors is module._parameters or tensors is module._buffers
                    for attribute, each in originals.items():
                        if each is None or (each.is_meta and not is_own):
                            continue
                        # The function gets a copy of what has values, and so cannot change it.
                        copy = _blank(each) if each.is_meta else each.detach().clone()
                        tensors[attribute] = torch.nn.Parameter(copy, each.requires_grad) if isinstance(
                            each, torch.nn.Parameter) else copy
                given = {**module._parameters, **module._buffers}
                try:
                    _reset_of(module)()
                    self.made = module, {**module._parameters, **module._buffers}, given
                finally:
                    for tensors, originals in kept:
                        tensors.update(originals)
        return self.made[1:]


def _blank(tensor):
    """Memory of the tensor's kind on the CPU, in which every bit is 1. Of floating point numbers this is
    a NaN that no computation makes."""
    made = torch.empty_like(tensor, device="cpu")
    c.memset(made.data_ptr(), 255, made.untyped_storage().nbytes())
    return made


def _is_blank(tensor):
    """True if a tensor of `_blank` was not written. Of a part of it only NaN tells."""
    if tensor.numel() == 0:
        return False
    dtype = tensor.dtype
    bits = tensor.detach().contiguous().view(-1).view(torch.uint8).view(-1, dtype.itemsize) == 255
    if dtype is torch.bool or (dtype.itemsize > 1 and (dtype.is_floating_point or dtype.is_complex)):
        return bits.all(1).any().item()
    return bits.all().item() and tensor._version == 0


def _dtype_of(module):
    dtypes = {}
    for name, parameter in module.named_parameters():
        dtypes.setdefault(parameter.dtype, name)
    if not dtypes:
        raise InvalidArgumentError(f"{type(module).__name__} has no parameters to shard")
    for dtype, name in dtypes.items():
        if dtype not in DTYPES[:3]:
            raise InvalidArgumentError(f"parameter '{name}' is {dtype}, expected float32, bfloat16 or "
                                       "float16")
    if len(dtypes) > 1:
        raise InvalidArgumentError("all parameters must have one dtype, found " + ", ".join(
            f"{dtype} ('{name}')" for dtype, name in dtypes.items()))
    return next(iter(dtypes))


def owned_parameters(module, owner_of, skips=lambda parameter, owners: False):
    """Distinct parameters in the order of the module, with their names, their places (module, attribute) and their
    owner, the innermost one that contains all places. owner_of(name, module): the owner that a module is the root of,
    or None. skips(parameter, owners): True for a place that is left out, which lies in these owners."""
    owners, found = {"": ()}, {}
    for prefix, part in module.named_modules(remove_duplicate=False):
        own = owner_of(prefix, part)
        around = owners[prefix] = owners[prefix.rpartition(".")[0]] + (() if own is None else (own,))
        for attribute, parameter in part._parameters.items():
            if parameter is None or skips(parameter, around):
                continue
            names, slots, common = found.setdefault(parameter, ([], [], list(around)))
            names.append(f"{prefix}.{attribute}" if prefix else attribute)
            if (part, attribute) not in slots:
                slots.append((part, attribute))
            common[:] = [each for each in common if each in around]
    return {parameter: (names, slots, common[-1]) for parameter, (names, slots, common) in found.items()}


def _inside(unit_name, full_name):
    return full_name[len(unit_name) + 1:] if unit_name else full_name


def _declare_parameters(model, source, weight_decay_of):
    by_name = {unit.name: unit for unit in model.units}
    for parameter, (names, slots, unit) in owned_parameters(model.module, lambda name, _: by_name.get(name)).items():
        if parameter.numel() == 0:
            raise InvalidArgumentError(f"parameter '{names[0]}' has no elements: {parameter.shape}")
        if not parameter.is_meta and parameter.device.type not in ("cpu", model.device.type):
            raise InvalidArgumentError(f"parameter '{names[0]}' is on {parameter.device}, but the "
                                       f"runtime computes on {model.device}")
        config = source.config(names[0], *slots[0], parameter)
        config.weight_decay = weight_decay_of(names[0], parameter)
        handle = unit.declare(model.library.unit_parameter, _inside(unit.name, names[0]), parameter, config)
        for alias in names[1:]:
            model.library.unit_tie(unit.handle, alias.encode(), handle)
        sharded = ShardedParameter(names[0], unit, parameter.shape, parameter.dtype,
                                   model.device, parameter.requires_grad)
        working = torch.nn.Parameter(
            torch.empty(0, dtype=model.compute_dtype, device=model.device),
            parameter.requires_grad)
        unit.members.append(Member(names, slots, sharded, working, handle))


def _places_of_buffers(module):
    """Distinct buffers in the order of the module, with (name, module, attribute) of each place."""
    found = {}
    for prefix, each in module.named_modules():
        for attribute, buffer in each._buffers.items():
            if buffer is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                found.setdefault(buffer, []).append((name, each, attribute))
    return found


def _persistent(places):
    return [place for place in places if place[2] not in place[1]._non_persistent_buffers_set]


def _fill_buffers(model, source):
    """Brings all buffers to the device; those of the meta device get values."""
    for buffer, places in _places_of_buffers(model.module).items():
        if isinstance(buffer, torch.nn.parameter.UninitializedTensorMixin):
            raise InvalidArgumentError(f"buffer '{places[0][0]}' is not initialised: run the lazy module "
                                       "once before acc.fully_shard")
        if buffer.layout is not torch.strided or buffer.dtype not in DTYPES:
            raise InvalidArgumentError(f"buffer '{places[0][0]}' is {buffer.layout} {buffer.dtype}, which "
                                       "the runtime does not support")
        tensor = source.values(*places[0], buffer).to(model.device)
        if torch._debug_has_internal_overlap(tensor) == 1:  # expanded: it could not be written
            tensor = tensor.clone(memory_format=torch.contiguous_format)
        for _, module, attribute in places:
            module._buffers[attribute] = tensor


def _declare_buffers(model):
    for buffer, places in _places_of_buffers(model.module).items():
        saved = _persistent(places)
        if not saved:
            continue
        names, slots = [name for name, *_ in saved], [tuple(slot) for _, *slot in saved]
        unit = max((each for each in model.units if names[0].startswith(each.name + "." if each.name else "")),
                   key=lambda each: len(each.name))
        handle = unit.declare(model.library.unit_buffer, _inside(unit.name, names[0]), buffer,
                              ParameterConfig(buffer_dtype=DTYPES.index(buffer.dtype)))
        for alias in names[1:]:
            model.library.unit_tie_buffer(unit.handle, alias.encode(), handle)
        model.buffers.append(SavedBuffer(names, slots, unit, handle))


def _share_buffers(model):
    """Gives all buffers rank 0's values, and those that are saved their memory in the library."""
    for buffer, places in _places_of_buffers(model.module).items():
        values = buffer.detach().resolve_conj().resolve_neg().contiguous()
        model.library.model_share(model.handle, places[0][0].encode(), values.data_ptr(),
                                  values.numel() * values.dtype.itemsize)
        if values.data_ptr() != buffer.data_ptr():
            with torch.no_grad():
                buffer.copy_(values)
        model.shared.append((*places[0], values))
    for each in model.buffers:
        module, attribute = each.slots[0]
        tensor = module._buffers[attribute]
        address = model.library.make("unit_buffer_data", each.unit.handle, each.handle).value
        each.memory = view(address, tensor.shape, tensor.dtype, model.device)
    model.write_buffers()


def _recompute_forward(unit):
    """Replaces the forward of a unit's module by one that is computed again in the backward."""
    forward = unit.module.forward

    def explained(unpack, saved):
        try:
            return unpack(saved)
        except Error:
            raise
        except Exception as error:
            raise InvalidArgumentError(
                f"unit '{unit.label}': its forward, which fsdp_activation_checkpointing (the key "
                "activation_checkpointing of a DeepSpeed file) computes again in the backward, did "
                "not do the same as the first time. Usually the forward changes an argument, such as "
                "a cache of keys and values: leave the cache out (use_cache=False) or the setting. "
                f"{type(error).__name__}: {error}") from error

    def first(*arguments, **keywords):
        hooks = top_hooks(True)  # of the checkpoint; those of the second time are another's
        if hooks is None or in_backward() != -1:
            return forward(*arguments, **keywords)
        with torch.autograd.graph.saved_tensors_hooks(
                hooks[0], functools.partial(explained, hooks[1])):
            return forward(*arguments, **keywords)

    @functools.wraps(forward)
    def recomputed(*arguments, **keywords):
        return torch.utils.checkpoint.checkpoint(first, *arguments, use_reentrant=False, **keywords)

    unit.module.forward = recomputed


def _compile(module, *arguments, **keywords):
    """Module.compile of a unit: compiles its forward, and not the hooks around it."""
    module.forward = torch.compile(module.forward, *arguments, **keywords)


def fully_shard(module, runtime, *, units=None, seed=0, weight_decay=None, unused_units=False):
    """Shards a module's parameters over the ranks, by the launcher's strategy, and returns the module.
    Collective: all ranks shard the same module.

    units: the submodules that are gathered and freed together: names, classes or modules. Default:
    those that the launcher's wrap policy chooses; without a policy, the elements of each ModuleList.
    The module itself is the unit of all other parameters.
    seed: of the values of parameters on the meta device.
    weight_decay: function (name, parameter) that returns False for parameters without weight decay.
    unused_units: False: optimizer.step() raises if a unit had a forward and no gradient.

    Afterwards parameters have values only while the forward of their unit runs. Raises
    DisagreementError if the ranks' modules differ, InvalidArgumentError for a module that cannot be sharded."""
    if hasattr(module, "acc_model"):
        raise InvalidArgumentError(f"{type(module).__name__} is sharded already")
    chosen = _policy_units(module, runtime) if units is None else _named_units(module, units)
    model = Model(module, runtime, _dtype_of(module), seed, unused_units)
    for name, each in module.named_modules():
        if each is module or each in chosen:
            if getattr(each, "_compiled_call_impl", None) is not None:
                raise InvalidArgumentError(
                    f"unit '{name or 'root'}' was compiled with Module.compile(), which would compile the hooks "
                    "too: call its compile() after acc.fully_shard")
            model.units.append(Unit(model, each, name, type(each).__name__))
    source = model.source = _Source(seed)
    _fill_buffers(model, source)
    _declare_parameters(model, source, weight_decay or (lambda name, parameter: True))
    _declare_buffers(model)
    for unit in model.units:
        unit.install()  # the first call initialises the parameters
    source.release()
    _share_buffers(model)
    if runtime.activation_checkpointing:
        for unit in model.units:
            if not unit.is_root:
                _recompute_forward(unit)
    for unit in model.units:
        object.__setattr__(unit.module, "compile", functools.partial(_compile, unit.module))
    model.remember_module()
    object.__setattr__(module, "acc_model", model)
    object.__setattr__(module, "no_sync", functools.partial(no_sync, module))
    for each in module.modules():
        if any(True for _ in each.parameters()):
            object.__setattr__(each, "zero_grad", functools.partial(_zero_grad, model, each))
    return module


# ---- functions of a sharded module --------------------------------------------------------------


def _zero_grad(model, module, set_to_none=True):
    """Drops the gradients of all backwards since the last step."""
    if module is not model.module:
        raise InvalidArgumentError(
            f"zero_grad() of a part ({type(module).__name__}) of a sharded module: the gradients of all "
            "its parts are dropped together, by zero_grad() of the sharded module or of its optimizer")
    model.zero_grad()


@contextlib.contextmanager
def no_sync(module):
    """A context. Within it, backwards reduce no gradients; the next one outside, or the step, reduces all.
    Each rank keeps whole gradients meanwhile."""
    model = model_of(module)
    scope = model.library.make("no_sync_begin", model.handle)
    try:
        yield
    finally:
        model.library.no_sync_end(scope)


def memory_report(module):
    """A dictionary: bytes that this rank holds for the module, by category. acc/runtime/reports.hpp
    explains the names."""
    model = model_of(module)
    return _fields(model.library.model_memory, model.handle, MemoryReport())


def traffic_report(module):
    """A dictionary: elements (not bytes) that this rank has passed to collectives, and numbers of calls.
    acc/runtime/reports.hpp explains the names."""
    model = model_of(module)
    return _fields(model.library.model_traffic, model.handle, TrafficReport())


def load_weights(module, path):
    """Sets all parameters, by name, from a checkpoint of any supported format (a safetensors file or
    folder, a .bin file of torch.save, a folder of torch DCP, of Accelerate or of DeepSpeed), and the
    buffers that it contains. Collective. Raises ConfigError that names the file and the tensor."""
    model = model_of(module)
    model.check_not_gathered("acc.load_weights")
    model.write_buffers()
    model.library.model_load_weights(model.handle, path_of(path))
    model.read_buffers()


def export_weights(module, path, dtype=None, max_shard_nbytes=0):
    """Writes all parameters and buffers: one file for ".safetensors" or ".bin", else a folder of
    safetensors files with an index. dtype: of parameters; default that of the master weights.
    max_shard_nbytes: largest file of a folder; 0: 10 GB. Collective; rank 0 writes. Raises ConfigError that
    names the path, InvalidArgumentError for a module with extra states, which these files cannot hold."""
    model = model_of(module)
    if model.has_extra_states():
        raise InvalidArgumentError(
            f"weights files cannot hold {', '.join(model.extra_states())} (get_extra_state): save "
            "acc.state_dict(module) with torch.save, or use runtime.save")
    model.write_buffers()
    config = ExportConfig(dtype=-1 if dtype is None else DTYPES.index(dtype),
                          max_shard_nbytes=max_shard_nbytes)
    model.library.model_export_weights(model.handle, path_of(path), config)


def _full_tensors(model, rank0_only, on_host, wanted=lambda name: True):
    """Copies of the master weights and buffers, by name. Collective."""
    found = {}
    device = torch.device("cpu") if on_host else model.device

    def visit(tensor, _):
        full = tensor.contents
        name = full.name.decode()
        if wanted(name):
            found[name] = view(full.data, torch.Size(full.shape[:full.num_dims]),
                               DTYPES[full.dtype], device).clone()

    model.library.model_state_dict(model.handle, StateDictConfig(rank0_only=rank0_only,
                                                                 offload_to_cpu=on_host),
                                   callback(VisitFunction, visit), model.library.callback_context)
    return found


def state_dict(module, rank0_only=True):
    """The full state dict: master weights, buffers and extra states, by name, on the CPU. Empty on ranks
    other than 0 with rank0_only. Collective."""
    model = model_of(module)
    model.write_buffers()
    found = _full_tensors(model, rank0_only, on_host=True)
    if not rank0_only or model.runtime.rank == 0:
        found.update(model.extra_states())
    return found


def _refuse_gradient(parameter):
    parameter.grad = None
    raise InvalidArgumentError("a backward in acc.gathered would lose the gradients: call the module "
                               "outside, or under torch.no_grad()")


@contextlib.contextmanager
def gathered(module):
    """A context in which each rank has all parameters of the module, with the values and the dtype of the
    master weights, as if it were not sharded: for `generate()`, forwards of inner modules, averages of
    weights (EMA), `state_dict()` and `save_pretrained` of other packages. Each rank holds a copy of its
    own; nothing else is collective within, so that the ranks may do different things. Collective at
    the beginning.

    The copies are dropped at the end. Weights that were changed by then raise InvalidArgumentError:
    acc.load_weights sets weights. Backwards and steps within are refused."""
    model = model_of(module)
    if model.gathered:
        yield module
        return
    if model.backwards is not None or any(unit.forwards or unit.backwards for unit in model.units):
        raise InvalidArgumentError("acc.gathered in a forward or backward of the module")
    members = {member.names[0]: member for unit in model.units for member in unit.members}
    values = _full_tensors(model, rank0_only=False, on_host=False, wanted=members.__contains__)
    sums = {name: checksum([value]) for name, value in values.items()}
    parameters = {}
    for name, member in members.items():
        parameter = torch.nn.Parameter(values.pop(name), member.sharded.requires_grad)
        if parameter.requires_grad:
            parameter.register_post_accumulate_grad_hook(_refuse_gradient)
        member.put(parameter)
        parameters[name] = parameter
    model.gathered = True
    try:
        yield module
    finally:
        model.gathered = False
        for member in members.values():
            member.put(member.sharded)
    changed = [name for name, parameter in parameters.items() if checksum([parameter]) != sums[name]]
    if changed:
        raise InvalidArgumentError(
            f"parameter '{changed[0]}'" + (f" and {len(changed) - 1} more" if changed[1:] else "")
            + " changed in acc.gathered, which drops its copies: acc.load_weights sets weights, and "
            "temporary values must be taken back before the end of the context")
