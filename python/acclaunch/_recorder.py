# SPDX-License-Identifier: Apache-2.0
"""Records what a training computes at each step, for `acclaunch compare`: wraps the calls of modules, backward,
gradient clipping and the steps of optimizers. No program is changed, and no result."""

import atexit
import contextlib
import functools
import os

import torch

from acclaunch import _recording
from acclaunch._imports import call_after_imports

# ---- the calls that are wrapped ------------------------------------------------------------------

_recorder = None  # that of this process


def _wrap(owner, name, wrapper):
    """Puts wrapper(original) in the place of a function, once."""
    original = getattr(owner, name)
    if not getattr(original, "_is_recorded", False):
        wrapped = functools.wraps(original)(wrapper(original))
        wrapped._is_recorded = True
        setattr(owner, name, wrapped)


def _module_call(original):
    def call(module, *arguments, **keywords):
        if torch.compiler.is_compiling():
            return original(module, *arguments, **keywords)

        def run():
            return original(module, *arguments, **keywords)

        recorder, local = _recorder, _recorder.local.__dict__
        outer = local.get("call")
        if outer is None and _recording.in_backward():  # of a checkpoint
            output = run()
            if recorder.is_on():
                recorder.record_output(module, output, None, writes=False)
            return output
        found = outer or recorder.begin(module, arguments, keywords)
        if found is None:
            return run()
        local["call"] = found
        try:
            output = recorder.forward(module, run)
        finally:
            local["call"] = outer
        recorder.record_output(module, output, found)
        return output
    return call


def _backward(original):
    def backward(tensors, *arguments, **keywords):
        if not _recorder.is_on() or torch.compiler.is_compiling() or _recording.in_backward():
            return original(tensors, *arguments, **keywords)
        if not isinstance(tensors, torch.Tensor):
            tensors = tuple(tensors)
        _recorder.on_backward([tensors] if isinstance(tensors, torch.Tensor) else tensors)
        result = original(tensors, *arguments, **keywords)
        _recorder.after_backward()
        return result
    return backward


def _clip_norm(original):
    """Of functions, and of the method of FSDP 1, which may call the function."""
    def clip_grad_norm_(parameters, max_norm, norm_type=2.0, *arguments, **keywords):
        recorder, outer = _recorder, _recorder.is_clipping
        recorder.is_clipping = True
        try:
            norm = original(parameters, max_norm, norm_type, *arguments, **keywords)
        finally:
            recorder.is_clipping = outer
        recorder.on_clip("norm", max_norm, norm, norm_type)
        return norm
    return clip_grad_norm_


def _clip_with_norm(original):
    def clip_grads_with_norm_(parameters, max_norm, total_norm, *arguments, **keywords):
        _recorder.on_clip("norm", max_norm, total_norm, None)
        return original(parameters, max_norm, total_norm, *arguments, **keywords)
    return clip_grads_with_norm_


def _clip_value(original):
    def clip_grad_value_(parameters, clip_value, *arguments, **keywords):
        _recorder.on_clip("value", clip_value, None, None)
        return original(parameters, clip_value, *arguments, **keywords)
    return clip_grad_value_


def _hooked_step(original):
    """Of Optimizer.profile_hook_step, which wraps step() of each class of optimizers."""
    def profile_hook_step(function):
        hooked = original(function)

        @functools.wraps(hooked)
        def step(optimizer, *arguments, **keywords):
            if torch.compiler.is_compiling():
                return hooked(optimizer, *arguments, **keywords)
            closure = keywords.get("closure", arguments[0] if arguments else None)
            with _recorder.updates_of(optimizer, callable(closure)):
                return hooked(optimizer, *arguments, **keywords)
        return step
    return profile_hook_step


def _optimizer_init(original):
    def init(self, *arguments, **keywords):
        original(self, *arguments, **keywords)
        _recording.optimizers.add(self)
    return init


def _scaler_scale(original):
    def scale(scaler, outputs):
        result = original(scaler, outputs)
        if scaler._scale is not None:
            _recorder.scale = scaler._scale.detach().clone().reshape(())
        return result
    return scale


def _scaler_step(original):
    def step(scaler, optimizer, *arguments, **keywords):
        with _recorder.steps_of(id(getattr(optimizer, "optimizer", optimizer))):
            return original(scaler, optimizer, *arguments, **keywords)
    return step


def _watch_fsdp(module):
    """module: torch.distributed.fsdp, or the one of the engine acc."""
    _wrap(module.FullyShardedDataParallel, "clip_grad_norm_", _clip_norm)


