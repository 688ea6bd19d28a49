# SPDX-License-Identifier: Apache-2.0
"""acc.Runtime: this process's membership in the job."""

import ctypes as c
import io
import numbers
import os
import sys
import warnings
import weakref

import torch

from acclaunch._library import (ERRORS, DeviceInfo, InvalidArgumentError, NotFoundError, NotSupportedError,
                                ProgramValue, SeriesConfig, by_name, library, path_of, program_values, real, text)

OLDEST_TORCH = (2, 6)


def _check_torch():
    found = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if found < OLDEST_TORCH:
        raise ImportError(f"acclaunch.torch needs torch {'.'.join(map(str, OLDEST_TORCH))} or newer, "
                          f"found {torch.__version__}")


_check_torch()


def release(owner, free, handle):
    """Frees the handle with its owner, or at the end of the process in the reverse order of creation.
    After an error of the program nothing is freed: the peers may wait for this process to end."""
    def run():
        if getattr(sys, "last_value", None) is None:
            free(handle)

    weakref.finalize(owner, run)


def model_of(module):
    """The library's side of a sharded module."""
    model = getattr(module, "acc_model", None)
    if model is None:
        raise InvalidArgumentError(f"{type(module).__name__} is not sharded: call acc.fully_shard "
                                   "first")
    return model


class SavedState:
    """Values of the program in a loaded checkpoint; freed with this object."""

    def __init__(self, handle):
        self._handle = handle
        release(self, library().program_state_free, handle)
        self._of_all, self._of_rank = map(self._unpacked, (library().program_state_get,
                                                           library().program_state_get_of_rank))

    def _unpacked(self, function):
        """The function of the library, and the values that it has packed, by name."""
        packed = self._get(function, _PACKED, None)
        return function, {} if packed is None else from_bytes(packed)

    def _get(self, function, name, default):
        value = ProgramValue()
        try:
            function(self._handle, text(name, "the name of a value"), value)
        except NotFoundError:
            return default
        return (value.integer, value.real,
                c.string_at(value.bytes, value.num_bytes) if value.num_bytes else b"")[value.kind]

    def _given(self, source, name, default):
        function, values = source
        return values[name] if name in values else self._get(function, name, default)

    def get(self, name, default=None):
        """A value of `state`, of the type that it had. A str that a program in C or C++ saved is bytes."""
        return self._given(self._of_all, name, default)

    def of_rank(self, name, default=None):
        """A value that this rank saved in `of_rank`. A rank that did not exist then has none."""
        return self._given(self._of_rank, name, default)


_EXTRA_STATES, _PACKED = "acc.extra_states", "acc.packed"


