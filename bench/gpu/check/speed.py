# SPDX-License-Identifier: Apache-2.0
"""Speed measurements, each next to its peer's in the same run on the same GPU."""
import array
import json
import math
import os
import pathlib
import random
import statistics
import tempfile

from . import formulas, trace
from .numbers import NCCL_SHARING, NCCL_VARIABLES
from .runner import Skipped, StepFailed, last_json, succeed

SIZES = {
    "gpt_124m": {"layers": 12, "heads": 12, "dim": 768, "vocab": 50304, "seq_len": 1024},
    "gpt_1.3b": {"layers": 24, "heads": 16, "dim": 2048, "vocab": 50304, "seq_len": 2048},
}
TINY = {"layers": 2, "heads": 2, "dim": 32, "vocab": 256, "seq_len": 64}
PEER_MODES = ("plain", "fsdp2", "fsdp2+compile", "compile")  # the longest compilation comes last
TUNED = {"TRAIN_GPT_TUNE": "1"}
WARMUP = 5  # steps that are not measured
UNITS_ALIVE = 2  # units gathered at the same time: the one in use and the prefetched one
GRADIENTS_IN_FLIGHT = 2  # units besides the root whose gradients are not reduced yet


def write_tokens(path, vocab, count=1 << 20):
    source = random.Random(1)
    numbers = array.array("H", (source.randrange(vocab) for _ in range(count)))
    pathlib.Path(path).write_bytes(numbers.tobytes())


def model_flags(model):
    return [word for key in ("layers", "heads", "dim", "vocab", "seq_len")
            for word in (f"--{key}", model[key])]


def gpt_command(places, model, micro_batch, folder, steps, workers=1, flags=()):
    return [places.program("acclaunch"), "--config_file", places.configs / "fsdp_full_shard.yaml",
            "--mixed_precision", "bf16", "--main_process_port", 0, "--num_processes", workers,
            *flags, places.program("train_gpt"), "--tokens", os.path.join(folder, "tokens.bin"),
            *model_flags(model), "--micro_batch", micro_batch, "--grad_clip", 1, "--steps", steps,
            "--metrics", os.path.join(folder, "metrics.jsonl")]


