# SPDX-License-Identifier: Apache-2.0
"""acc.fully_shard: declares a module's parameters to the library and installs the hooks."""

import collections
import contextlib
import ctypes as c
import functools
import zlib

import torch

from acclaunch._library import (INITIALIZER_CUSTOM, INITIALIZER_PURE, ExportConfig,
                                FillFunction, Handle, InvalidArgumentError, MemoryReport,
                                ModelConfig, Module, ParameterConfig, StateDictConfig,
                                TrafficReport, VisitFunction, library)
from acclaunch._parameters import DTYPES, ShardedParameter, Uncopied, view
from acclaunch._runtime import model_of, release
from acclaunch._units import GatheredMemory, Member, Unit


class Model(Uncopied):
    """A sharded module: the library's model, its units, and the state of the running backward."""

    def __init__(self, module, runtime, dtype, seed, unused_units):
        self.library = library()
        self.module, self.runtime, self.device = module, runtime, runtime.device
        self.unused_units = unused_units
        self.units = []
        self.buffers = []  # (module, attribute, name, unit, handle) of those that are saved
        self.memory = GatheredMemory()
        self.backwards = None  # Uses of the running backward, in the order of their begin
        self.handle = self.library.make("model_create_with", runtime.handle, ModelConfig(
            seed=seed, dtype=DTYPES.index(dtype), bfloat16_on_cpu=1, float16_on_cpu=1,
            unused_units=1, units_as_declared=1, float32_buffers=1))
        release(self, self.library.model_free, self.handle)
        self.compute_dtype = DTYPES[self.library.read("model_compute_dtype", c.c_int, self.handle)]
        self.casts_inputs = self.compute_dtype is not dtype

    # ---- checks

    def remember_module(self):
        """Keeps what `check_module` compares: the places of parameters, and the number of parameters
        and submodules of each module."""
        self.places = [(module._parameters, attribute, member.sharded,
                        member.sharded.requires_grad)
                       for unit in self.units for member in unit.members
                       for module, attribute in member.slots]
        self.sizes = [(name, module, len(module._parameters), len(module._modules))
                      for name, module in self.module.named_modules()]

    def check_module(self):
        if self.backwards is not None:
            raise InvalidArgumentError("a backward of this module has failed: its scopes are still open, "
                                       "and the module cannot be used any more")
        for parameters, attribute, sharded, trains in self.places:
            if parameters.get(attribute) is not sharded:
                raise InvalidArgumentError(f"parameter '{sharded.acc_name}' was replaced after "
                                           "acc.fully_shard: change the module before it is sharded")
            if sharded.requires_grad is not trains:
                raise InvalidArgumentError(
                    f"requires_grad of parameter '{sharded.acc_name}' was {trains} in "
                    "acc.fully_shard: freeze parameters before the module is sharded")
        for name, module, parameters, modules in self.sizes:
            if len(module._parameters) != parameters or len(module._modules) != modules:
                raise InvalidArgumentError(f"module '{name}' has got or lost a parameter or a submodule "
                                           "after acc.fully_shard: change it before it is sharded")

    def check_inputs(self, unit, tensors):
        for each in tensors:
            if each.device.type != self.device.type and each.device.type != "cpu":
                raise InvalidArgumentError(f"unit '{unit.name}' got a tensor on {each.device}, but the "
                                           f"runtime computes on {self.device}")

    def cast(self, tensor):
        return tensor.to(self.compute_dtype) if tensor.is_floating_point() else tensor

    # ---- backward

    def enter_backward(self, use):
        if self.backwards is None:
            self.backwards = []
            torch.autograd.Variable._execution_engine.queue_callback(self.leave_backward)
        self.backwards.append(use)

    def leave_backward(self):
        """At the end of the whole backward: ends the uses that no hook has ended, the root last."""
        backwards, self.backwards = self.backwards, None
        for use in sorted(backwards, key=lambda use: use.unit.is_root):
            use.end_backward()

    # ---- step

    def check_step(self):
        for unit in self.units:
            if unit.used and unit.trains and not unit.wrote and not self.unused_units:
                reason = (f"rank {self.runtime.rank}: optimizer.step() refused: unit '{unit.name}' had "
                          "a forward since the last step, but its backward wrote no gradient; call "
                          "acc.fully_shard with unused_units=True if its gradient is zero on purpose")
                self.runtime.abort(reason)
                raise InvalidArgumentError(reason, self.runtime.rank)

    def after_step(self):
        for unit in self.units:
            unit.used = unit.wrote = False
            unit.awaiting.clear()

    # ---- buffers, which torch keeps and the library saves

    def _library_buffer(self, place):
        module, attribute, _, unit, handle = place
        tensor = module._buffers[attribute]
        address = self.library.make("unit_buffer_data", unit.handle, handle).value
        return tensor, view(address, tensor.shape, torch.float32, self.device)

    def write_buffers(self):
        for place in self.buffers:
            tensor, saved = self._library_buffer(place)
            saved.copy_(tensor)

    def read_buffers(self):
        for place in self.buffers:
            tensor, saved = self._library_buffer(place)
            with torch.no_grad():
                tensor.copy_(saved)


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
        self.error = None
        self.made = None  # the module that was made last from the meta device, with its tensors

    def config(self, name, module, attribute, tensor, trainable=True):
        """The library's config of a parameter or buffer. Values of a tensor may differ between ranks;
        those of the meta device are a function of its module's name."""
        is_meta = tensor.is_meta
        if is_meta and _reset_of(module) is None:
            raise InvalidArgumentError(
                f"'{name}' is on the meta device, and {type(module).__name__} has no "
                "reset_parameters() that gives it values: add one, or create it on the CPU")

        def fill(_, offset, out, count, __):
            try:
                values = self.make(name, module)[attribute] if is_meta else tensor
                target = view(out, torch.Size([count]), torch.float32, torch.device("cpu"))
                target.copy_(values.detach().reshape(-1)[offset:offset + count])
            except BaseException as error:  # a callback cannot raise through the library
                self.error = self.error or error

        self.functions.append(FillFunction(fill))
        return ParameterConfig(trainable=trainable, weight_decay=1,
                               initializer=INITIALIZER_PURE if is_meta else INITIALIZER_CUSTOM,
                               fill=self.functions[-1])

    def release(self):
        """Drops the functions, which keep the original tensors alive in reference cycles."""
        self.functions.clear()
        self.made = None

    def make(self, name, module):
        """Tensors of a module on the meta device, as its reset_parameters() makes them. The random
        numbers depend on the seed and the module's name only."""
        if self.made is None or self.made[0] is not module:
            kept = dict(module._parameters), dict(module._buffers)
            with torch.random.fork_rng(devices=[]), torch.device("cpu"):
                torch.manual_seed(self.seed ^ zlib.crc32(name.rpartition(".")[0].encode()))
                for tensors in (module._parameters, module._buffers):
                    for attribute, each in tensors.items():
                        if each is not None and each.is_meta:
                            empty = torch.empty_like(each, device="cpu")
                            tensors[attribute] = (torch.nn.Parameter(empty, each.requires_grad)
                                                  if tensors is module._parameters else empty)
                _reset_of(module)()
            self.made = module, {**module._parameters, **module._buffers}
            module._parameters.update(kept[0])
            module._buffers.update(kept[1])
        return self.made[1]


