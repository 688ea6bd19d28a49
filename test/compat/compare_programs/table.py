# SPDX-License-Identifier: Apache-2.0
"""What `acclaunch compare` must find: programs with one mistake each, and pairs of configurations that are equal.
train.py has the programs. bench/compare_mistakes.py runs all rows, test/compat/compare_programs_test.py some of them."""

import dataclasses
import hashlib


@dataclasses.dataclass(frozen=True)
class Side:
    train: str  # the variable TRAIN: framework and options (model.py)
    ranks: int = 1
    mistake: str = ""
    engine: str = "torch"
    random: str = "keep"

    def name(self):
        """The name of its recording."""
        text = repr(dataclasses.astuple(self))
        return f"{self.train.split()[0]}_{self.ranks}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"

    def words(self):
        """For --a and --b of the command."""
        return f"num_processes={self.ranks},engine={self.engine},env.TRAIN={self.train},env.MISTAKE={self.mistake}"


@dataclasses.dataclass(frozen=True)
class Row:
    name: str
    a: Side
    b: Side
    phases: tuple = ()  # one of them is that of the first difference; none: the sides are equal
    cause: str = ""  # id of the likeliest cause; several are separated by |


def mistake(name, a, b, phases, cause, both=False):
    """both: the program of side a has the mistake as well, and does not suffer from it."""
    wrong = name.split(",")[0]
    return Row(name, dataclasses.replace(a, mistake=wrong if both else ""), dataclasses.replace(b, mistake=wrong),
               tuple(phases.split(", ")), cause)


S = Side
GRADIENTS = "forward, loss, backward, reduction, clipping"
AFTER_BACKWARD = "backward, reduction, clipping"