def to_bytes(value):
    """What `from_bytes` takes, as bytes."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def from_bytes(data):
    """Raises an error for what is not a tensor, number, str or bytes, or a dict, list or tuple of them."""
    return torch.load(io.BytesIO(data), weights_only=True)


def _loadable_bytes(value):
    """The value as bytes if `from_bytes` takes them; else None."""
    try:
        data = to_bytes(value)
        from_bytes(data)
    except Exception:  # noqa: BLE001: of pickle, torch or the value itself
        return None
    return data


def _packed(name, values):
    """Values by name as one value of this name, if there are any. Raises InvalidArgumentError, with its name, for
    one that loading would refuse."""
    if not values:
        return {}
    data = _loadable_bytes(values)
    if data is None:
        each = next((each for each, value in values.items() if _loadable_bytes(value) is None), next(iter(values)))
        raise InvalidArgumentError(
            f"'{each}' is {type(values[each]).__name__}, which a checkpoint cannot hold: tensors, numbers, strings, "
            "bytes, None, and dicts, lists and tuples of them can be saved, without values of numpy in them")
    return {name: data}


def _is_kept(value):
    """True for a value that the library gives back as it was."""
    if isinstance(value, numbers.Integral):
        return not isinstance(value, bool) and -2**63 <= value < 2**63
    return isinstance(value, (numbers.Real, bytes))


def _plain(value):
    """A str or an integer in place of one of a class of its own."""
    if isinstance(value, str):
        return str.__str__(value)
    return int(value) if isinstance(value, numbers.Integral) and not isinstance(value, bool) else value


def _without_loss(values):
    """The program's values for the library. Those whose types it does not keep are packed into one value of bytes; a
    str is also a value of its own, for programs in C++."""
    others = {name: _plain(value) for name, value in values.items() if not _is_kept(value)}
    return {name: value for name, value in values.items() if _is_kept(value) or isinstance(value, str)} | \
        _packed(_PACKED, others)


def _load_extra_states(model, state, directory):
    packed = state.get(_EXTRA_STATES)
    if packed is not None:
        model.set_extra_states(from_bytes(packed), directory)
    elif model.has_extra_states():
        warnings.warn(f"{directory} has no extra states that this library saved: those of "
                      f"{', '.join(model.extra_states())} stay as they are")


def _taken(handle, model, optimizer, source):
    """The SavedState of a checkpoint that the library has loaded, of which model and optimizer take what torch has.
    source: in messages."""
    state = SavedState(handle)
    model.read_buffers()
    _load_extra_states(model, state, source)
    optimizer.load_state_of_rank(state)
    return state


def _program_values(model, optimizer, state, of_rank):
    """The values of a checkpoint as the library's array: the program's, and those of the package."""
    own, own_of_rank = _packed(_EXTRA_STATES, model.extra_states()), optimizer.state_of_rank()
    state, of_rank = state or {}, of_rank or {}
    for name in [*state, *of_rank]:
        text(name, "the name of a value")
        if name in (_EXTRA_STATES, _PACKED) or name in own_of_rank:
            raise InvalidArgumentError(f"a value of a checkpoint may not be named '{name}', which the "
                                       "package uses")
    return program_values([*((name, value, False) for name, value in (_without_loss(state) | own).items()),
                           *((name, value, True) for name, value in (_without_loss(of_rank) | own_of_rank).items())])


def _to_save(module, optimizer, state, of_rank):
    """The arguments of the library's functions for what a checkpoint holds."""
    model = model_of(module)
    model.write_buffers()
    values = _program_values(model, optimizer, state, of_rank)
    return model.handle, optimizer.handle, values, len(values)


_runtimes = []  # weak references to those of this process, in the order in which they were made


def newest_runtime():
    """The Runtime of this process that was made last; None if there is none."""
    return next((made for each in reversed(_runtimes) if (made := each()) is not None), None)