def _dtype_of(module):
    dtypes = {}
    for name, parameter in module.named_parameters():
        dtypes.setdefault(parameter.dtype, name)
    if not dtypes:
        raise InvalidArgumentError(f"{type(module).__name__} has no parameters to shard")
    for dtype, name in dtypes.items():
        if dtype not in DTYPES:
            raise InvalidArgumentError(f"parameter '{name}' is {dtype}, expected float32, bfloat16 or "
                                       "float16")
    if len(dtypes) > 1:
        raise InvalidArgumentError("all parameters must have one dtype, found " + ", ".join(
            f"{dtype} ('{name}')" for dtype, name in dtypes.items()))
    return next(iter(dtypes))


def _common_unit(names, unit_names):
    """The innermost unit that contains all names."""
    def units_of(name):
        parts = name.split(".")
        prefixes = [".".join(parts[:count]) for count in range(len(parts))]
        return [prefix for prefix in prefixes if prefix in unit_names]

    common = set.intersection(*(set(units_of(name)) for name in names))
    return max(common, key=len)


def _distinct(module):
    """Distinct parameters in the order of the module, with their names and places."""
    found = collections.OrderedDict()
    for prefix, each in module.named_modules(remove_duplicate=False):
        for attribute, parameter in each._parameters.items():
            if parameter is not None:
                name = f"{prefix}.{attribute}" if prefix else attribute
                names, slots = found.setdefault(parameter, ([], []))
                names.append(name)
                if all(slot != (each, attribute) for slot in slots):
                    slots.append((each, attribute))
    return found


