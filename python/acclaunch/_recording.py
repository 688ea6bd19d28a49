# SPDX-License-Identifier: Apache-2.0
"""The recording of a training, for `acclaunch compare` (docs/formats/recording.md): the lines that a rank writes of its
modules, backwards, gradient clipping and optimizers."""

import collections
import contextlib
import functools
import importlib.metadata
import json
import math
import multiprocessing
import os
import random
import sys
import threading
import time
import weakref

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack
from torch.utils._pytree import tree_flatten_with_path, tree_leaves

from acclaunch import _recorded_values as values_of
from acclaunch._recorded_parameters import Names, local_of, unwrapped, walk, wrapper_of

_FRAMEWORKS = ("torch", "accelerate", "deepspeed", "transformers", "acclaunch")


def _name_of(dtype):
    return str(dtype).removeprefix("torch.")


def in_backward():
    return torch._C._current_graph_task_id() != -1


def _is_fake():
    """True if tensors have no values now."""
    return any(type(mode).__name__ == "FakeTensorMode" for mode in _get_current_dispatch_mode_stack())


def _is_seen(value):
    """True for a tensor whose numbers are recorded: with values, floating-point or complex, of no subclass."""
    return type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type != "meta" and value.numel() > 0 \
        and (value.is_floating_point() or value.is_complex()) and value.layout is torch.strided


def _rounded(value):
    """As it is written to a file."""
    if isinstance(value, list):
        return [_rounded(each) for each in value]
    if isinstance(value, float):
        return float(f"{value:.9g}") if math.isfinite(value) else str(value)
    return value


def _plain(value):
    """A setting of an optimizer, for a file."""
    if isinstance(value, torch.Tensor):
        return _plain(value.item()) if value.numel() == 1 else None
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (bool, int, str)) or value is None else None


class _Call:
    """A forward of an outermost module."""

    def __init__(self, is_kept):
        self.is_kept = is_kept  # false: only if a backward follows


_MOST_LINES = 50_000  # that are held without a step