def read_metrics(folder):
    lines = pathlib.Path(folder, "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def run_gpt(places, clock, model, micro_batch, folder, steps, workers=1, variables=None):
    """Runs train_gpt. Returns (tokens/s of the median step, metrics of the last step)."""
    succeed(gpt_command(places, model, micro_batch, folder, steps, workers), clock,
            dict(places.environment(), **(variables or {})))
    lines = read_metrics(folder)
    counted = lines[WARMUP:] or lines[-1:]
    return statistics.median(line["tokens_per_s"] for line in counted), lines[-1]


def row(model, tokens_per_s, tflops, peak_bytes):
    return {"tokens_per_s": tokens_per_s,
            "mfu": formulas.mfu(model, tokens_per_s, tflops) if tflops else None,
            "peak_gib": round(peak_bytes / 2**30, 2) if peak_bytes else None}


def memory_over_formulas(model, last_line):
    """Peak memory over the formula for states plus the measured activations, less 1. For the states
    of one rank alone, and for those of a FULL_SHARD rank, which gathers units."""
    rank = last_line["ranks"][0]
    peak, activations = rank.get("device_peak_bytes"), rank.get("activation_bytes")
    if not peak or activations is None:
        return {}
    parameters = formulas.gpt_parameters(model)
    unit = formulas.block_parameters(model["dim"])
    root = parameters - model["layers"] * unit
    states = {"memory_over_formula":
              formulas.state_bytes("one_rank", parameters, 1,
                                   gradients=root + GRADIENTS_IN_FLIGHT * unit),
              "memory_over_full_shard":
              formulas.state_bytes("full_shard", parameters, 1, unit, UNITS_ALIVE)}
    return {name: peak / (nbytes + activations) - 1.0 for name, nbytes in states.items()}


class GptRuns:
    """Runs of one model with the same batch, by us and by PyTorch."""

    def __init__(self, places, clock, model, micro_batch, steps, tflops, folder):
        self.places, self.clock, self.model, self.folder = places, clock, model, folder
        self.micro_batch, self.steps, self.tflops = micro_batch, steps, tflops

    def ours(self, variables):
        """Runs train_gpt. Returns (table row, metrics of the last step)."""
        tokens_per_s, line = run_gpt(self.places, self.clock, self.model, self.micro_batch,
                                     self.folder, self.steps, variables=variables)
        peak_bytes = line["ranks"][0].get("device_peak_bytes")
        return row(self.model, tokens_per_s, self.tflops, peak_bytes), line

    def torch(self, mode, limit):
        ran = succeed([self.places.python, self.places.scripts / "torch_gpt.py", "--mode", mode,
                       *model_flags(self.model), "--micro_batch", self.micro_batch, "--steps",
                       self.steps, "--warmup", min(WARMUP, self.steps - 1)], self.clock,
                      limit=limit)
        result = last_json(ran.out)
        return row(self.model, result["tokens_per_s"], self.tflops, result.get("peak_bytes"))


def gpt(places, record, clock, name, facts, tiny):
    """Runs ours, then PyTorch's modes, then ours again, and ours without tuned GEMMs."""
    model = TINY if tiny else SIZES[name]
    steps = 2 if tiny else WARMUP + (15 if name == "gpt_124m" else 8)
    micro_batch = 1 if tiny else formulas.micro_batch(facts["memory_gib"] or 16, model)
    record.figure("micro_batch", micro_batch)
    record.figure("gflop_per_token", formulas.flops_per_token(model) / 1e9)
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << (14 if tiny else 20))
        runs = GptRuns(places, clock, model, micro_batch, steps, facts["peak_tflops"], folder)
        before = clock.left()
        ours, line = runs.ours(TUNED)
        seconds = before - clock.left()
        record.check("train_gpt trains in bf16", math.isfinite(line["loss"]))
        ours |= memory_over_formulas(model, line)
        record.figure("train_gpt", ours)
        if not tiny:
            torch_runs(runs, record, 2 * seconds + 10)
        if clock.left() > seconds:
            again = runs.ours(TUNED)[0]
            ours["spread"] = 1.0 - min(again["tokens_per_s"] / ours["tokens_per_s"],
                                       ours["tokens_per_s"] / again["tokens_per_s"])
            for key in ("tokens_per_s", "mfu"):
                ours[key] = ours[key] and (ours[key] + again[key]) / 2
        if clock.left() > seconds:
            record.figure("train_gpt, not tuned", runs.ours({"TRAIN_GPT_TUNE": "0"})[0])


def torch_runs(runs, record, reserve):
    """Speed of each PyTorch mode; a failed mode becomes a note. reserve: seconds of the step that
    are kept for our own runs."""
    if not runs.places.torch:
        record.note("no Python with torch was found, so there is no peer (give one with --python)")
        return
    for mode in PEER_MODES:
        try:
            record.figure(f"torch {mode}", runs.torch(mode, max(1, runs.clock.left() - reserve)))
        except StepFailed as error:
            record.note(f"torch {mode} was not measured: {error}")


def peak(places, record, clock, facts, tiny):
    """Peak rate used for MFU, and the rate that a large matrix product reaches here."""
    named, measured = facts["peak_tflops"], None
    if places.torch and not tiny:
        try:
            ran = succeed([places.python, places.scripts / "torch_peers.py", "matmul"], clock)
            measured = last_json(ran.out)["tflops"]
        except StepFailed as error:
            record.note(f"torch was not measured: {error}")
    if named is None and measured is None:
        raise Skipped("this GPU is not in the table of peak rates, and there is no torch to measure it")
    facts["peak_tflops"] = named or measured
    record.figure("peak_tflops", facts["peak_tflops"])
    record.figure("peak_from", "data sheet" if named else "matrix product")
    record.figure("matrix_product_tflops", measured)


def bench_lines(text):
    """{what: line} for a benchmark that prints one JSON object per line."""
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    return {line["what"]: line for line in lines}