def _inside(unit_name, full_name):
    return full_name[len(unit_name) + 1:] if unit_name else full_name


def _shape(tensor):
    return (c.c_int64 * tensor.dim())(*tensor.shape), tensor.dim()


def _declare_parameters(model, source, weight_decay_of):
    by_name = {unit.name: unit for unit in model.units}
    for parameter, (names, slots) in _distinct(model.module).items():
        unit = by_name[_common_unit(names, by_name)]
        if parameter.numel() == 0:
            raise InvalidArgumentError(f"parameter '{names[0]}' has no elements: {parameter.shape}")
        if not parameter.is_meta and parameter.device.type not in ("cpu", model.device.type):
            raise InvalidArgumentError(f"parameter '{names[0]}' is on {parameter.device}, but the "
                                       f"runtime computes on {model.device}")
        config = source.config(names[0], *slots[0], parameter, parameter.requires_grad)
        config.weight_decay = weight_decay_of(names[0], parameter)
        handle = Handle()
        model.library.unit_parameter(unit.handle, _inside(unit.name, names[0]).encode(),
                                     *_shape(parameter), config, handle)
        for alias in names[1:]:
            model.library.unit_tie(unit.handle, alias.encode(), handle)
        sharded = ShardedParameter(names[0], unit.name, parameter.shape, parameter.dtype,
                                   model.device, parameter.requires_grad)
        working = torch.nn.Parameter(
            torch.empty(0, dtype=model.compute_dtype, device=model.device),
            parameter.requires_grad)
        unit.members.append(Member(names, slots, sharded, working, handle))


def _declare_buffers(model, source):
    by_name = {unit.name: unit for unit in model.units}
    for prefix, module in model.module.named_modules():
        for attribute, buffer in module._buffers.items():
            if buffer is None or attribute in module._non_persistent_buffers_set or \
                    buffer.numel() == 0:
                continue
            name = f"{prefix}.{attribute}" if prefix else attribute
            if buffer.is_complex():
                raise InvalidArgumentError(f"buffer '{name}' is complex, which checkpoints cannot hold; "
                                           "register it with persistent=False")
            unit = by_name[_common_unit([name], by_name)]
            handle = Handle()
            model.library.unit_buffer(unit.handle, _inside(unit.name, name).encode(), *_shape(buffer),
                                      source.config(name, module, attribute, buffer), handle)
            model.buffers.append((module, attribute, name, unit, handle))


def _move_buffers(model):
    """Brings buffers to the device; those of the meta device get memory, and `read_buffers` values."""
    for module in model.module.modules():
        for attribute, buffer in module._buffers.items():
            if buffer is not None and buffer.is_meta:
                module._buffers[attribute] = torch.empty_like(buffer, device=model.device)
            elif buffer is not None:
                module._buffers[attribute] = buffer.to(model.device)


