# SPDX-License-Identifier: Apache-2.0
"""libacc_runtime through its C interface (acc/runtime.h, acc/runtime_checkpoint.h): the library, its
structs, and an exception for each status."""

import ctypes as c
import numbers
import operator
import os
import pathlib
import sys
import threading


class Error(RuntimeError):
    """A call of the library failed. `status`: name of the status; `rank`: the rank that caused the
    failure, None if unknown."""

    status = "internal"

    def __init__(self, message, rank=None):
        super().__init__(message)
        self.rank = rank


class InvalidArgumentError(Error, ValueError):
    """A call with wrong arguments or in the wrong order: a mistake of the program."""

    status = "invalid_argument"


class ConfigError(Error, ValueError):
    """Settings, files or models that cannot be used."""

    status = "config"


class DisagreementError(ConfigError):
    """Settings, files or models that differ between ranks."""

    status = "disagreement"


class NotSupportedError(ConfigError):
    """What is right in itself, but not built or not possible here."""

    status = "not_supported"


class NotFoundError(Error, LookupError):
    """A value, key or file that does not exist."""

    status = "not_found"


class AccTimeoutError(Error, TimeoutError):
    """Another rank did not answer in time (ACC_COLLECTIVE_TIMEOUT)."""

    status = "timeout"


class AccConnectionError(Error, ConnectionError):
    """The connection to a store or to another machine failed."""

    status = "connection"


class ProtocolError(Error):
    """Another process sent what the protocol does not allow."""

    status = "protocol"


class ProcessError(Error):
    """A process could not be started or watched."""

    status = "process"


class CollectiveError(Error):
    """Another rank failed, left, or called another collective; `rank` names it."""

    status = "collective"


class DeviceError(Error):
    """The device failed, does not exist, or does not support what was asked."""

    status = "device"


class AccMemoryError(Error, MemoryError):
    """Out of memory (OOM), of the host or of the device."""

    status = "out_of_memory"


class PeerLostError(CollectiveError):
    """A rank of the job has ended or given up."""

    status = "peer_lost"


class InternalError(Error):
    """A mistake of acclaunch: please report it."""

    status = "internal"


def memory_checkpoint_every():
    """The setting of this name: steps between snapshots in memory; 0 without them."""
    return int(os.environ.get("ACC_MEMORY_CHECKPOINT_EVERY") or 0)


def say(line):
    """Writes a line for the user."""
    print(f"acclaunch: {line}", file=sys.stderr, flush=True)


def lacks(owner, effect, *names):
    """True if a module or a class of another package lacks one of these names; rank 0 then says the effect."""
    missing = [name for name in names if not hasattr(owner, name)]
    if missing and os.environ.get("RANK", "0") == "0":
        say(f"engine acc: {owner.__name__} has no {missing[0]} in this version: {effect}")
    return bool(missing)


def refuse(what, theirs="torch"):
    """Refuses what --engine acc does not serve. theirs: whose engine does."""
    raise NotSupportedError(f"{what}: the engine acc does not serve it (docs/engine.md); leave --engine acc out to run "
                            f"the program on {theirs}'s engine")


# By acc_status, from 1.
ERRORS = (InvalidArgumentError, ConfigError, NotFoundError, AccTimeoutError, AccConnectionError,
          ProtocolError, ProcessError, CollectiveError, DeviceError, AccMemoryError, InternalError,
          DisagreementError, NotSupportedError, PeerLostError)


# ---- values that pass the border. ctypes cuts integers to their width and strings at a NUL, without a word.

_INTEGERS = (c.c_int32, c.c_int64, c.c_uint64, c.c_size_t)


def integer(value, type_, what):
    """An integer of a type of ctypes. Raises InvalidArgumentError with `what` for anything else."""
    try:
        found = operator.index(value)
    except TypeError:
        raise InvalidArgumentError(f"{what} must be an integer, got {value!r}") from None
    if type_(found).value != found:
        bits, signed = 8 * c.sizeof(type_), type_(-1).value < 0
        raise InvalidArgumentError(
            f"{what} is {found}, expected an integer from "
            + (f"-2^{bits - 1} to 2^{bits - 1} - 1" if signed else f"0 to 2^{bits} - 1"))
    return found


def real(value, what):
    """A number as a float. Raises InvalidArgumentError with `what` for an integer that it cannot hold."""
    try:
        found = float(value)
    except OverflowError:
        found = None
    if isinstance(value, numbers.Real) and found != value and value == value:
        raise InvalidArgumentError(f"{what} is {value!r}, which a float of 64 bits cannot hold")
    return found


