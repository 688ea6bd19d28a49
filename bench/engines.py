# SPDX-License-Identifier: Apache-2.0
"""Trains a tiny Llama of transformers by programs as users have them, each unchanged with torch's or DeepSpeed's engine
and with `--engine acc`: launches of both in turn, two workers with one thread each, on CPUs. Prints the median of the
times of steps, without the first ones of each launch, that of rank 0's CPU time in them, which other programs on the
machine hardly change, and ratios.

    python bench/engines.py [--cases fsdp2,trainer,lora,zero2,zero3] [--rounds 2] [--steps 8] [--acclaunch PROGRAM]

Needs torch, transformers, accelerate; peft for lora, deepspeed for zero2 and zero3. Accelerate does not shard on a CPU
without the engine acc, so that its engine in the cases trainer and lora is DDP.
"""
import argparse
import functools
import json
import os
import statistics
import sys
import tempfile
import time

from names import BIN, Options
from workers import found_by

FSDP = ["--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "TRANSFORMER_BASED_WRAP",
        "--fsdp_transformer_layer_cls_to_wrap", "LlamaDecoderLayer"]
WARMUP = 3
VOCABULARY, LENGTH, ROWS = 4096, 128, 2


def llama():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=256, intermediate_size=688, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=8, max_position_embeddings=LENGTH, use_cache=False))


def batches(steps, rank):
    import torch

    generator = torch.Generator().manual_seed(1000 + rank)
    for _ in range(steps):
        yield torch.randint(VOCABULARY, (ROWS, LENGTH), generator=generator)


class Clock:
    """times: of each step, and this process's CPU time in it, in seconds."""

    def __init__(self):
        self.times, self.began = [], None

    def begin(self):
        import torch.distributed as dist

        dist.barrier()
        self.began = time.perf_counter(), time.process_time()

    def end(self):
        self.times.append((time.perf_counter() - self.began[0], time.process_time() - self.began[1]))


def by_hand(steps, clock):
    import torch
    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo")
    model = llama()
    for layer in model.model.layers:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for batch in batches(steps, dist.get_rank()):
        clock.begin()
        loss = model(input_ids=batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.end()
    return loss.item()


def by_trainer(steps, clock):
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Steps(TrainerCallback):
        def on_step_begin(self, *_, **__):
            clock.begin()

        def on_step_end(self, *_, **__):
            clock.end()

    data = [{"input_ids": row, "labels": row} for batch in batches(2 * steps, 0) for row in batch]
    sharded = {"fsdp": "full_shard auto_wrap", "fsdp_config": {
        "fsdp_version": 2, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}}
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model=llama(), train_dataset=data, callbacks=[Steps()], args=TrainingArguments(
            output_dir=folder, per_device_train_batch_size=ROWS, max_steps=steps, save_strategy="no", report_to=[],
            use_cpu=True, disable_tqdm=True, logging_steps=1000, dataloader_pin_memory=False,
            **(sharded if os.environ.get("ACC_ENGINE") == "acc" else {})))
        return trainer.train().training_loss


def by_accelerate(steps, clock):
    import torch
    from accelerate import Accelerator
    from peft import LoraConfig, get_peft_model

    accelerator = Accelerator()
    model = get_peft_model(llama(), LoraConfig(r=8, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad], lr=1e-4)
    model, optimizer = accelerator.prepare(model, optimizer)
    for batch in batches(steps, accelerator.process_index):
        clock.begin()
        loss = model(input_ids=batch, labels=batch).loss
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        clock.end()
    return loss.item()


def by_deepspeed(stage, steps, clock):
    import deepspeed
    import torch
    import torch.distributed as dist

    model = llama()
    config = {"train_micro_batch_size_per_gpu": ROWS, "gradient_clipping": 1.0,
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    engine, *_ = deepspeed.initialize(model=model, config=config,
                                      optimizer=torch.optim.AdamW(model.parameters(), lr=1e-4))
    for batch in batches(steps, dist.get_rank()):
        clock.begin()
        loss = engine(input_ids=batch, labels=batch).loss
        engine.backward(loss)
        engine.step()
        clock.end()
    return loss.item()


# By case: the peer, flags of the launcher, and the program.
CASES = {
    "fsdp2": ("FSDP2", [], by_hand),
    "trainer": ("DDP", [], by_trainer),
    "lora": ("DDP", FSDP, by_accelerate),
    "zero2": ("DeepSpeed", [], functools.partial(by_deepspeed, 2)),
    "zero3": ("DeepSpeed", [], functools.partial(by_deepspeed, 3)),
}


def worker(case, steps):
    clock = Clock()
    loss = CASES[case][2](steps, clock)
    if os.environ["RANK"] == "0":
        print(json.dumps({"times": clock.times[WARMUP:], "loss": loss}), flush=True)


def run(args, case, engine):
    flags = ["--engine", "acc"] if engine == "acc" else []
    command = [args.acclaunch, "--cpu", "--num_processes", "2", "--main_process_port", "0", *flags, *CASES[case][1],
               sys.executable, os.path.abspath(__file__), "--worker", case, "--steps", str(args.steps + WARMUP)]
    return found_by(command, args.acclaunch, DS_ACCELERATOR="cpu")


def main():
    parser = Options(__doc__, acclaunch=str(BIN / "acclaunch"), cases=list(CASES), rounds=2, steps=8)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        worker(args.worker, args.steps)
        return
    print(f"2 workers, {ROWS} x {LENGTH} tokens each; {args.rounds} launches of each engine in turn, "
          f"{args.steps} steps")
    for case in args.cases:
        times, losses = {"peer": [], "acc": []}, {}
        for _ in range(args.rounds):
            for engine, found in times.items():
                result = run(args, case, engine)
                found += result["times"]
                losses[engine] = result["loss"]
        for number, what in enumerate(("time", "CPU time")):
            peer, own = (statistics.median(each[number] for each in found) for found in times.values())
            print(f"{case:8} {what:8} {CASES[case][0]:9} {1e3 * peer:7.1f} ms  engine acc {1e3 * own:7.1f} ms  "
                  f"{peer / own:5.2f} x", flush=True)
        print(f"{case:8} losses {abs(losses['peer'] - losses['acc']):.1e} apart", flush=True)


if __name__ == "__main__":
    main()