MISTAKES = [
    # The loss, and accumulation
    mistake("loss_not_divided", S("plain"), S("plain micro_steps=2"), GRADIENTS, "loss_not_divided", both=True),
    mistake("loss_not_divided, engine acc", S("fsdp2", 2), S("fsdp2 micro_steps=2", 2, engine="acc"), GRADIENTS,
            "loss_not_divided", both=True),
    mistake("divided_twice", S("accelerate", 2), S("accelerate micro_steps=2", 2), GRADIENTS, "loss_divided_twice",
            both=True),
    mistake("divided_twice, DeepSpeed", S("deepspeed", 2), S("deepspeed micro_steps=4", 2), GRADIENTS,
            "loss_divided_twice", both=True),
    mistake("mean_of_means", S("plain padding=1"), S("plain padding=1 micro_steps=4"), GRADIENTS, "mean_over_tokens",
            both=True),
    mistake("labels_of_this_rank", S("ddp padding=1"), S("ddp padding=1", 2), GRADIENTS, "mean_over_tokens", both=True),
    mistake("divided_by_ranks_twice", S("ddp"), S("ddp", 2), GRADIENTS, "mean_twice", both=True),
    mistake("sum_over_ranks", S("by_hand"), S("by_hand", 2), AFTER_BACKWARD, "sum_over_ranks", both=True),
    mistake("labels_not_shifted", S("plain"), S("plain"), "forward, loss", "loss"),
    mistake("detached_penalty", S("plain auxiliary=1"), S("plain auxiliary=1"), "backward", "detached"),
    mistake("detached_features", S("plain"), S("plain"), "backward, reduction", "unused|detached"),
    mistake("checkpoint_without_gradient", S("plain adapters=1"), S("plain adapters=1 checkpoint=1"),
            "backward, reduction", "unused|detached", both=True),
    mistake("zeroed_in_each_micro_step", S("plain"), S("plain micro_steps=2"), AFTER_BACKWARD, "micro_steps_lost",
            both=True),
    mistake("not_zeroed", S("fsdp2", 2), S("fsdp2", 2), AFTER_BACKWARD, "not_zeroed"),
    # Data
    mistake("same_data_on_all_ranks", S("ddp"), S("ddp", 2), "data", "same_data", both=True),
    mistake("own_order_of_ranks", S("ddp"), S("ddp", 2), "data", "data_order", both=True),
    mistake("same_order_in_all_epochs", S("plain samples=24"), S("plain samples=24"), "data", "data_order"),
    mistake("drop_last", S("accelerate samples=20", 2), S("accelerate samples=20", 2), "data", "last_batch"),
    mistake("rank_without_data", S("by_hand samples=17"), S("by_hand samples=17", 2), "data, " + GRADIENTS,
            "rank_without_data", both=True),
    mistake("last_batch_completed", S("accelerate samples=20", 2), S("accelerate samples=20", 2), "data",
            "last_batch|batch_size"),
    # The reduction
    mistake("no_sync_around_the_last", S("ddp"), S("ddp micro_steps=2", 2), AFTER_BACKWARD, "not_reduced", both=True),
    mistake("wrapper_bypassed", S("ddp"), S("ddp", 2), AFTER_BACKWARD, "not_reduced", both=True),
    mistake("reduced_in_bfloat16", S("ddp", 2), S("ddp", 2), AFTER_BACKWARD, "reduction_type"),
    mistake("reduced_in_bfloat16, FSDP2", S("fsdp2", 2), S("fsdp2", 2), AFTER_BACKWARD, "reduction_type"),
    # Clipping
    mistake("local_norm", S("fsdp2"), S("fsdp2", 2), AFTER_BACKWARD, "local_clipping", both=True),
    mistake("local_norm, FSDP1", S("fsdp1"), S("fsdp1", 2), AFTER_BACKWARD, "local_clipping", both=True),
    mistake("no_clipping", S("deepspeed", 2), S("ddp", 2), AFTER_BACKWARD, "no_clipping"),
    mistake("clipped_before_unscaling", S("scaled"), S("scaled"), AFTER_BACKWARD, "clipped_before_unscaling"),
    mistake("step_without_scaler", S("scaled clip=0"), S("scaled clip=0"), AFTER_BACKWARD, "not_unscaled"),
    # Weights and buffers
    mistake("own_weights_of_ranks", S("fsdp2"), S("fsdp2", 2), "initial weights", "initial_weights", both=True),
    mistake("own_weights_of_ranks, by hand", S("by_hand"), S("by_hand", 2), "initial weights",
            "initial_weights_of_ranks|initial_weights", both=True),
    mistake("untied_after_loading", S("plain tied=1"), S("plain tied=1"), AFTER_BACKWARD, "untied"),
    mistake("buffer_of_one_rank", S("ddp running_mean=1"), S("ddp running_mean=1", 2), "buffers, forward", "buffer",
            both=True),
    mistake("batch_norm", S("ddp norm=batch"), S("ddp norm=batch", 2), "forward", "batch_norm", both=True),
    mistake("weights_rescaled", S("ddp"), S("ddp", 2), "publication",
            "publication", both=True),
    mistake("bf16_weights", S("fsdp2 compute=bfloat16", 2), S("fsdp2 weights=bfloat16", 2), "weights, initial weights",
            "master_weights"),
    mistake("bf16_weights, DeepSpeed", S("deepspeed weights=bfloat16 compute=bfloat16 stage=3", 2),
            S("fsdp1 weights=bfloat16", 2), "weights, initial weights", "master_weights"),
    # Random numbers and modes
    mistake("same_seed_on_all_ranks", S("ddp dropout=0.1", 2), S("ddp dropout=0.1", 2), "forward", "dropout"),
    mistake("evaluation_mode_left_on", S("plain dropout=0.1 evaluate=1", random="equal"),
            S("plain dropout=0.1 evaluate=1", random="equal"), "forward, publication", "evaluation_mode"),
    # Optimizer and schedule
    mistake("optimizer_before_wrapping", S("fsdp1 orig_params=0", 2), S("fsdp1 orig_params=0", 2),
            "optimizer", "optimizer_before_wrapping"),
    mistake("optimizer_before_wrapping, FSDP2", S("fsdp2"), S("fsdp2", 2), "optimizer",
            "optimizer_before_wrapping"),
    mistake("frozen_after_warm_up", S("fsdp2", 2), S("fsdp2", 2), AFTER_BACKWARD, "frozen"),
    mistake("decay_of_norms", S("fsdp2", 2), S("fsdp2", 2), "optimizer", "weight_decay"),
    mistake("head_listed_twice", S("plain decay=groups"), S("plain decay=groups"), "clipping, optimizer",
            "updated_twice"),
    mistake("lr_times_ranks", S("ddp"), S("ddp", 2), "optimizer", "learning_rate", both=True),
    mistake("scheduler_in_each_rank", S("accelerate schedule=1"), S("accelerate schedule=1", 2), "optimizer",
            "scheduler_steps", both=True),
    mistake("scheduler_in_each_micro_step", S("plain schedule=1"), S("plain schedule=1 micro_steps=2"), "optimizer",
            "scheduler_steps", both=True),
    mistake("scheduler_forgotten", S("deepspeed schedule=1", 2), S("deepspeed schedule=1", 2), "optimizer",
            "no_scheduler"),
    mistake("large_eps", S("plain"), S("plain"), "optimizer", "optimizer_setting"),
    mistake("no_bias_correction", S("plain"), S("plain"), "optimizer", "update_rule"),
    mistake("coupled_decay", S("plain"), S("plain"), "optimizer", "optimizer_setting|update_rule"),
    mistake("optimizer_not_resumed", S("fsdp2", 2), S("fsdp2", 2), "optimizer", "optimizer_state"),
]