class _File:
    """Lines whose numbers are read at the end of a step: on a GPU each reading waits for the device."""

    def __init__(self, folder):
        self.folder, self.file, self.lines = folder, None, []
        self.batches = []  # lines with sums over batches, which have no sketch yet

    def write(self, line, call=None):
        self.lines.append((line, call))
        if "sums" in line:
            self.batches.append(line)

    def sketch(self):
        """Replaces sums over batches by their sketches, of vectors of one length at once."""
        alike = {}
        for line in self.batches:
            sums = line["sums"]
            alike.setdefault((sums.device, sums.dtype, sums.numel()), []).append(line)
        self.batches = []
        for (device, _, _), found in alike.items():
            with values_of.plainly(device):
                numbers = values_of.of_sums(*([line.pop(key) for line in found] for key in ("squares", "sums")))
                for line, each in zip(found, numbers):
                    line["numbers"] = each

    def read(self):
        """Returns the lines so far, with numbers in place of tensors."""
        self.sketch()
        lines, self.lines = [line for line, call in self.lines if call is None or call.is_kept], []
        alike = {}
        for line in lines:
            for key, value in line.items():
                if isinstance(value, torch.Tensor):
                    alike.setdefault((value.device, value.dtype, value.shape), []).append((line, key))
        with values_of.plainly(torch.device("cpu")):
            for places in alike.values():
                read = torch.stack([line[key] for line, key in places]).tolist()
                for (line, key), value in zip(places, read):
                    line[key] = _rounded(value)
        for line in lines:
            if "numbers" in line:
                line["squares"], *line["sketch"] = line.pop("numbers")
        return lines

    def put(self, lines):
        if self.file is None:
            os.makedirs(self.folder, exist_ok=True)
            self.file = open(os.path.join(self.folder, f"rank_{_rank()}.jsonl"), "w", encoding="utf-8")
        self.file.write("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
        self.file.flush()


def _rank():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank()
    return int(os.environ.get("RANK") or 0)


def _world_size():
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_world_size()
    return int(os.environ.get("WORLD_SIZE") or 1)


def _versions():
    found = {}
    for name in _FRAMEWORKS:
        if name == "acclaunch" or name in sys.modules:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                found[name] = importlib.metadata.version(name)
    return found


optimizers = weakref.WeakSet()  # that the program has made


class Recorder:
    def __init__(self, folder, steps, random_mode):
        self.file = _File(folder)
        self.steps, self.random_mode = steps, random_mode
        self.process = os.getpid()
        self.step = self.micro_step = 0
        self.names = Names()
        self.local = threading.local()
        self.last_output = None, None, None  # a weak reference, the version and the numbers
        self.stepping = 0  # calls of step() that are not finished
        self.updating = None  # the outermost optimizer whose step() runs
        self.stepped, self.stepped_before = set(), set()  # optimizers in this step, and in the one before
        self.skipped = True  # no optimizer has updated parameters in this step
        self.scale = None  # of a gradient scaler
        self.is_clipping = False
        self.groups = {}  # lines of this step, by optimizer and group
        self.numbers_of_groups = {}  # by optimizer and group
        self.names_of_groups = {}  # the last ones written, by class and number
        self.has_weights = set()  # parts of parameters of which a line was written
        self.last_numbers = {}  # of parameters and buffers
        self.random_modules = {}  # what the line `model` has of a module, by its name
        self.random_state = None
        self.changed = set()  # names of parameters in this step
        self.runtime_records = False  # the runtime's own optimizers: it writes their lines
        self.is_over = False

    # ---- lines

    def is_on(self):
        return not self.is_over and os.getpid() == self.process

    def write(self, kind, call=None, **keys):
        if not self.file.lines and self.file.file is None:
            self.file.write({
                "kind": "program", "version": 1, "rank": _rank(), "world_size": _world_size(),
                "engine": os.environ.get("ACC_ENGINE") or "torch", "framework": _versions(), "arguments": sys.argv,
                "steps": self.steps, "random": self.random_mode})
        self.file.write({"kind": kind, "step": self.step, **keys}, call)

    def write_batch(self, phase, name, value, call):
        with values_of.plainly(value.device):
            squares, sums = values_of.of_batch(values_of.real(value))
        self.write("tensor", call, micro_step=self.micro_step, phase=phase, name=name, dtype=_name_of(value.dtype),
                   count=value.numel(), squares=squares, sums=sums)

    # ---- forward

    def begin(self, module, arguments, keywords):
        """Before a forward outside of all others; returns None if it is not recorded."""
        if not torch.is_grad_enabled() or not self.is_on() or torch.jit.is_tracing() \
                or torch._C._functorch.maybe_current_level() is not None or _is_fake() \
                or (torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()) \
                or next(module.parameters(), None) is None:
            return None
        if self.stepped and not self.stepping:
            self.close_step()
        prefix, is_new = self.names.learn(module)
        call = _Call(module.training)
        if is_new:
            self.describe(prefix, module)
            if self.updating is not None:
                self.before_update(self.updating)
        if self.random_mode == "equal":
            seed((self.step << 20) + (self.micro_step << 10) + _rank() + 1)
        self.record_data(prefix, arguments, keywords, call)
        for name, buffer in _buffers_of(module, prefix):
            if _is_seen(buffer):
                with values_of.plainly(buffer.device):
                    numbers = values_of.of_part(values_of.real(buffer.detach()).reshape(-1), 0)
                self.write("tensor", call, micro_step=self.micro_step, phase="buffer", name=name,
                           dtype=_name_of(buffer.dtype), count=buffer.numel(), numbers=numbers)
        return call

    def describe(self, prefix, root):
        parameters = []
        for name, shape, parameter, same_as in self.names.entries(root, prefix):
            line = {"name": name, "shape": list(shape), "dtype": _name_of(parameter.dtype),
                    "trained": parameter.requires_grad}
            parameters.append(line | ({"same_as": same_as} if same_as else {}))
        modules = []
        for name, module in walk(root, prefix):
            modules.append({"name": name, "class": type(module).__name__})
            rate = _rate_of(module)
            if rate:
                modules[-1]["rate"] = rate
            if self.random_mode == "off" and isinstance(module, torch.nn.RNNBase):
                module.dropout = 0.0
        self.random_modules.update((each["name"], each) for each in modules)
        self.write("model", name=prefix, wrapper=wrapper_of(root), parameters=parameters,
                   buffers=[{"name": name, "shape": list(buffer.shape), "dtype": _name_of(buffer.dtype)}
                            for name, buffer in _buffers_of(root, prefix)], modules=modules)

    def record_data(self, prefix, arguments, keywords, call):
        leaves, _ = tree_flatten_with_path((arguments, keywords))
        for (_, *path), value in leaves:
            if type(value) is not torch.Tensor or value.grad_fn is not None or not value.numel() or value.is_meta:
                continue
            name = ".".join([prefix] * bool(prefix) + [str(getattr(key, "key", getattr(key, "idx", key)))
                                                       for key in path])
            with values_of.plainly(value.device):
                exact = values_of.exact_of(value)
                numbers = dict(zip(("squares", "sums"), values_of.of_batch(values_of.real(value)))) \
                    if _is_seen(value) else {}
            mode = {} if call.is_kept else {"training": False}
            self.write("data", call, micro_step=self.micro_step, name=name, dtype=_name_of(value.dtype),
                       shape=list(value.shape), exact=exact, **numbers, **mode)

    def record_output(self, module, output, call, writes=True):
        name = self.names.modules.get(module)
        if name is None:
            return
        for number, each in enumerate(tree_leaves(output)):
            if _is_seen(each):
                label = f"{name}[{number}]" if number else name
                if writes:
                    self.write_output(label, each, call)
                if each.requires_grad and each.grad_fn is not None:
                    each.register_hook(functools.partial(self.on_gradient, label, call))

    def forward(self, module, run):
        """Finds the modules that use random numbers, in the first step."""
        if self.step > 0:
            return run()
        above = self.local.__dict__.setdefault("modules", [])
        self.note_random(above[-1] if above else None)
        above.append(module)
        try:
            return run()
        finally:
            self.note_random(above.pop())

    def note_random(self, module):
        with values_of.plainly(torch.device("cpu")):
            state = torch.get_rng_state()
            if torch.cuda.is_initialized():
                state = torch.cat((state, torch.cuda.get_rng_state()))
            if module is not None and self.random_state is not None and not torch.equal(state, self.random_state):
                line = self.random_modules.get(self.names.modules.get(unwrapped(module)), {})
                line.setdefault("rate", None)
            self.random_state = state

    def write_output(self, label, value, call):
        known, version, numbers = self.last_output
        if known is None or known() is not value or version != value._version:
            with values_of.plainly(value.device):
                numbers = values_of.of_batch(values_of.real(value))
            self.last_output = weakref.ref(value), value._version, numbers
        self.write("tensor", call, micro_step=self.micro_step, phase="forward", name=label,
                   dtype=_name_of(value.dtype), count=value.numel(), squares=numbers[0], sums=numbers[1])

    def on_gradient(self, label, call, gradient):
        if self.is_on() and _is_seen(gradient):
            if call is not None:
                call.is_kept = True
            self.write_batch("backward", label, gradient, call)

    # ---- backward

    def on_backward(self, tensors):
        values = [each.detach() for each in tensors if _is_seen(each) or hasattr(each, "placements")]
        if values:
            with torch.no_grad():
                total = sum(local_of(each.float().sum()) for each in values)
            self.write("loss", micro_step=self.micro_step, value=total, dtype=_name_of(values[0].dtype),
                       scale=1.0 if self.scale is None else self.scale)

    def after_backward(self):
        self.micro_step += 1
        self.file.sketch()
        if len(self.file.lines) > _MOST_LINES:
            self.file.put(self.read())

    # ---- clipping

    def on_clip(self, function, limit, norm, norm_type):
        if not self.is_on() or self.is_clipping:
            return
        if isinstance(norm, torch.Tensor):
            norm = (norm.full_tensor() if hasattr(norm, "full_tensor") else norm).detach().float().reshape(())
            norm = norm.clone()
        elif norm is not None:
            norm = _plain(float(norm))
        self.write("clip", function=function, limit=_plain(float(limit)), norm=norm,
                   norm_type=None if norm_type is None else _plain(float(norm_type)))

    # ---- steps of optimizers

    @contextlib.contextmanager
    def steps_of(self, owner):
        """A step of an optimizer, or of what wraps one, and counts it once. Those before the first forward prepare the
        state of an optimizer."""
        if not self.is_on():
            yield
            return
        if not self.stepping and owner in self.stepped:
            self.close_step()
        self.stepping += 1
        try:
            yield
        finally:
            self.stepping -= 1
        if not self.stepping and self.names.roots:
            self.stepped.add(owner)
            if len(optimizers) == 1 or (self.stepped_before and self.stepped_before <= self.stepped):
                self.close_step()

    @contextlib.contextmanager
    def updates_of(self, optimizer, has_closure):
        if not self.is_on() or self.updating is not None:  # a wrapper's step records
            yield
            return
        with self.steps_of(id(optimizer)):
            if self.names.roots:
                self.before_update(optimizer)
                if not has_closure:
                    self.record_parameters(optimizer, "gradient")
            self.updating = optimizer
            try:
                yield
            finally:
                self.updating = None
            if self.names.roots:
                if has_closure:
                    self.record_parameters(optimizer, "gradient")
                self.record_parameters(optimizer, "updated")
                found = getattr(optimizer, "found_inf", None)
                self.skipped = found.detach().clone().reshape(()) if isinstance(found, torch.Tensor) else False

    def before_update(self, optimizer):
        for group in optimizer.param_groups:
            if not group["params"]:
                continue
            self.write_group(optimizer, group, self.names_in(group))
            for each in group["params"]:
                new = {(piece.name, piece.begin) for piece in self.names.pieces_of(each)} - self.has_weights
                if new:
                    self.has_weights |= new
                    self.record_parameter("weights", each, each)

    def names_in(self, group):
        """The names of a group's parameters: once for all pieces of one, again for one that is listed again."""
        pieces = collections.Counter((piece.name, piece.begin) for each in group["params"]
                                     for piece in self.names.pieces_of(each))
        again = [name for (name, _), count in pieces.items() for _ in range(count - 1)]
        return [*dict.fromkeys(name for name, _ in pieces), *again]

    def write_group(self, optimizer, group, names):
        key = id(optimizer), id(group)
        known = self.groups.get(key)
        if known is not None:  # DeepSpeed updates the parts of a group one after the other
            known["names"] += names
            return
        state = next((optimizer.state[each] for each in group["params"] if optimizer.state.get(each)), {})
        number = self.numbers_of_groups.setdefault(key, sum(owner == key[0] for owner, _ in self.numbers_of_groups))
        line = {"optimizer": type(optimizer).__name__, "number": number,
                "settings": {name: _plain(value) for name, value in group.items()
                             if name != "params" and _plain(value) is not None},
                "names": names, "weight_dtype": _name_of(group["params"][0].dtype),
                "state_dtypes": {name: _name_of(value.dtype) for name, value in state.items()
                                 if isinstance(value, torch.Tensor)}}
        self.write("group", **line)
        self.groups[key] = self.file.lines[-1][0]

    def record_parameters(self, optimizer, phase):
        scale = getattr(optimizer, "grad_scale", None)
        for group in optimizer.param_groups:
            for each in group["params"]:
                if phase == "updated":
                    self.record_parameter(phase, each, each)
                elif each.grad is not None:
                    self.record_parameter(phase, each, each.grad, scale)

    def record_parameter(self, phase, parameter, tensor, scale=None):
        pieces = self.names.pieces_of(parameter)
        if not pieces:
            return
        with torch.no_grad():
            local = values_of.real(local_of(tensor.detach()))
            per_element = 2 if tensor.is_complex() else 1
            if not (local.is_floating_point() and local.numel()) or local.is_meta:
                return
            flat = local.reshape(-1)
        for name, shape, begin, start, count in pieces:
            if not count:
                continue
            with values_of.plainly(flat.device):
                numbers = values_of.of_part(flat[start * per_element:(start + count) * per_element],
                                            begin * per_element)
                if isinstance(scale, torch.Tensor):
                    factor = scale.to(numbers).reciprocal().reshape(1)
                    numbers *= torch.cat((factor * factor, factor.expand(numbers.numel() - 1)))
            whole = count == math.prod(shape)
            self.write("tensor", phase=phase, name=name, dtype=_name_of(tensor.dtype), count=count, numbers=numbers,
                       **({} if whole else {"begin": begin, "shape": list(shape)}))

    def read(self):
        return [line for line in self.file.read() if self.is_new(line)]

    def close_step(self):
        lines = self.read()
        skipped = self.skipped
        if not self.runtime_records:
            lines.append({"kind": "step", "step": self.step, "parameters": len(self.changed),
                          "skipped": skipped.item() != 0 if isinstance(skipped, torch.Tensor) else skipped})
        self.file.put(lines)
        self.stepped_before, self.stepped = self.stepped, set()
        self.step, self.micro_step, self.skipped, self.scale = self.step + 1, 0, True, None
        self.groups, self.changed = {}, set()
        if self.steps is not None and self.step >= self.steps:
            self.leave()

    def is_new(self, line):
        """False for a line of a buffer that has not changed. Notes the parameters that have, and takes names of groups
        away that have not."""
        if line["kind"] == "group":
            key = line["optimizer"], line["number"]
            if self.names_of_groups.get(key) == line["names"]:
                del line["names"]
            else:
                self.names_of_groups[key] = line["names"]
        phase = line.get("phase")
        if phase in ("weights", "updated", "buffer"):
            key, numbers = (phase == "buffer", line["name"], line.get("begin", 0)), (line["squares"], line["sketch"])
            last, self.last_numbers[key] = self.last_numbers.get(key), numbers
            if phase == "updated" and last is not None and last != numbers:
                self.changed.add(line["name"])
            return phase != "buffer" or last != numbers
        return True

    # ---- end

    def end(self, reason):
        if self.is_on():
            if self.stepped:
                self.close_step()
            lines = self.read()
            if lines or self.file.file is not None:
                self.file.put([*lines, {"kind": "end", "reason": reason}])
            self.is_over = True

    def leave(self):
        """Ends this process after the last step."""
        self.end("steps")
        _wait_for_ranks()
        for child in multiprocessing.active_children():
            child.terminate()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


def _buffers_of(root, prefix):
    for name, module in walk(root, prefix):
        for attribute, buffer in module._buffers.items():
            if buffer is not None:
                yield f"{name}.{attribute}".lstrip("."), buffer


def _rate_of(module):
    """The rate of dropout of a module, or None."""
    for name in ("p", "dropout"):
        rate = getattr(module, name, None)
        if isinstance(rate, float) and rate > 0 and (
                isinstance(module, (torch.nn.modules.dropout._DropoutNd, torch.nn.RNNBase,
                                    torch.nn.MultiheadAttention))):
            return rate
    return None


def _wait_for_ranks():
    """Lets the other ranks finish their last step, which may need this process."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return
    with contextlib.suppress(Exception):
        store = torch.distributed.distributed_c10d._get_default_store()
        deadline = time.monotonic() + 20

        def await_ranks(key, number, own):
            arrived = store.add(key, own)
            while arrived < number and time.monotonic() < deadline:
                time.sleep(0.01)
                arrived = store.add(key, 0)

        await_ranks("acclaunch/recorded", _world_size(), 1)
        if _rank() == 0:  # it may be the server of the store, which others have to ask
            await_ranks("acclaunch/left", _world_size() - 1, 0)
        else:
            store.add("acclaunch/left", 1)


def seed(number):
    random.seed(number)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(number % 2**32)
    torch.manual_seed(number)