def _watch_deepspeed(module):
    """module: deepspeed.runtime.engine."""
    def backward(original):
        def run(engine, *arguments, **keywords):
            scale = getattr(engine.optimizer, "loss_scale", None)
            if scale not in (None, 1):
                _recorder.scale = float(scale)
            return original(engine, *arguments, **keywords)
        return run

    def take_model_step(original):
        def run(engine, *arguments, **keywords):
            with _recorder.steps_of(id(engine)):
                result = original(engine, *arguments, **keywords)
                if engine.gradient_clipping() > 0 and hasattr(engine.optimizer, "_global_grad_norm"):
                    _recorder.on_clip("norm", engine.gradient_clipping(), engine.get_global_grad_norm(), 2.0)
                return result
        return run

    _wrap(module, "clip_grad_norm_", _clip_norm)  # called without ZeRO in 32 bits
    _wrap(module.DeepSpeedEngine, "backward", backward)
    _wrap(module.DeepSpeedEngine, "_take_model_step", take_model_step)


def _watch_runtime(module):
    """module: acclaunch._runtime. This process ends by the recorder here."""
    def wrapper(original):
        def init(runtime, *arguments, **keywords):
            steps = os.environ.pop("ACC_RECORD_STEPS", None)
            try:
                original(runtime, *arguments, **keywords)
            finally:
                if steps is not None:
                    os.environ["ACC_RECORD_STEPS"] = steps
        return init
    _wrap(module.Runtime, "__init__", wrapper)


def _watch_runtime_optimizers(module):
    """module: acclaunch._optimizer."""
    def wrapper(original):
        def step(optimizer):
            _recorder.runtime_records = True
            _recording.optimizers.add(getattr(optimizer, "torch", optimizer))
            with _recorder.steps_of(id(optimizer)):
                return original(optimizer)
        return step
    _wrap(module.Optimizer, "step", wrapper)


# ---- dropout -------------------------------------------------------------------------------------

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def _switch_dropout_off():
    functional = torch.nn.functional

    def identity(_):
        return lambda input, *_, **__: input

    for name in _DROPOUTS:
        _wrap(functional, name, identity)
    for name in ("dropout", "dropout_", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"):
        _wrap(torch, name, identity)

    def attention(original):
        def scaled_dot_product_attention(query, key, value, attn_mask=None, dropout_p=0.0, *arguments, **keywords):
            return original(query, key, value, attn_mask, 0.0, *arguments, **keywords)
        return scaled_dot_product_attention

    _wrap(functional, "scaled_dot_product_attention", attention)


# ---- installation --------------------------------------------------------------------------------


def install():
    """Wraps the functions, once; a process that --preload forked starts a recording of its own."""
    global _recorder
    steps, mode = os.environ.get("ACC_RECORD_STEPS"), os.environ.get("ACC_RECORD_RANDOM") or "keep"
    if steps and not (steps.isdecimal() and int(steps) > 0):
        raise ValueError(f"ACC_RECORD_STEPS is '{steps}', expected a number of at least 1")
    if mode not in ("keep", "equal", "off"):
        raise ValueError(f"ACC_RECORD_RANDOM is '{mode}', expected keep, equal or off")
    is_first = _recorder is None
    if not is_first:
        _recorder.end("exit")
    _recorder = _recording.Recorder(os.environ["ACC_RECORD"], int(steps) if steps else None, mode)
    with contextlib.suppress(ImportError):
        import numpy  # noqa: F401
    _recording.seed(0)
    if mode == "off":
        _switch_dropout_off()
    if not is_first:
        return
    _wrap(torch.nn.Module, "__call__", _module_call)
    _wrap(torch.autograd, "backward", _backward)
    for module in (torch.nn.utils, torch.nn.utils.clip_grad):
        for name, wrapper in (("clip_grad_norm_", _clip_norm), ("clip_grads_with_norm_", _clip_with_norm),
                              ("clip_grad_value_", _clip_value)):
            if hasattr(module, name):
                _wrap(module, name, wrapper)
    _wrap(torch.optim.Optimizer, "__init__", _optimizer_init)
    torch.optim.Optimizer.profile_hook_step = staticmethod(_hooked_step(torch.optim.Optimizer.profile_hook_step))
    _wrap(torch.amp.GradScaler, "scale", _scaler_scale)
    _wrap(torch.amp.GradScaler, "step", _scaler_step)
    call_after_imports({"torch.distributed.fsdp": _watch_fsdp, "acclaunch._fsdp1": _watch_fsdp,
                        "deepspeed.runtime.engine": _watch_deepspeed, "acclaunch._runtime": _watch_runtime,
                        "acclaunch._optimizer": _watch_runtime_optimizers})
    atexit.register(lambda: _recorder.end("exit"))