def _recompute_forward(module):
    """Replaces the forward of a unit's module by one that is computed again in the backward."""
    forward = module.forward

    @functools.wraps(forward)
    def recomputed(*arguments, **keywords):
        return torch.utils.checkpoint.checkpoint(forward, *arguments, use_reentrant=False,
                                                 **keywords)

    module.forward = recomputed


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

    Afterwards parameters have values only while the forward of their unit runs. Raises ConfigError
    if the ranks' modules differ, InvalidArgumentError for a module that cannot be sharded."""
    if hasattr(module, "acc_model"):
        raise InvalidArgumentError(f"{type(module).__name__} is sharded already")
    chosen = _policy_units(module, runtime) if units is None else _named_units(module, units)
    model = Model(module, runtime, _dtype_of(module), seed, unused_units)
    for name, each in module.named_modules():
        if each is module or each in chosen:
            if getattr(each, "_compiled_call_impl", None) is not None:
                raise InvalidArgumentError(
                    f"unit '{name}' was compiled with Module.compile(), which would compile the hooks "
                    "too: call its compile() after acc.fully_shard")
            declare = "model_root" if each is module else "model_unit"
            handle = model.library.make(declare, model.handle, name.encode(),
                                        type(each).__name__.encode())
            model.units.append(Unit(model, each, name, handle))
    source = _Source(seed)
    _declare_parameters(model, source, weight_decay or (lambda name, parameter: True))
    _declare_buffers(model, source)
    for unit in model.units:
        unit.install()  # the first call initialises the parameters
        if source.error is not None:
            raise source.error
    source.release()
    _move_buffers(model)
    model.read_buffers()
    if runtime.activation_checkpointing:
        for unit in model.units:
            if not unit.is_root:
                _recompute_forward(unit.module)
    for unit in model.units:
        object.__setattr__(unit.module, "compile", functools.partial(_compile, unit.module))
    model.remember_module()
    object.__setattr__(module, "acc_model", model)
    object.__setattr__(module, "no_sync", functools.partial(no_sync, module))
    return module


# ---- functions of a sharded module --------------------------------------------------------------


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
    model.write_buffers()
    model.library.model_load_weights(model.handle, str(path).encode())
    model.read_buffers()


def export_weights(module, path, dtype=None, max_shard_nbytes=0):
    """Writes all parameters and buffers: one file for ".safetensors" or ".bin", else a folder of
    safetensors files with an index. dtype: of parameters; default that of the master weights.
    max_shard_nbytes: largest file of a folder; 0: 10 GB. Collective; rank 0 writes. Raises ConfigError that
    names the path."""
    model = model_of(module)
    model.write_buffers()
    config = ExportConfig(dtype=-1 if dtype is None else DTYPES.index(dtype),
                          max_shard_nbytes=max_shard_nbytes)
    model.library.model_export_weights(model.handle, str(path).encode(), config)


def state_dict(module, rank0_only=True):
    """The full state dict: master weights and buffers, by name, on the CPU. Empty on ranks other than 0
    with rank0_only. Collective."""
    model = model_of(module)
    model.write_buffers()
    found, errors = {}, []
    buffers = {name: each._buffers[attribute].dtype for each, attribute, name, *_ in model.buffers}

    def visit(tensor, _):
        try:
            full = tensor.contents
            name = full.name.decode()
            values = view(full.data, torch.Size(full.shape[:full.num_dims]), DTYPES[full.dtype],
                          torch.device("cpu")).clone()
            found[name] = values.to(buffers[name]) if name in buffers else values
        except BaseException as error:
            errors.append(error)

    model.library.model_state_dict(model.handle, StateDictConfig(rank0_only=rank0_only,
                                                                 offload_to_cpu=1),
                                   VisitFunction(visit), None)
    if errors:
        raise errors[0]
    return found