class Runtime:
    """This process's rank, device and process groups, with the settings that the launcher put into
    the environment; without a launcher, a job of one rank. Collective. Only the thread that made it
    uses it. Raises ConfigError for settings that contradict each other, DisagreementError if they differ
    between ranks.

    Attributes: `rank` and `world_size`, which may be others after `CheckpointSeries.rejoin` (--elastic_replicas);
    `local_rank` (on this machine); `device`, a torch.device; `gradient_accumulation_steps`, the largest number of
    micro-steps per step; `activation_checkpointing`, True if the launcher asks the program to compute forwards again
    in the backward."""

    def __init__(self, _plugin=None):
        """_plugin: fields of Accelerate's FullyShardedDataParallelPlugin as text, by name, which win over
        the launcher's settings, whatever strategy the launcher has been given."""
        self._library = library()
        if _plugin is None:
            self.handle = self._library.make("runtime_from_environment")
        else:
            plugin = self._library.make("fsdp_plugin_create")
            try:
                for field, value in _plugin.items():
                    self._library.fsdp_plugin_set(plugin, field.encode(), value.encode())
                self.handle = self._library.make("runtime_in_mode_with_fsdp", b"none", plugin)
            finally:
                self._library.fsdp_plugin_free(plugin)
        release(self, self._library.runtime_free, self.handle)
        self.local_rank = self._library.runtime_local_rank(self.handle)
        self.gradient_accumulation_steps = \
            self._library.runtime_gradient_accumulation_steps(self.handle)
        self.activation_checkpointing = \
            self._library.runtime_activation_checkpointing(self.handle) == 1
        info = DeviceInfo()
        self._library.runtime_device(self.handle, info)
        self.device = torch.device("cuda", info.index) if info.kind == 1 else torch.device("cpu")
        if self.device.type == "cuda":
            if not torch.cuda.is_available():
                raise InvalidArgumentError(f"the runtime computes on {self.device}, but this torch "
                                           f"({torch.__version__}) has no CUDA")
            torch.cuda.set_device(self.device)
            torch.cuda.set_stream(torch.cuda.ExternalStream(info.stream, device=self.device))
        _runtimes.append(weakref.ref(self, _runtimes.remove))

    rank = property(lambda self: self._library.runtime_rank(self.handle))
    world_size = property(lambda self: self._library.runtime_world_size(self.handle))

    def describe(self):
        """One line for the user: strategy, groups, precision."""
        text = c.create_string_buffer(4096)
        self._library.runtime_describe(self.handle, text, len(text))
        return text.value.decode()

    def mean(self, value):
        """The mean of all ranks' values (a number or a tensor of one element), as a float on every
        rank. Collective."""
        if isinstance(value, torch.Tensor):
            value = value.detach()
        return self._library.read("runtime_mean", c.c_double, self.handle, real(value, "value"))

    def all_gather(self, values):
        """All ranks' lists of numbers, in rank order; they have the same length. Collective."""
        own = (c.c_double * len(values))(*(real(each, "a value") for each in values))
        every = (c.c_double * (len(values) * self.world_size))()
        self._library.runtime_all_gather(self.handle, own, len(values), every)
        return [list(every[rank * len(values):(rank + 1) * len(values)]) for rank in range(self.world_size)]

    def report(self, values):
        """Reports values of this rank to those who watch the job (docs/watching.md): a dict of names
        and numbers, such as {"loss": 2.31, "tokens_per_s": 51200}. Steps, learning rate, gradient norm,
        times and the library's memory are reported without a call. Not collective; waits for nobody."""
        self._library.runtime_report(self.handle, *by_name({name: float(each) for name, each in values.items()}))

    def barrier(self):
        """Returns when all ranks have called it."""
        self._library.runtime_barrier(self.handle)

    def abort(self, reason):
        """Makes every later collective call of all ranks fail with `reason`."""
        reason = str(reason).encode(errors="replace").replace(b"\0", b" ")
        self._library.runtime_abort(self.handle, reason)

    def save(self, directory, module, optimizer, state=None, of_rank=None):
        """Writes a checkpoint folder in Accelerate's layout, in the form of fsdp_state_dict_type. state,
        of_rank: values of the program by name: tensors, numbers, strings, bytes, None, and dicts, lists and
        tuples of them; programs in C++ read int from -2^63 to 2^63 - 1, float, str and bytes; of `state` rank 0's
        are saved, of `of_rank` each rank's. Extra states of modules (get_extra_state) are
        saved as `state` is. The folder is complete or absent. Collective. Raises ConfigError,
        with path and reason, on every rank if it cannot be written."""
        self._library.runtime_save(self.handle, path_of(directory), *_to_save(module, optimizer, state, of_rank))

    def save_async(self, directory, module, optimizer, state=None, of_rank=None, refuse=False):
        """Saves the state of the call beside the training: a thread copies this rank's values to host memory
        and writes them. What a step, or a load, changes and the thread has not copied is copied before; the
        weights under an optimizer of torch, buffers and the program's values before the return. At most one
        save is in flight: a second call waits for it, or with `refuse` saves nothing and returns False, on all
        ranks alike. All ranks call it. A failure to write does not disturb the training: rank 0 logs a warning,
        and `wait_save` raises it. `save`, `load` and the end of the program wait for a save in flight. Raises
        NotSupportedError for FULL_STATE_DICT and zero3_save_16bit_model."""
        saved = c.c_int32()
        self._library.runtime_save_async(self.handle, path_of(directory), *_to_save(module, optimizer, state, of_rank),
                                         int(bool(refuse)), c.byref(saved))
        return saved.value == 1

    @property
    def saving(self):
        """True while this rank's save is in flight. Other ranks may see its end earlier or later."""
        return self._library.read("runtime_saving", c.c_int32, self.handle) == 1

    def wait_save(self):
        """Waits for the save in flight, if there is one. Raises ConfigError with the reason, on every rank,
        if it or an earlier one has failed since the last call."""
        self._library.runtime_wait_save(self.handle)

    def load(self, directory, module, optimizer):
        """Loads a checkpoint that this library, torch, Accelerate or DeepSpeed saved, with any
        strategy and number of ranks. Returns the program's values. Collective. Raises ConfigError
        that names the missing or damaged file or tensor."""
        model = model_of(module)
        model.check_not_gathered("runtime.load")
        model.write_buffers()  # a checkpoint of another program may lack some
        return _taken(self._library.make("runtime_load", self.handle, path_of(directory), model.handle,
                                         optimizer.handle), model, optimizer, directory)