def text(value, what):
    """A str as UTF-8. Raises InvalidArgumentError with `what` for anything else."""
    if not isinstance(value, str):
        raise InvalidArgumentError(f"{what} must be a str, got {value!r}")
    try:
        return _without_nul(value.encode(), what)
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"{what} {value!r} cannot be written as UTF-8") from None


def by_name(values):
    """Arguments of the library for numbers by name."""
    return (c.c_char_p * len(values))(*(text(name, "the name of a value") for name in values)), \
        (c.c_double * len(values))(*(real(value, name) for name, value in values.items())), len(values)


def path_of(value):
    """A path as the bytes that the file system has."""
    return _without_nul(os.fsencode(value), "path")


def _without_nul(value, what):
    if value is not None and b"\0" in value:
        raise InvalidArgumentError(f"{what} {value.decode(errors='replace')!r} contains a NUL character")
    return value


def _checked(value, type_, what):
    if type_ in _INTEGERS and not isinstance(value, type_):
        return integer(value, type_, what)
    return _without_nul(value, what) if type_ is c.c_char_p and not isinstance(value, type_) else value


def sized(name, *fields):
    """A struct of the C interface that begins with its size."""
    types = dict(fields)

    def initialize(self, **values):
        c.Structure.__init__(self, size=c.sizeof(type(self)), **values)

    def assign(self, field, value):
        c.Structure.__setattr__(self, field, _checked(value, types.get(field), field))

    return type(name, (c.Structure,), {"_fields_": [("size", c.c_size_t), *fields],
                                       "__init__": initialize, "__setattr__": assign})


FillFunction = c.CFUNCTYPE(None, c.c_uint64, c.c_int64, c.c_void_p, c.c_size_t, c.c_void_p)
LrFunction = c.CFUNCTYPE(c.c_double, c.c_int64, c.c_double, c.c_void_p)
Strings = c.POINTER(c.c_char_p)

DeviceInfo = sized("DeviceInfo", ("kind", c.c_int32), ("index", c.c_int32), ("stream", c.c_void_p))
ModelConfig = sized("ModelConfig", ("seed", c.c_uint64), ("dtype", c.c_int32),
                    ("bfloat16_on_cpu", c.c_int32), ("unused_units", c.c_int32),
                    ("float16_on_cpu", c.c_int32), ("units_as_declared", c.c_int32),
                    ("float32_buffers", c.c_int32), ("autograd", c.c_int32),
                    ("by_rows", c.c_int32))
Module = sized("Module", ("name", c.c_char_p), ("class_name", c.c_char_p), ("parameters", Strings),
               ("numels", c.POINTER(c.c_int64)), ("num_parameters", c.c_size_t),
               ("is_candidate", c.c_int32))
ParameterConfig = sized("ParameterConfig", ("trainable", c.c_int32), ("weight_decay", c.c_int32),
                        ("initializer", c.c_int32), ("a", c.c_float), ("b", c.c_float),
                        ("fill", FillFunction), ("context", c.c_void_p),
                        ("buffer_dtype", c.c_int32), ("own_dtypes", c.c_int32),
                        ("stored_dtype", c.c_int32), ("computed_dtype", c.c_int32),
                        ("reduced_dtype", c.c_int32))
INITIALIZER_CONSTANT, INITIALIZER_CUSTOM, INITIALIZER_PURE_ONCE = 0, 3, 5
MemoryReport = sized("MemoryReport", *((name, c.c_int64) for name in (
    "parameter_bytes", "gradient_bytes", "optimizer_bytes", "gathered_bytes",
    "gradient_buffer_bytes", "device_bytes", "device_peak_bytes", "pinned_bytes", "buffer_bytes",
    "snapshot_bytes", "nvme_bytes", "nvme_buffer_bytes")))
TrafficReport = sized("TrafficReport", *((name, c.c_int64) for name in (
    "gathered_elements", "gathered_elements_moved", "gather_calls", "reduced_elements",
    "reduce_calls", "all_reduced_elements", "all_reduce_calls", "secondary_elements",
    "gathered_bytes_sent", "reduced_bytes_sent")))
ParameterGroup = sized("ParameterGroup", ("name", c.c_char_p), ("parameters", Strings),
                       ("num_parameters", c.c_size_t), ("lr", c.c_double),
                       ("weight_decay", c.c_double), ("element_wise", c.c_int32))
