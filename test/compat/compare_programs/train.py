# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer as the variable TRAIN says (model.py), with the mistake that the variable MISTAKE names
(table.py). Prints the loss of each step."""

import contextlib
import functools
import os
import sys

import torch
import torch.distributed as dist
from model import Attention, Block, Model, batches_of_step, rank, ranks, read_options, wrong, PADDING, SIZE
from torch import nn
from torch.nn import functional as F

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class AdamWithoutCorrection(torch.optim.Optimizer):
    """Adam with decoupled weight decay as the first BERT had it: the moments are not corrected for their start at zero."""

    def __init__(self, parameters, lr, weight_decay, betas=(0.9, 0.999), eps=1e-8):
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self.state[p]
                    for name in ("exp_avg", "exp_avg_sq"):
                        state.setdefault(name, torch.zeros_like(p))
                    state["exp_avg"].lerp_(p.grad, 1 - group["betas"][0])
                    state["exp_avg_sq"].lerp_(p.grad.square(), 1 - group["betas"][1])
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.addcdiv_(state["exp_avg"], state["exp_avg_sq"].sqrt() + group["eps"], value=-group["lr"])


class Training:
    """In one process. The other frameworks override what differs."""

    clips_itself = divides_by_micro_steps = scales_gradients_down = False

    def __init__(self, o):
        self.options = o
        torch.manual_seed(rank() if wrong("own_weights_of_ranks") else 0)
        self.model = Model(o).to(DTYPES[o.weights])
        torch.manual_seed(1 if wrong("same_seed_on_all_ranks") else 1 + rank())
        if wrong("optimizer_before_wrapping"):
            self.optimizer = self.new_optimizer()
            self.wrap()
        else:
            self.wrap()
            self.optimizer = self.new_optimizer()
        self.scheduler = self.new_scheduler()
        if wrong("frozen_after_warm_up"):
            for p in self.model.blocks[0].parameters():
                p.requires_grad_(False)

    def wrap(self):
        pass

    # ---- the optimizer

    def groups(self):
        o = self.options
        named = [(name, p) for name, p in self.model.named_parameters() if p.requires_grad]
        if o.decay == "one":
            return [p for _, p in named]
        if o.decay == "reversed":
            named.reverse()
        is_plain = {name for name, _ in named if name.endswith("bias") or "norm" in name}
        if wrong("decay_of_norms"):  # PyTorch's names of norms are not those of BERT
            is_plain = {name for name in is_plain if name.endswith("bias") or "LayerNorm.weight" in name}
        groups = [{"params": [p for name, p in named if name not in is_plain], "weight_decay": 0.1},
                  {"params": [p for name, p in named if name in is_plain], "weight_decay": 0.0}]
        if wrong("head_listed_twice"):
            groups[0]["params"].append(groups[0]["params"][-1])
        return [group for group in groups if group["params"]]

    def lr(self):
        return self.options.lr * (ranks() if wrong("lr_times_ranks") else 1)

    def new_optimizer(self):
        o = self.options
        more = {o.implementation: True} if o.implementation else {"foreach": False}
        if o.optimizer == "sgd":
            return torch.optim.SGD(self.groups(), lr=self.lr(), momentum=0.9, weight_decay=0.1, **more)
        if wrong("no_bias_correction"):
            return AdamWithoutCorrection(self.groups(), lr=self.lr(), weight_decay=0.1)
        kind = torch.optim.Adam if wrong("coupled_decay") else torch.optim.AdamW
        return kind(self.groups(), lr=self.lr(), weight_decay=0.1, eps=1e-4 if wrong("large_eps") else 1e-8, **more)

    def new_scheduler(self):
        return self.options.schedule and torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 1 / (1 + 0.2 * step))

    # ---- a step

    def autocast(self):
        o = self.options
        is_needed = o.compute != "float32" and o.framework in ("plain", "ddp", "by_hand")
        return torch.autocast("cpu", dtype=DTYPES[o.compute]) if is_needed else contextlib.nullcontext()

    def loss_of(self, ids, labels, all_labels):
        """The share of these samples in the mean over the labels of the step, times the ranks, over which the framework
        takes the mean."""
        o, micro_steps = self.options, self.options.micro_steps
        with self.autocast():
            logits = self.model_for_forward()(ids)
        logits = logits.float()
        if wrong("labels_not_shifted"):
            labels = F.pad(labels[:, :-1], (1, 0), value=1)
        mean_over = functools.partial(F.cross_entropy, logits.flatten(0, 1), labels.flatten(), ignore_index=PADDING)
        if wrong("mean_of_means"):
            loss = mean_over() / micro_steps
        elif o.padding or o.samples % o.rows:
            loss = mean_over(reduction="sum") * ranks() / all_labels
            if wrong("rank_without_data"):
                loss = mean_over()
            if wrong("labels_of_this_rank"):
                mine = sum(int((each != PADDING).sum()) for _, each in self.batches)
                loss = mean_over(reduction="sum") / mine
        else:
            loss = mean_over() / (1 if wrong("loss_not_divided") else micro_steps)
        if o.auxiliary:
            penalty = 0.05 * logits.logsumexp(-1).square().mean() / micro_steps
            loss = loss + (penalty.item() if wrong("detached_penalty") else penalty)
        if self.divides_by_micro_steps and not wrong("divided_twice"):
            loss = loss * micro_steps
        if wrong("divided_by_ranks_twice"):
            loss = loss / ranks()
        return loss

    def model_for_forward(self):
        return self.model

    def synchronised(self, is_last):
        return contextlib.nullcontext()

    def backward(self, loss):
        loss.backward()

    def parameters(self):
        return [p for p in self.model.parameters() if p.grad is not None]

    def clip(self):
        nn.utils.clip_grad_norm_(self.parameters(), self.options.clip)

    def update(self):
        if self.options.clip and not wrong("no_clipping"):
            self.clip()
        self.optimizer.step()

    def step(self, step):
        self.model.train()
        if wrong("evaluation_mode_left_on") and step > 0:
            self.model.eval()
        self.batches, all_labels = batches_of_step(self.options, step)
        total = 0.0
        for micro_step, (ids, labels) in enumerate(self.batches):
            if wrong("rank_without_data") and not len(ids):
                self.update()
                continue
            is_last = micro_step == len(self.batches) - 1
            with self.synchronised(not is_last if wrong("no_sync_around_the_last") else is_last):
                loss = self.loss_of(ids, labels, all_labels)
                self.backward(loss)
            total += loss.item()
            if is_last:
                self.update()
            if self.scheduler and (is_last or wrong("scheduler_in_each_micro_step")) and not wrong("scheduler_forgotten"):
                self.scheduler.step()
            if wrong("zeroed_in_each_micro_step") and not is_last:
                self.optimizer.zero_grad()
        if not wrong("not_zeroed"):
            self.optimizer.zero_grad()
        if self.options.evaluate:
            self.evaluate()
        if wrong("weights_rescaled"):  # a limit for the norms of rows, set after the step on the copies of one rank
            with torch.no_grad():
                for name, p in self.model.named_parameters():
                    if name.endswith("blocks.0.up.weight") and rank() == ranks() - 1:
                        p.mul_(0.98)
        if wrong("optimizer_not_resumed") and step == 2:
            state = {name: each.clone() for name, each in self.model.state_dict().items()}
            self.model.load_state_dict(state)
            self.optimizer.state.clear()
        return total

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            self.model(self.batches[0][0])
        if not wrong("evaluation_mode_left_on"):
            self.model.train()


class Scaled(Training):
    """In one process, computing in float16 with a gradient scaler."""

    def __init__(self, o):
        super().__init__(o)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def autocast(self):
        return torch.autocast("cpu", dtype=torch.float16)

    def backward(self, loss):
        self.scaler.scale(loss).backward()

    def update(self):
        if wrong("step_without_scaler"):
            self.optimizer.step()
            return
        if self.options.clip:
            if not wrong("clipped_before_unscaling"):
                self.scaler.unscale_(self.optimizer)
            self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()


class ByHand(Training):
    """Data parallel without a wrapper: the program reduces the gradients."""

    def update(self):
        for p in self.model.parameters():
            if p.requires_grad and p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad)
            if not wrong("sum_over_ranks"):
                p.grad /= ranks()
        super().update()


def reduce_in_bfloat16(_, bucket):
    compressed = bucket.buffer().bfloat16() / ranks()
    future = dist.all_reduce(compressed, async_op=True).get_future()
    return future.then(lambda done: bucket.buffer().copy_(done.value()[0]))


class Ddp(Training):
    def wrap(self):
        o = self.options
        more = {"bucket_cap_mb": 0.001} if o.buckets else {}
        self.model = nn.parallel.DistributedDataParallel(
            self.model, find_unused_parameters=bool(o.unused), static_graph=bool(o.static_graph),
            broadcast_buffers=not wrong("buffers_not_broadcast"), gradient_as_bucket_view=bool(o.buckets), **more)
        if wrong("reduced_in_bfloat16"):
            self.model.register_comm_hook(None, reduce_in_bfloat16)

    def model_for_forward(self):
        return self.model.module if wrong("wrapper_bypassed") else self.model

    def synchronised(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()


class Fsdp2(Training):
    def wrap(self):
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
        o, arguments = self.options, {}
        if o.compute != "float32":
            arguments["mp_policy"] = MixedPrecisionPolicy(
                param_dtype=DTYPES[o.compute], reduce_dtype=DTYPES[o.reduce])
        if wrong("reduced_in_bfloat16"):
            arguments["mp_policy"] = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)
        if o.offload:
            arguments["offload_policy"] = CPUOffloadPolicy()
        shape = {"hybrid": (2, ranks() // 2), "replicated": (ranks(), 1)}.get(o.strategy, (ranks(),))
        mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape):])
        units = {"blocks": [Block], "attention": [Attention, Block], "root": []}[o.wrap]
        chosen = [each for each in self.model.modules() if isinstance(each, tuple(units))]
        for each in (*sorted(chosen, key=lambda each: isinstance(each, Block)), self.model):
            fully_shard(each, mesh=mesh, reshard_after_forward=bool(o.reshard), **arguments)
        if o.prefetch:
            first, second = list(self.model.blocks)[:2]
            first.set_modules_to_forward_prefetch([second])

    @contextlib.contextmanager
    def synchronised(self, is_last):
        self.model.set_requires_gradient_sync(is_last)
        yield

    def clip(self):
        if not wrong("local_norm"):
            return super().clip()
        parts = [p.grad.to_local() for p in self.parameters()]
        norm = torch.stack([each.norm() for each in parts]).norm()
        for each in parts:
            each.mul_(min(1.0, self.options.clip / (norm.item() + 1e-6)))


class Fsdp1(Training):
    def wrap(self):
        from torch.distributed.fsdp import CPUOffload, FullyShardedDataParallel, MixedPrecision, ShardingStrategy
        from torch.distributed.fsdp.wrap import ModuleWrapPolicy
        o, arguments = self.options, {}
        if o.compute != "float32":
            arguments["mixed_precision"] = MixedPrecision(param_dtype=DTYPES[o.compute], reduce_dtype=DTYPES[o.reduce])
        if o.strategy:
            arguments["sharding_strategy"] = ShardingStrategy[o.strategy]
        if o.offload:
            arguments["cpu_offload"] = CPUOffload(offload_params=True)
        self.model = FullyShardedDataParallel(
            self.model, auto_wrap_policy=None if o.wrap == "root" else ModuleWrapPolicy([Block]),
            device_id=torch.device("cpu"), use_orig_params=bool(o.orig_params), **arguments)

    def synchronised(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def clip(self):
        if wrong("local_norm"):  # the function for unsharded models
            nn.utils.clip_grad_norm_(self.model.parameters(), self.options.clip)
        else:
            self.model.clip_grad_norm_(self.options.clip)


class Accelerate(Training):
    divides_by_micro_steps = True

    def wrap(self):
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration, GradientAccumulationPlugin
        o = self.options
        self.accelerator = Accelerator(
            cpu=True, mixed_precision="bf16" if o.compute == "bfloat16" else "no", step_scheduler_with_optimizer=True,
            dataloader_config=DataLoaderConfiguration(split_batches=not wrong("scheduler_in_each_rank")),
            gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=o.micro_steps, sync_with_dataloader=False))
        self.inner = self.new_optimizer()
        self.model, self.prepared = self.accelerator.prepare(self.model, self.inner)

    def new_optimizer(self):
        return self.prepared if hasattr(self, "prepared") else super().new_optimizer()

    def new_scheduler(self):
        scheduler = self.options.schedule and torch.optim.lr_scheduler.LambdaLR(
            self.inner, lambda step: 1 / (1 + 0.2 * step))
        return scheduler and self.accelerator.prepare(scheduler)

    @contextlib.contextmanager
    def synchronised(self, is_last):
        with self.accelerator.accumulate(self.model):
            yield

    def backward(self, loss):
        self.accelerator.backward(loss)

    def clip(self):
        self.accelerator.clip_grad_norm_(self.model.parameters(), self.options.clip)


class DeepSpeed(Training):
    divides_by_micro_steps = True

    def wrap(self):
        import deepspeed
        deepspeed.utils.logger.setLevel("ERROR")
        if "deepspeed.comm.torch" in sys.modules:
            sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
        o = self.options
        config = {
            "train_micro_batch_size_per_gpu": max(1, o.rows // ranks() // o.micro_steps),
            "gradient_accumulation_steps": o.micro_steps, "gradient_clipping": o.clip,
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": o.stage, "overlap_comm": bool(o.prefetch)}}
        if o.buckets:
            config["zero_optimization"] |= {"reduce_bucket_size": 500, "allgather_bucket_size": 500}
        if o.compute != "float32":
            config[{"bfloat16": "bf16", "float16": "fp16"}[o.compute]] = {"enabled": True}
        if wrong("reduced_in_bfloat16"):
            config["communication_data_type"] = "bfp16"
        self.inner = super().new_optimizer()
        self.model, self.optimizer, *_ = deepspeed.initialize(model=self.model, optimizer=self.inner, config=config)

    def new_optimizer(self):
        return self.optimizer if hasattr(self, "inner") else super().new_optimizer()

    def new_scheduler(self):
        return self.options.schedule and torch.optim.lr_scheduler.LambdaLR(
            self.inner, lambda step: 1 / (1 + 0.2 * step))

    def backward(self, loss):
        self.model.backward(loss)
        self.model.step()

    def update(self):
        pass


class Acc(Training):
    """With acclaunch.torch."""

    def wrap(self):
        import acclaunch.torch as acc
        self.runtime = acc.Runtime()
        self.model = acc.fully_shard(self.model, self.runtime)

    def new_optimizer(self):
        import acclaunch.torch as acc
        o = self.options
        optimizer = acc.AdamW(self.model, lr=self.lr(), weight_decay=0.1) if o.decay == "one" else \
            acc.TorchOptimizer(self.model, torch.optim.AdamW, lr=self.lr(), weight_decay=0.1)
        optimizer.clip_norm = 0.0 if wrong("no_clipping") else o.clip
        return optimizer

    def synchronised(self, is_last):
        return contextlib.nullcontext() if is_last else self.model.no_sync()

    def update(self):
        self.optimizer.step()


FRAMEWORKS = {"plain": Training, "scaled": Scaled, "by_hand": ByHand, "ddp": Ddp, "fsdp1": Fsdp1, "fsdp2": Fsdp2,
              "accelerate": Accelerate, "deepspeed": DeepSpeed, "acc": Acc}


def main():
    o = read_options(os.environ["TRAIN"])
    torch.set_num_threads(1)
    if o.framework not in ("plain", "scaled", "acc") and not dist.is_initialized():
        alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
        dist.init_process_group("gloo", **alone)
    training = FRAMEWORKS[o.framework](o)
    losses = [training.step(step) for step in range(o.steps)]
    print(f"rank {rank()}:", " ".join(f"{each:.6f}" for each in losses), flush=True)


if __name__ == "__main__":
    main()
    if dist.is_initialized():
        dist.barrier()
        os._exit(0)
