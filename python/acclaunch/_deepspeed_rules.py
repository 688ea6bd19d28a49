# SPDX-License-Identifier: Apache-2.0
"""Optimizers with the rules of DeepSpeed's that torch does not have, on this rank's rows."""

import contextlib
import functools
import sys

import torch
from torch.distributed.tensor import DTensor

from acclaunch import _fsdp2, _muon, _rows
from acclaunch._library import refuse
from acclaunch._rows import local_of


class DeepSpeedLion(torch.optim.Optimizer):
    """Lion (arXiv 2302.06675) with DeepSpeed's defaults."""

    def __init__(self, params, lr=1e-3, betas=(0.9, 0.999), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        _rows.distribute_states(self)
        for group in self.param_groups:
            one, two = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                moment = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(moment.mul(one).add_(parameter.grad, alpha=1 - one).sign_(), alpha=-group["lr"])
                moment.mul_(two).add_(parameter.grad, alpha=1 - two)
        return loss


class DeepSpeedLamb(torch.optim.Optimizer):
    """LAMB (arXiv 1904.00962) with the rule and defaults of DeepSpeed's FusedLamb, and the norms of whole
    parameters."""

    def __init__(self, params, lr=1e-3, bias_correction=True, betas=(0.9, 0.999), eps=1e-8, eps_inside_sqrt=False,
                 weight_decay=0.0, max_grad_norm=0.0, max_coeff=10.0, min_coeff=0.01, amsgrad=False):
        super().__init__(params, {"lr": lr, "bias_correction": bias_correction, "betas": betas, "eps": eps,
                                  "eps_inside_sqrt": eps_inside_sqrt, "weight_decay": weight_decay,
                                  "max_grad_norm": max_grad_norm, "max_coeff": max_coeff, "min_coeff": min_coeff})
        for what, given in (("amsgrad", amsgrad), ("max_grad_norm", max_grad_norm > 0)):
            if given:
                refuse(f"the optimizer Lamb with {what}", "DeepSpeed")

    @torch.no_grad()
    def step(self, closure=None):
        loss = closure() if closure is not None else None
        _rows.distribute_states(self)
        found = [(group, parameter, self._direction(group, parameter)) for group in self.param_groups
                 for parameter in group["params"] if parameter.grad is not None]
        if not found:
            return loss
        norms = self._norms([[local_of(parameter), direction] for _, parameter, direction in found],
                            [parameter for _, parameter, _ in found])
        for (group, parameter, direction), (weight, update) in zip(found, norms.tolist()):
            ratio = min(max(weight / update, group["min_coeff"]), group["max_coeff"]) if weight and update else 1.0
            local_of(parameter).add_(direction, alpha=-ratio * self._size(group, self.state[parameter]["step"]))
        return loss

    def _direction(self, group, parameter):
        state, (one, two), eps = self.state[parameter], group["betas"], group["eps"]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        grad, first, second = map(local_of, (parameter.grad, state["exp_avg"], state["exp_avg_sq"]))
        first.mul_(one).add_(grad, alpha=1 - one)
        second.mul_(two).addcmul_(grad, grad, value=1 - two)
        divisor = second.add(eps).sqrt_() if group["eps_inside_sqrt"] else second.sqrt().add_(eps)
        return first.div(divisor).add_(local_of(parameter), alpha=group["weight_decay"])

    @staticmethod
    def _size(group, step):
        (one, two), step = group["betas"], float(step)
        return group["lr"] * ((1 - two ** step) ** 0.5 / (1 - one ** step) if group["bias_correction"] else 1.0)

    @staticmethod
    def _norms(values, parameters):
        """The norms of whole values, of which `values` has this rank's rows: float64, [parameters][2]. Collective."""
        own = torch.stack([torch.stack([torch.linalg.vector_norm(each, dtype=torch.float64) for each in pair])
                           for pair in values])
        first = next((each for each in parameters if isinstance(each, DTensor)), None)
        if first is None:
            return own
        own[[not _fsdp2.counts_here(each) for each in parameters]] = 0.0
        return _rows.norm_over_ranks(own, 2.0, first.device_mesh)


@functools.cache
def muon():
    """A class in the place of DeepSpeed's MuonWithAuxAdam, whose import takes seconds: one rank computes the update of
    a matrix with DeepSpeed's own functions, which need no compiler here."""
    from deepspeed.runtime.zero.muon import muon_optimizer, original_muon

    iterations = {name: getattr(function, "_torchdynamo_orig_callable", function) for name, function in (
        ("gram", original_muon.zeropower_via_gram_newtonschulz),
        ("standard", original_muon.zeropower_via_newtonschulz5))}

    class DeepSpeedMuon(muon_optimizer.MuonWithAuxAdam):
        is_orthogonalized = False  # the gradients of matrices are their updates

        def _matrices(self):
            return [(group, each) for group in self.param_groups if group["use_muon"] for each in group["params"]]

        @torch.no_grad()
        def orthogonalize(self):
            """Puts updates in the place of the gradients of matrices, as DeepSpeed's stages 1 to 3 before they clip.
            Collective."""
            found = self._matrices()

            def directions():
                for group, parameter in found:
                    if parameter.grad is None:
                        parameter.grad = torch.zeros_like(parameter)
                    state = self.state[parameter]
                    grad = local_of(parameter.grad)
                    momentum = local_of(state.setdefault("momentum_buffer", torch.zeros_like(parameter)))
                    yield grad.lerp_(momentum.lerp_(grad, 1 - group["momentum"]), group["momentum"])

            def update(number, whole):
                group, parameter = found[number]
                scale = original_muon._aspect_ratio_scale(*whole.shape[-2:])
                whole = iterations[group["ns_method"]](whole.flatten(1) if whole.dim() == 4 else whole, steps=5)
                return (whole * scale).to(torch.float32).reshape(parameter.shape)

            parameters = [parameter for _, parameter in found]
            for parameter, rows in zip(parameters, _muon.whole_updates(parameters, directions(), update)):
                local_of(parameter.grad).copy_(rows)
            self.is_orthogonalized = True

        @torch.no_grad()
        def step(self, closure=None, step_id=None):
            loss = closure() if closure is not None else None
            if not self.is_orthogonalized:
                self.orthogonalize()
            self.is_orthogonalized = False
            for group, parameter in self._matrices():
                local_of(parameter).mul_(1 - group["lr"] * group["weight_decay"]).add_(
                    local_of(parameter.grad), alpha=-group["lr"])
            if self.aux_optimizer is not None:
                self.aux_optimizer.param_groups = [group for group in self.param_groups if not group["use_muon"]]
                self.aux_optimizer.state = self.state
                self.aux_optimizer.step()
            return loss

    return DeepSpeedMuon


@contextlib.contextmanager
def muon_in_place():
    """Within, DeepSpeed makes the class here where it would make its MuonWithAuxAdam."""
    made, module = muon(), sys.modules["deepspeed.runtime.zero.muon.muon_optimizer"]
    original, module.MuonWithAuxAdam = module.MuonWithAuxAdam, made
    try:
        yield
    finally:
        module.MuonWithAuxAdam = original