ParameterShard = sized("ParameterShard", ("name", c.c_char_p), ("offset", c.c_int64),
                       ("numel", c.c_int64), ("weight_decay", c.c_int32), ("dtype", c.c_int32),
                       ("in_host_memory", c.c_int32), ("weights", c.c_void_p),
                       ("gradient", c.c_void_p), ("gives_gradient", c.c_int32), ("states", c.POINTER(c.c_void_p)),
                       ("num_states", c.c_size_t))
ShardsFunction = c.CFUNCTYPE(c.c_int, c.POINTER(ParameterShard), c.c_size_t, c.c_void_p)
OwnedMatrix = sized("OwnedMatrix", ("name", c.c_char_p), ("rows", c.c_int64), ("columns", c.c_int64),
                    ("step", c.c_int64), ("lr", c.c_double), ("weight_decay", c.c_double), ("values", c.c_void_p),
                    ("states", c.POINTER(c.c_void_p)), ("num_states", c.c_size_t))
MatrixFunction = c.CFUNCTYPE(c.c_int, c.POINTER(OwnedMatrix), c.c_void_p)
StepInfo = sized("StepInfo", ("step", c.c_int64), ("grad_norm", c.c_double),
                 ("clip_coefficient", c.c_double), ("lr", c.c_double), ("loss_scale", c.c_double),
                 ("skipped", c.c_int32), ("skipped_steps", c.c_int64), ("tiles", c.c_int64))
LrScheduleConfig = sized("LrScheduleConfig", ("kind", c.c_int32), ("linear_warmup", c.c_int32),
                         ("warmup_steps", c.c_int64), ("total_steps", c.c_int64),
                         ("cycles", c.c_double), ("min_lr", c.c_double), ("max_lr", c.c_double),
                         ("warmup_min_ratio", c.c_double), ("cos_min_ratio", c.c_double),
                         ("function", LrFunction), ("context", c.c_void_p))