def equal(name, a, b):
    return Row(name, a, b)


EQUAL = [
    equal("1 rank, 2 ranks of DDP", S("plain"), S("ddp", 2)),
    equal("1 rank, 2 ranks of FSDP2", S("plain"), S("fsdp2", 2)),
    equal("1 rank, 2 ranks of FSDP 1", S("plain"), S("fsdp1", 2)),
    equal("1 rank, 2 ranks of the engine acc", S("plain"), S("fsdp2", 2, engine="acc")),
    equal("accumulation, larger batch", S("plain micro_steps=4"), S("plain")),
    equal("accumulation, larger batch, padding, DDP", S("ddp micro_steps=2 padding=1", 2), S("ddp padding=1", 2)),
    equal("accumulation under Accelerate", S("accelerate micro_steps=2", 2), S("accelerate", 2)),
    equal("accumulation under DeepSpeed", S("deepspeed micro_steps=2", 2), S("deepspeed", 2)),
    equal("ZeRO 1 and 2", S("deepspeed stage=1", 2), S("deepspeed stage=2", 2)),
    equal("ZeRO 2 and 3", S("deepspeed stage=2", 2), S("deepspeed stage=3", 2)),
    equal("ZeRO 3 and FSDP2", S("deepspeed stage=3", 2), S("fsdp2", 2)),
    equal("small buckets", S("deepspeed stage=2", 2), S("deepspeed stage=2 buckets=1 prefetch=1", 2)),
    equal("FSDP 1 and FSDP2", S("fsdp1", 2), S("fsdp2", 2)),
    equal("flat parameters and original ones", S("fsdp1 orig_params=0 decay=one", 2), S("fsdp1 decay=one", 2)),
    equal("engines, FSDP2", S("fsdp2", 2), S("fsdp2", 2, engine="acc")),
    equal("engines, FSDP 1", S("fsdp1 strategy=SHARD_GRAD_OP", 2), S("fsdp1 strategy=SHARD_GRAD_OP", 2, engine="acc")),
    equal("engines, DeepSpeed", S("deepspeed stage=3", 2), S("deepspeed stage=3", 2, engine="acc")),
    equal("engines, accumulation and padding", S("fsdp2 micro_steps=2 padding=1", 2),
          S("fsdp2 micro_steps=2 padding=1", 2, engine="acc")),
    equal("checkpointing", S("plain"), S("plain checkpoint=1")),
    equal("checkpointing with dropout", S("ddp dropout=0.1", 2), S("ddp dropout=0.1 checkpoint=1", 2)),
    equal("fused AdamW", S("plain"), S("plain implementation=fused")),
    equal("foreach SGD", S("fsdp2 optimizer=sgd", 2), S("fsdp2 optimizer=sgd implementation=foreach", 2)),
    equal("SGD, 1 rank, 2 ranks", S("plain optimizer=sgd lr=0.1"), S("ddp optimizer=sgd lr=0.1", 2)),
    equal("other order of parameters", S("plain"), S("plain decay=reversed")),
    equal("resharding and prefetching", S("fsdp2", 2), S("fsdp2 reshard=0 prefetch=1", 2)),
    equal("other units", S("fsdp2 wrap=attention", 2), S("fsdp2 wrap=root", 2)),
    equal("offload", S("fsdp2", 2), S("fsdp2 offload=1", 2, engine="acc")),
    equal("replicated on a mesh of two dimensions", S("fsdp2", 2), S("fsdp2 strategy=replicated", 2)),
    equal("NO_SHARD and FULL_SHARD", S("fsdp1 strategy=NO_SHARD", 2), S("fsdp1 strategy=FULL_SHARD", 2)),
    equal("dropout, the same ranks", S("ddp dropout=0.1", 2, random="equal"), S("fsdp2 dropout=0.1", 2, random="equal")),
    equal("dropout, engines", S("fsdp2 dropout=0.1", 2), S("fsdp2 dropout=0.1", 2, engine="acc")),
    equal("tied weights", S("plain tied=1"), S("fsdp2 tied=1", 2)),
    equal("tied weights, DeepSpeed", S("plain tied=1"), S("deepspeed tied=1 stage=3", 2)),
    equal("adapters on a frozen model", S("plain adapters=1"), S("fsdp2 adapters=1", 2)),
    equal("adapters, DDP and engine acc", S("ddp adapters=1", 2), S("fsdp2 adapters=1", 2, engine="acc")),
    equal("a rank with an empty batch", S("fsdp2 samples=17"), S("fsdp2 samples=17", 2)),
    equal("incomplete last batch", S("plain samples=21"), S("ddp samples=21", 2)),
    equal("evaluation between steps", S("plain dropout=0.1"), S("plain dropout=0.1 evaluate=1", random="keep")),
    equal("synchronised buffer", S("plain running_mean=1"), S("ddp running_mean=1", 2)),
    equal("batch norm, the same ranks", S("ddp norm=batch", 2), S("ddp norm=batch buckets=1", 2)),
    equal("schedule and RMSNorm", S("plain schedule=1 norm=rms"), S("accelerate schedule=1 norm=rms", 2)),
    equal("bf16, 1 rank, 2 ranks", S("fsdp2 compute=bfloat16"), S("fsdp2 compute=bfloat16", 2)),
    equal("bf16, engines", S("fsdp2 compute=bfloat16", 2), S("fsdp2 compute=bfloat16", 2, engine="acc")),
    equal("bf16 weights, FSDP 1 and FSDP2", S("fsdp1 weights=bfloat16", 2), S("fsdp2 weights=bfloat16", 2)),
    equal("autocast, accumulation", S("plain compute=bfloat16 micro_steps=2"), S("plain compute=bfloat16")),
    equal("fp16 with a scaler, twice", S("scaled"), S("scaled implementation=foreach")),
    equal("static graph and unused parameters", S("ddp unused=1", 2), S("ddp unused=1 buckets=1", 2)),
    equal("acclaunch.torch", S("plain decay=one"), S("acc decay=one", 2)),
    equal("acclaunch.torch, optimizer of torch", S("plain decay=one"), S("acc decay=torch", 2)),
]