def adamw(places, record, clock, standin, quick):
    """The runtime's loops, compared with the GPU's copy rate and torch's fused AdamW."""
    if standin:
        raise Skipped("device_bench measures real GPUs only")
    numel = 1 << (16 if quick else 28)
    ran = succeed([places.program("device_bench"), numel, 20], clock, places.environment())
    lines = bench_lines(ran.out)
    record.check("device_bench ran", "AdamW" in lines)
    for what, line in lines.items():
        record.figure(what, {key: line[key] for key in ("gb_per_s", "of_copy_rate")})
    record.figure("of_copy_rate", lines["AdamW with bfloat16 copy"]["of_copy_rate"])
    if places.torch and not quick:
        ran = succeed([places.python, places.scripts / "torch_peers.py", "adamw", "--numel", numel],
                      clock)
        record.figure("over_torch", last_json(ran.out)["adamw_s"] / lines["AdamW"]["median_s"])


def backends(nccl, gpus):
    """(name, variables) of the routes by which ranks on these GPUs can communicate."""
    ways = [("staged", {"ACC_COLLECTIVES": "staged"})]
    if nccl and (gpus > 1 or nccl >= NCCL_SHARING):
        shared = NCCL_VARIABLES if gpus < 2 else {}
        ways.append(("nccl", dict(shared, ACC_COLLECTIVES="nccl")))
    return ways


def overlap(places, record, clock, nccl, gpus, tiny):
    """FULL_SHARD on several ranks with ACC_TRACE: cost of communication and hidden share."""
    model = TINY if tiny else SIZES["gpt_124m"]
    workers = max(2, min(gpus, 8))
    shares = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << 14)
        for name, variables in backends(nccl, gpus):
            timeline = os.path.join(folder, name + ".json")
            speed, _ = run_gpt(places, clock, model, 1 if tiny else 8, folder,
                               2 if tiny else WARMUP + 5, workers,
                               dict(variables, ACC_SHARE_GPUS="1", ACC_TRACE=timeline))
            ranks = trace.overlap(trace.read_events(timeline))
            record.check(f"{name}: every rank has a timeline", len(ranks) == workers,
                         f"{len(ranks)} of {workers}")
            hidden = [rank["share"] for rank in ranks.values() if rank["share"] is not None]
            shares[name] = min(hidden, default=None)
            longest = {key: max((rank[f"{key}_us"] for rank in ranks.values()), default=0) / 1e3
                       for key in ("communication", "wait")}
            record.figure(name, {"ranks": workers, "tokens_per_s": speed,
                                 "hidden_share": shares[name],
                                 "communication_ms": longest["communication"],
                                 "wait_ms": longest["wait"]})
    record.figure("hidden_share_least", shares.get("nccl", shares.get("staged")))


def group_times(places, clock, variables, workers, nbytes, calls):
    """{collective: microseconds per call} of our groups."""
    ran = succeed([places.program("acclaunch"), "--use_fsdp", "--num_processes", workers,
                   "--main_process_port", 0, places.program("group_bench"), nbytes, nbytes, calls],
                  clock, dict(places.environment(), ACC_SHARE_GPUS="1", **variables))
    lines = [json.loads(line[line.index("{"):]) for line in ran.out.splitlines() if "{" in line]
    return {line["op"]: line["mean_us"] for line in lines}


def collectives(places, record, clock, nccl, gpus, tiny):
    """Our groups on device memory and, on two or more GPUs, NCCL through torch.distributed."""
    nbytes, calls, workers = (4096, 2, 2) if tiny else (64 << 20, 20, max(2, min(gpus, 8)))
    record.figure("bytes", nbytes)
    for name, variables in backends(nccl, gpus):
        times = group_times(places, clock, variables, workers, nbytes, calls)
        record.check(f"{name}: all_gather, reduce_scatter and all_reduce", len(times) == 3)
        record.figure(f"{name}, {workers} ranks", {f"{op}_us": us for op, us in times.items()})
    if gpus < 2 or not places.torch or tiny:
        record.note("raw NCCL is measured only on two or more GPUs with torch")
        return
    ran = succeed([places.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
                   workers, places.scripts / "torch_peers.py", "collectives", "--bytes", nbytes,
                   "--calls", calls], clock)
    record.figure(f"raw NCCL, {workers} ranks",
                  {f"{op}_us": us for op, us in last_json(ran.out).items()})