ExportConfig = sized("ExportConfig", ("dtype", c.c_int32), ("max_shard_nbytes", c.c_uint64))
StateDictConfig = sized("StateDictConfig", ("rank0_only", c.c_int32), ("offload_to_cpu", c.c_int32))
FullTensor = sized("FullTensor", ("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)),
                   ("num_dims", c.c_size_t), ("dtype", c.c_int32), ("data", c.c_void_p))
VisitFunction = c.CFUNCTYPE(None, c.POINTER(FullTensor), c.c_void_p)
ProgramValue = sized("ProgramValue", ("name", c.c_char_p), ("kind", c.c_int32),
                     ("of_rank", c.c_int32), ("integer", c.c_int64), ("real", c.c_double),
                     ("bytes", c.c_void_p), ("num_bytes", c.c_size_t))


def program_values(items):
    """An array of ProgramValue, of (name, value, True for that of a rank). Raises InvalidArgumentError with its name
    for a value that no checkpoint holds."""
    values = (ProgramValue * len(items))()
    values.kept = []  # bytes that live as long as the array
    for made, (name, value, of_rank) in zip(values, items):
        made.__init__(name=text(name, "the name of a value"), of_rank=of_rank)
        what = f"value '{name}' of a checkpoint"
        if isinstance(value, numbers.Integral):
            made.kind, made.integer = 0, integer(value, c.c_int64, what)
        elif isinstance(value, numbers.Real):
            made.kind, made.real = 1, real(value, what)
        elif isinstance(value, (bytes, str)):
            data = value
            if isinstance(value, str):
                try:
                    data = value.encode()
                except UnicodeEncodeError:
                    raise InvalidArgumentError(f"{what} is {value!r}, which cannot be written as UTF-8: "
                                               "save bytes") from None
            made.kind, made.num_bytes = 2, len(data)
            made.bytes = c.cast(c.c_char_p(data), c.c_void_p)
            values.kept.append(data)
        else:
            raise InvalidArgumentError(f"{what} must be an int, a float, a str or bytes, got "
                                       f"{type(value).__name__}")
    return values


SeriesConfig = sized("SeriesConfig", ("total_limit", c.c_int32))


class Handle(c.Structure):
    """acc_parameter and acc_buffer."""
    _fields_ = [("index", c.c_int32), ("unit", c.c_int32)]


_POINTER, _POINTERS, _TEXT, _INT, _SIZE = c.c_void_p, c.POINTER(c.c_void_p), c.c_char_p, c.c_int, \
    c.c_size_t
_INTS, _DOUBLES, _SIZES = c.POINTER(c.c_int), c.POINTER(c.c_double), c.POINTER(c.c_int64)
_DECLARED = (_POINTER, _TEXT, _SIZES, _SIZE, c.POINTER(ParameterConfig), c.POINTER(Handle))

# Functions that return a status, with the types of their arguments.
_CALLS = {
    "acc_runtime_from_environment": (_POINTERS,),
    "acc_fsdp_plugin_create": (_POINTERS,),
    "acc_fsdp_plugin_set": (_POINTER, _TEXT, _TEXT),
    "acc_runtime_in_mode_with_fsdp": (_TEXT, _POINTER, _POINTERS),
    "acc_runtime_device": (_POINTER, c.POINTER(DeviceInfo)),
    "acc_runtime_describe": (_POINTER, c.c_void_p, _SIZE),
    "acc_runtime_mean": (_POINTER, c.c_double, _DOUBLES),
    "acc_runtime_all_gather": (_POINTER, _DOUBLES, _SIZE, _DOUBLES),
    "acc_runtime_report": (_POINTER, c.POINTER(_TEXT), _DOUBLES, _SIZE),
    "acc_runtime_barrier": (_POINTER,),
    "acc_runtime_abort": (_POINTER, _TEXT),
    "acc_runtime_wrap": (_POINTER, c.POINTER(Module), _SIZE, c.POINTER(c.c_int32)),
    "acc_model_create_with": (_POINTER, c.POINTER(ModelConfig), _POINTERS),
    "acc_model_root": (_POINTER, _TEXT, _TEXT, _POINTERS),
    "acc_model_unit": (_POINTER, _TEXT, _TEXT, _POINTERS),
    "acc_model_compute_dtype": (_POINTER, _INTS),
    "acc_model_memory": (_POINTER, c.POINTER(MemoryReport)),
    "acc_model_traffic": (_POINTER, c.POINTER(TrafficReport)),
    "acc_model_zero_grad": (_POINTER,),
    "acc_unit_parameter": _DECLARED,
    "acc_unit_tie": (_POINTER, _TEXT, Handle),
    "acc_unit_buffer": _DECLARED,
    "acc_unit_tie_buffer": (_POINTER, _TEXT, Handle),
    "acc_model_share": (_POINTER, _TEXT, _POINTER, _SIZE),
    "acc_unit_buffer_data": (_POINTER, Handle, _POINTERS),
    "acc_unit_keeps_addresses": (_POINTER, _INTS),
    "acc_unit_set_requires_grad": (_POINTER, Handle, _INT),
    "acc_unit_hold_gradients": (_POINTER, _INT),
    "acc_forward_begin": (_POINTER, _POINTERS),
    "acc_recompute_begin": (_POINTER, _POINTERS),
    "acc_forward_raw": (_POINTER, Handle, _POINTERS),
    "acc_forward_end": (_POINTER,),
    "acc_backward_begin": (_POINTER, _POINTERS),
    "acc_backward_raw": (_POINTER, Handle, _POINTERS),
    "acc_backward_raw_grad": (_POINTER, Handle, _POINTERS, c.POINTER(c.c_float)),
    "acc_backward_end": (_POINTER,),
    "acc_no_grad_begin": (_POINTER, _POINTERS),
    "acc_no_sync_begin": (_POINTER, _POINTERS),
    "acc_optimizer_named": (_POINTER, _TEXT, Strings, c.POINTER(c.c_double), _SIZE,
                            c.POINTER(ParameterGroup), _SIZE, _POINTERS),
    "acc_optimizer_from_settings": (_POINTER, _POINTERS),
    "acc_optimizer_program_states": (_POINTER, ShardsFunction, c.c_void_p, Strings, _SIZE, _POINTERS),
    "acc_optimizer_matrices": (_POINTER, MatrixFunction, c.c_void_p, Strings, _INTS, _SIZE, _TEXT, Strings, _DOUBLES,
                               _SIZE, c.POINTER(ParameterGroup), _SIZE, _POINTERS),
    "acc_optimizer_set_rule_settings": (_POINTER, _TEXT),
    "acc_optimizer_shards": (_POINTER, ShardsFunction, c.c_void_p),
    "acc_model_shards": (_POINTER, ShardsFunction, c.c_void_p),
    "acc_model_take_gradients": (_POINTER, ShardsFunction, c.c_void_p, _POINTERS),
    "acc_model_publish": (_POINTER,),
    "acc_optimizer_step": (_POINTER, c.POINTER(StepInfo)),
    "acc_optimizer_loss_scale": (_POINTER, _DOUBLES),
    "acc_optimizer_steps": (_POINTER, _SIZES),
    "acc_optimizer_set_lr": (_POINTER, c.c_double),
    "acc_optimizer_lr": (_POINTER, _DOUBLES),
    "acc_optimizer_set_group_lr": (_POINTER, _TEXT, c.c_double),
    "acc_optimizer_group_lr": (_POINTER, _TEXT, _DOUBLES),
    "acc_optimizer_set_schedule": (_POINTER, c.POINTER(LrScheduleConfig)),
    "acc_optimizer_set_named_schedule": (_POINTER, _TEXT, Strings, _DOUBLES, _SIZE),
    "acc_optimizer_set_clip_norm": (_POINTER, c.c_double),
    "acc_optimizer_clip_norm": (_POINTER, _DOUBLES),
    "acc_optimizer_set_clip_value": (_POINTER, c.c_double),
    "acc_optimizer_clip_value": (_POINTER, _DOUBLES),
    "acc_model_load_weights": (_POINTER, _TEXT),
    "acc_model_export_weights": (_POINTER, _TEXT, c.POINTER(ExportConfig)),
    "acc_model_state_dict": (_POINTER, c.POINTER(StateDictConfig), VisitFunction, c.c_void_p),
    "acc_runtime_save": (_POINTER, _TEXT, _POINTER, _POINTER, c.POINTER(ProgramValue), _SIZE),
    "acc_runtime_save_async": (_POINTER, _TEXT, _POINTER, _POINTER, c.POINTER(ProgramValue), _SIZE, c.c_int32,
                               c.POINTER(c.c_int32)),
    "acc_runtime_saving": (_POINTER, c.POINTER(c.c_int32)),
    "acc_runtime_wait_save": (_POINTER,),
    "acc_runtime_load": (_POINTER, _TEXT, _POINTER, _POINTER, _POINTERS),
    "acc_checkpoint_series_create": (_POINTER, _TEXT, c.POINTER(SeriesConfig), _POINTERS),
    "acc_checkpoint_series_newest": (_POINTER, c.c_void_p, _SIZE),
    "acc_checkpoint_series_save": (_POINTER, _POINTER, _POINTER, c.POINTER(ProgramValue), _SIZE),
    "acc_checkpoint_series_is_memory_due": (_POINTER, _POINTER, c.POINTER(c.c_int32)),
    "acc_checkpoint_series_keep_in_memory": (_POINTER, _POINTER, _POINTER, c.POINTER(ProgramValue), _SIZE,
                                             c.POINTER(c.c_int32)),
    "acc_checkpoint_series_resume": (_POINTER, _POINTER, _POINTER, _POINTERS, c.c_void_p, _SIZE),
    "acc_checkpoint_series_rejoin": (_POINTER, _POINTER, _POINTER, _POINTERS, c.c_void_p, _SIZE),
    "acc_checkpoint_series_can_rejoin": (_POINTER, _INT, c.POINTER(c.c_int32)),
    "acc_program_state_get": (_POINTER, _TEXT, c.POINTER(ProgramValue)),
    "acc_program_state_get_of_rank": (_POINTER, _TEXT, c.POINTER(ProgramValue)),
}
# Functions that cannot fail: the type of the result, then of the arguments.
_OTHERS = {
    "acc_last_error": (_TEXT,),
    "acc_callback_returns": (None, _TEXT, c.c_double),
    "acc_callback_context": (_POINTER,),
    "acc_last_error_rank": (_INT,),
    "acc_runtime_rank": (_INT, _POINTER),
    "acc_runtime_local_rank": (_INT, _POINTER),
    "acc_runtime_world_size": (_INT, _POINTER),
    "acc_runtime_gradient_accumulation_steps": (_INT, _POINTER),
    "acc_runtime_activation_checkpointing": (_INT, _POINTER),
    **{name: (None, _POINTER) for name in (
        "acc_fsdp_plugin_free", "acc_runtime_free", "acc_model_free", "acc_optimizer_free", "acc_no_grad_end",
        "acc_no_sync_end", "acc_gradients_free", "acc_program_state_free", "acc_checkpoint_series_free")},
}


def find():
    """Path of the library: ACC_RUNTIME_LIBRARY; else in the build folder or the installed prefix that
    this package belongs to."""
    named = os.environ.get("ACC_RUNTIME_LIBRARY")
    if named:
        return named
    here = pathlib.Path(__file__).absolute()
    folders = [here.parents[2] / "lib"]  # build/release/python/acclaunch
    if len(here.parents) > 4:  # PREFIX/share/acclaunch/python/acclaunch, PREFIX/lib/python3.N/site-packages/acclaunch
        folders += [here.parents[4] / name for name in ("lib", "lib64")]
        folders += sorted(here.parents[4].glob("lib/*-linux-gnu"))
    for folder in folders:
        if (folder / "libacc_runtime.so.0").exists():
            return str(folder / "libacc_runtime.so.0")
    raise ImportError("libacc_runtime.so.0 was not found in " + ", ".join(map(str, folders)) +
                      ": set ACC_RUNTIME_LIBRARY to its path")


def _refuse_second(path):
    """A process has one copy of the library: two would not know of each other's groups."""
    wanted = os.path.realpath(path)
    with open("/proc/self/maps") as maps:
        for line in maps:
            loaded = line.rstrip("\n").partition("/")[2]
            if loaded.split("/")[-1].startswith("libacc_runtime.so") and "/" + loaded != wanted:
                raise ImportError(f"two versions of libacc_runtime in one process: /{loaded} is "
                                  f"loaded, and acclaunch would load {wanted}; set "
                                  "ACC_RUNTIME_LIBRARY to the first, or do not load it")


def _with_checks(name, function, types):
    """The function, with a check of the integers and strings among its arguments."""
    places = [(place, type_) for place, type_ in enumerate(types)
              if type_ in _INTEGERS or type_ is c.c_char_p]
    if not places:
        return function

    def call(*arguments):
        arguments = list(arguments)
        for place, type_ in places:
            arguments[place] = _checked(arguments[place], type_, f"{name}: argument {place + 1}")
        return function(*arguments)

    return call


# ---- functions of the program that the library calls

_raised = threading.local()  # errors: exceptions of the functions that the running call has called


def callback(type_, function):
    """A function of the C interface (type_) that calls `function`. An exception of it fails the call of the
    library that called it, on all ranks, and that call raises it (Library._check). Owns `function`."""
    returns = library().callback_returns
    has_value = type_._restype_ is c.c_double

    def run(*arguments):
        # ctypes drops an exception, also one of a signal's handler, and leaves the result undefined. So
        # the library takes the result from callback_returns alone.
        try:
            value = function(*arguments)
            returns(None, value if has_value else 0.0)
        except BaseException as error:
            vars(_raised).setdefault("errors", []).append(error)
            said = f"{type(error).__name__}: {error}"
            returns(said.encode(errors="replace").replace(b"\0", b" "), 0.0)
        return type_._restype_ and type_._restype_().value

    return type_(run)


class Library:
    """The functions of the library as methods without the prefix acc_. Those that return a status
    raise an Error instead."""

    def __init__(self):
        self.path = find()
        _refuse_second(self.path)
        self._functions = c.CDLL(self.path)
        self.declare(_CALLS, _OTHERS)
        self.callback_context = self._functions.acc_callback_context()

    def declare(self, calls, others):
        """Adds functions: `calls` return a status, {name: types of the arguments}; `others` cannot
        fail, {name: (type of the result, types of the arguments…)}. Raises ImportError if the library
        lacks one."""
        returning_status = {name: (_INT, *arguments) for name, arguments in calls.items()}
        for name, (result, *arguments) in {**returning_status, **others}.items():
            try:
                function = getattr(self._functions, name)
            except AttributeError:
                raise ImportError(f"{self.path} has no {name}: it is older than this package") from None
            function.restype, function.argtypes = result, arguments
            if name in calls:
                function.errcheck = self._check
            setattr(self, name[4:], _with_checks(name, function, arguments))

    def _check(self, status, function, arguments):
        if _raised.__dict__:
            raise _raised.__dict__.pop("errors")[0]
        if status:
            rank = self.last_error_rank()
            message = self.last_error().decode(errors="replace")
            kind = ERRORS[status - 1] if status <= len(ERRORS) else InternalError
            raise kind(message, rank if rank >= 0 else None)

    def make(self, name, *arguments):
        """Calls a function and returns the pointer in its last, output argument."""
        made = c.c_void_p()
        getattr(self, name)(*arguments, c.byref(made))
        return made

    def read(self, name, type_, *arguments):
        """The same for a number."""
        found = type_()
        getattr(self, name)(*arguments, c.byref(found))
        return found.value


_loaded = None


def library():
    global _loaded
    if _loaded is None:
        _loaded = Library()
    return _loaded