class CheckpointSeries:
    """The checkpoints of one run: folders FOLDER/checkpoint_<n>, of which the newest `total_limit` are
    kept (0: all)."""

    def __init__(self, runtime, folder, total_limit=0):
        self._library = library()
        self._handle = self._library.make("checkpoint_series_create", runtime.handle,
                                          path_of(folder), SeriesConfig(total_limit=total_limit))
        release(self, self._library.checkpoint_series_free, self._handle)
        self._runtime = runtime  # which the handle refers to

    def newest(self):
        """Path of the newest complete checkpoint, the same on every rank; None if there is none.
        Collective."""
        path = c.create_string_buffer(4096)
        try:
            self._library.checkpoint_series_newest(self._handle, path, len(path))
        except NotFoundError:
            return None
        return os.fsdecode(path.value)

    def save(self, module, optimizer, state=None, of_rank=None):
        """Saves the next checkpoint, as Runtime.save, and removes the oldest ones; with the setting
        save_async as Runtime.save_async. Collective."""
        self._library.checkpoint_series_save(self._handle, *_to_save(module, optimizer, state, of_rank))

    def keep_in_memory(self, module, optimizer, state=None, of_rank=None):
        """Begins to copy the state to memory that outlives this process, if the number of steps is a multiple of
        the setting memory_checkpoint_every, or the ranks of an elastic job change now, and the launcher gives such
        memory. Called after each step. Returns True if it has begun; the copy is made beside the training. A failure is
        a warning. All ranks call it. Raises PeerLostError if the ranks of an elastic job (--elastic_replicas) change
        now: `rejoin`."""
        if not self._library.read("checkpoint_series_is_memory_due", c.c_int32, self._handle, optimizer.handle):
            return False
        kept = c.c_int32()
        self._library.checkpoint_series_keep_in_memory(
            self._handle, *_to_save(module, optimizer, state, of_rank), c.byref(kept))
        return kept.value == 1

    def resume(self, module, optimizer):
        """Loads the newest state: that in the memory of the machines, if all of it is whole, whatever
        number of ranks has made it, and if its step is not before that of
        `newest()`; else that checkpoint. Returns the program's values, whose `source` is the path of the
        checkpoint or "memory"; None if there is neither. Collective. Raises what Runtime.load raises."""
        model = model_of(module)
        model.check_not_gathered("series.resume")
        model.write_buffers()
        return self._resumed(self._library.checkpoint_series_resume, model, optimizer)

    def _resumed(self, resume, model, optimizer):
        source, handle = c.create_string_buffer(4096), c.c_void_p()
        found = True
        try:
            resume(self._handle, model.handle, optimizer.handle, c.byref(handle), source, len(source))
        except NotFoundError:
            found = False
        if not found:
            return None
        state = _taken(handle, model, optimizer, os.fsdecode(source.value))
        state.source = os.fsdecode(source.value)
        return state

    def can_rejoin(self, error):
        """True if `error` is that of a call that has lost a rank, such as a PeerLostError, and the launcher replaces
        ranks (--rejoin), so that `rejoin` may go on."""
        return type(error) in ERRORS and self._library.read(
            "checkpoint_series_can_rejoin", c.c_int32, self._handle, ERRORS.index(type(error)) + 1) == 1

    def rejoin(self, module, optimizer):
        """Goes on in this process after an error for which `can_rejoin` is True (docs/checkpoints.md, "Rejoin"): drops
        the forwards and backwards that the error has left, waits until the launcher has replaced the ranks that have
        ended, makes all process groups anew, and loads as `resume` does. Returns the program's values as `resume`
        does. The ranks that are new call `resume`, as their first collective call after they have made their
        optimizer. With --elastic_replicas `Runtime.rank` and `world_size` may be others afterwards. Raises
        NotSupportedError if the launcher replaces no ranks, this job cannot rejoin, or there is no state to go back
        to; AccTimeoutError if none was replaced in time."""
        model = model_of(module)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            raise NotSupportedError("series.rejoin: the process groups of torch.distributed stay without the rank that "
                                    "is lost: use the runtime's collectives alone, or leave --rejoin out")
        model.give_up()
        with model.shared_again():
            return self._resumed(self._library.checkpoint_series_rejoin, model, optimizer)
