# SPDX-License-Identifier: Apache-2.0
"""The set `speed`: measurements, each next to its peer's in the same run on the same GPU."""
import array
import csv
import json
import math
import os
import pathlib
import random
import statistics
import tempfile

from . import formulas
from .runner import Skipped, StepFailed, TimedOut, json_of, last_json

SIZES = {
    "gpt_124m": {"layers": 12, "heads": 12, "dim": 768, "vocab": 50304, "seq_len": 1024},
    "gpt_1.3b": {"layers": 24, "heads": 16, "dim": 2048, "vocab": 50304, "seq_len": 2048},
}
FULL_MICRO_BATCH = {"gpt_124m": 64, "gpt_1.3b": 8}  # if the GPU's memory suffices
SMALL_MICRO_BATCHES = (4, 1)
TINY = {"layers": 2, "heads": 2, "dim": 32, "vocab": 256, "seq_len": 64}
SDPA = ("flash", "cudnn", "efficient")
TUNED = {"TRAIN_GPT_TUNE": "1"}
GRAPHS = {"TRAIN_GPT_GRAPHS": "1"}
FP8_CAPABILITY = (8, 9)
WARMUP = 5  # steps that are not measured
UNITS_ALIVE = 2  # units gathered at the same time: the one in use and the prefetched one
GRADIENTS_IN_FLIGHT = 2  # units besides the root whose gradients are not reduced yet
PEAK_SIZE = 8192
RESUME_TOLERANCE = 1e-3  # of losses in bf16
PROFILED_LAYERS = 2  # kernels of further layers are the same
OFFLOADED = ("--offload_optimizer_device", "cpu", "--offload_param_device", "cpu")
LARGE = {"heads": 32, "dim": 4096, "vocab": 50304, "seq_len": 1024}  # as many layers as it takes
LARGE_OVER_GPU = 1.1  # states of the large model over the GPU's memory
HOST_BYTES = 18  # per parameter, if states and gradients are offloaded
NCU_METRICS = {"gpu__time_duration.sum": "seconds", "dram__bytes_read.sum": "bytes_read",
               "dram__bytes_write.sum": "bytes_written"}


def write_tokens(path, vocab, count=1 << 20):
    source = random.Random(1)
    numbers = array.array("H", (source.randrange(vocab) for _ in range(count)))
    pathlib.Path(path).write_bytes(numbers.tobytes())


def model_flags(model):
    return [word for key in ("layers", "heads", "dim", "vocab", "seq_len")
            for word in (f"--{key}", model[key])]


def gpt_command(places, model, micro_batch, folder, steps, workers=1,
                launch=("fsdp_full_shard.yaml",), program=(), flags=(), precision="bf16"):
    """launch: configuration and further flags of acclaunch; program: one that runs train_gpt;
    flags: of train_gpt."""
    config, *more = launch
    return [*places.launcher(config, workers, *more, "--mixed_precision", precision), *program,
            places.program("train_gpt"), "--tokens", os.path.join(folder, "tokens.bin"),
            *model_flags(model), "--micro_batch", micro_batch,
            "--grad_clip", 1, "--steps", steps, "--metrics", os.path.join(folder, "metrics.jsonl"),
            *flags]


def run_gpt(places, step, model, micro_batch, folder, steps, variables=None, **more):
    """Runs train_gpt. Returns (tokens/s of the median step, metrics of all steps)."""
    step.succeed(gpt_command(places, model, micro_batch, folder, steps, **more),
                 dict(places.environment(), **(variables or {})))
    text = pathlib.Path(folder, "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    counted = lines[WARMUP:] or lines[-1:]
    return statistics.median(line["tokens_per_s"] for line in counted), lines


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


def of_batch(name, micro_batch, full):
    return name if micro_batch == full else f"{name}, micro-batch {micro_batch}"


class GptRuns:
    """Runs of one model with the same batches, by us and by PyTorch."""

    def __init__(self, setup, step, model, steps, folder):
        self.setup, self.step, self.model = setup, step, model
        self.steps, self.folder = steps, folder

    def ours(self, micro_batch, variables, precision="bf16"):
        """Runs train_gpt. Returns (table row, metrics of the last step)."""
        tokens_per_s, lines = run_gpt(self.setup.places, self.step, self.model, micro_batch,
                                      self.folder, self.steps, variables=variables,
                                      precision=precision)
        peak_bytes = lines[-1]["ranks"][0].get("device_peak_bytes")
        return row(self.model, tokens_per_s, self.setup.peak_tflops, peak_bytes), lines[-1]

    def torch(self, mode, micro_batches, full, sdpa="auto"):
        """Measures PyTorch, one figure per batch and back end as soon as it is there. Failures are
        notes, because they are the peer's."""
        self.modules(f"torch {mode}", mode, micro_batches, full, sdpa=sdpa)

    def package(self, mode, micro_batches, full):
        """Measures PyTorch's modules that the Python package shards."""
        places = self.setup.places
        self.modules(f"modules, {mode}", mode, micro_batches, full,
                     launch=places.launcher("fsdp_full_shard.yaml", 1, "--mixed_precision", "bf16"),
                     variables=places.environment())

    def modules(self, title, mode, micro_batches, full, launch=(), variables=None, sdpa="auto"):
        """Runs torch_gpt.py, started by the command `launch`."""
        def found(line):
            values = json_of(line)
            if values is None:
                return
            name = of_batch(title + ("" if values["sdpa"] == "auto" else
                                     f", SDPA {values['sdpa']}"), values["micro_batch"], full)
            if "error" in values:
                self.step.note(f"{name} was not measured: {values['error']}")
                return
            self.step.figure(name, row(self.model, values["tokens_per_s"],
                                       self.setup.peak_tflops, values.get("peak_bytes")))
        try:
            self.step.succeed([*launch, self.setup.places.python,
                               self.setup.places.scripts / "torch_gpt.py",
                               "--mode", mode, *model_flags(self.model), "--micro_batch",
                               ",".join(map(str, micro_batches)), "--sdpa", sdpa, "--steps",
                               self.steps, "--warmup", min(WARMUP, self.steps - 1), "--device",
                               "cpu" if self.setup.standin else "cuda"], variables, None, found)
        except (StepFailed, TimedOut) as error:
            self.step.note(f"{title}, SDPA {sdpa}: {error}")


def gpt(setup, step, name):
    """Runs ours and PyTorch's modes: the full micro-batch first, then small ones."""
    model = TINY if setup.tiny else SIZES[name]
    steps = 2 if setup.tiny else WARMUP + (15 if name == "gpt_124m" else 8)
    full = 2 if setup.tiny else min(FULL_MICRO_BATCH[name],
                                    formulas.micro_batch(setup.gpu.memory_gib or 16, model))
    small = [each for each in SMALL_MICRO_BATCHES if each < full]
    step.figure("micro_batch", full)
    step.figure("gflop_per_token", formulas.flops_per_token(model) / 1e9)
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"],
                     1 << (14 if setup.tiny else 20))
        runs = GptRuns(setup, step, model, steps, folder)
        ours, line = runs.ours(full, TUNED)
        step.check("train_gpt trains in bf16", math.isfinite(line["loss"]), f"loss {line['loss']}")
        ours |= memory_over_formulas(model, line)
        step.figure("train_gpt", ours)
        if setup.places.torch:
            for mode in ("plain",) if setup.standin else ("fsdp2+compile", "compile", "plain"):
                runs.torch(mode, [full], full)
            if not setup.standin:
                runs.package("acc+compile", [full], full)
        else:
            step.note("no Python with torch was found, so there is no peer (give one with "
                      "--python)")
        again = runs.ours(full, TUNED)[0]
        ours["spread"] = 1.0 - min(again["tokens_per_s"] / ours["tokens_per_s"],
                                   ours["tokens_per_s"] / again["tokens_per_s"])
        for key in ("tokens_per_s", "mfu"):
            ours[key] = ours[key] and (ours[key] + again[key]) / 2
        step.figure("train_gpt", ours)
        if setup.gpu.capability is None or tuple(setup.gpu.capability) >= FP8_CAPABILITY:
            step.figure("train_gpt, fp8", runs.ours(full, TUNED, "fp8")[0])
        else:
            step.note("fp8 was not measured: it needs compute capability 8.9")
        for micro_batch in small:
            step.figure(of_batch("train_gpt", micro_batch, full), runs.ours(micro_batch, TUNED)[0])
        for micro_batch in (full, *small[-1:]):
            step.figure(of_batch("train_gpt, CUDA graphs", micro_batch, full),
                        runs.ours(micro_batch, TUNED | GRAPHS)[0])
        if setup.places.torch:
            if not setup.standin:
                runs.package("acc", [full], full)
            runs.torch("fsdp2", [full], full)
            if not setup.standin:
                runs.torch("plain", [full], full, ",".join(SDPA))
            if small:
                runs.torch("plain", small, full)
        step.figure("train_gpt, fp16", runs.ours(full, TUNED, "fp16")[0])
        step.figure("train_gpt, not tuned", runs.ours(full, {"TRAIN_GPT_TUNE": "0"})[0])
        if setup.places.torch and small and not setup.standin:
            runs.torch("compile", small, full)


def peak(setup, step):
    """A large product in bf16 by us and by PyTorch, the runtime's loops next to a copy, and
    AdamW next to torch's fused one."""
    size = 64 if setup.tiny else PEAK_SIZE

    def found(line):
        values = json_of(line)
        if values is not None and "plain" in values["what"]:
            step.figure("product_tflops", values["tflops"])
    step.attempt("product of train_gpt", step.succeed,
                 [setup.places.program("kernel_bench"), "gemm", size, size, size,
                  1 if setup.tiny else 20, "head"],
                 dict(setup.places.environment(), **TUNED), None, found)
    measured = None
    if setup.places.torch and not setup.standin:
        ran = step.attempt("product of torch", step.succeed,
                           [setup.places.python, setup.places.scripts / "torch_peers.py", "matmul"])
        measured = last_json(ran.out)["tflops"] if ran else None
        step.figure("torch_product_tflops", measured)
    step.figure("peak_from", "data sheet" if setup.peak_tflops else "torch's product")
    setup.peak_tflops = setup.peak_tflops or measured
    step.figure("peak_tflops", setup.peak_tflops)
    if setup.standin:
        step.note("device_bench measures real GPUs only")
    else:
        adamw(setup, step)


def adamw(setup, step):
    numel = 1 << (17 if setup.tiny else 28)
    seen = {}

    def found(line):
        values = json_of(line)
        if values is not None:
            seen[values["what"]] = values
            step.figure(values["what"], {key: values[key] for key in ("gb_per_s", "of_copy_rate")})
    step.succeed([setup.places.program("device_bench"), numel, 20], setup.places.environment(),
                 on_line=found)
    step.check("device_bench ran", "AdamW" in seen)
    step.figure("of_copy_rate", seen["AdamW with bfloat16 copy"]["of_copy_rate"])
    if setup.places.torch:
        ran = step.succeed([setup.places.python, setup.places.scripts / "torch_peers.py", "adamw",
                            "--numel", numel])
        step.figure("over_torch", last_json(ran.out)["adamw_s"] / seen["AdamW"]["median_s"])


def kernels_of(text):
    """{kernel: {launches, seconds, bytes_read, bytes_written}} from ncu's CSV output, in which a
    line is a metric of a launch. The largest time first."""
    lines = text.splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        raise StepFailed("ncu printed no table\n" + text[-1500:])
    scale = {"nsecond": 1e-9, "ns": 1e-9, "usecond": 1e-6, "us": 1e-6, "msecond": 1e-3,
             "ms": 1e-3, "second": 1.0, "s": 1.0, "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6,
             "Gbyte": 1e9}
    kernels = {}
    for line in csv.DictReader(lines[begin:]):
        name = NCU_METRICS.get(line.get("Metric Name"))
        if name is None:
            continue
        kernel = line["Kernel Name"].removeprefix("void ").replace("<unnamed>::", "")
        kernel = kernel.split("<")[0].split("(")[0]
        values = kernels.setdefault(kernel, {"launches": 0, **dict.fromkeys(NCU_METRICS.values(),
                                                                            0.0)})
        values[name] += float(line["Metric Value"].replace(",", "")) * scale[line["Metric Unit"]]
        values["launches"] += name == "seconds"
    return dict(sorted(kernels.items(), key=lambda item: -item[1]["seconds"]))


def profile(setup, step):
    """Times and bytes of every kernel of two steps of a short model, by ncu."""
    if "ncu" not in setup.tools:
        raise Skipped("ncu was not found")
    model = dict(TINY if setup.tiny else SIZES["gpt_124m"], layers=PROFILED_LAYERS)
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << 16)
        tool = [setup.tools["ncu"]["path"], "--csv", "--clock-control", "none", "--metrics",
                ",".join(NCU_METRICS)]
        ran = step.run(gpt_command(setup.places, model, 1 if setup.tiny else 16, folder, 2,
                                   program=tool), setup.places.environment())
    if ran.status != 0:
        raise Skipped("ncu does not work here: " + ran.tail()[-500:])
    kernels = kernels_of(ran.out)
    total = sum(values["seconds"] for values in kernels.values())
    for kernel, values in kernels.items():
        nbytes = values["bytes_read"] + values["bytes_written"]
        step.figure(kernel, {"launches": values["launches"], "ms": values["seconds"] * 1e3,
                             "share": values["seconds"] / total, "gb": nbytes / 1e9,
                             "gb_per_s": nbytes / values["seconds"] / 1e9})
    step.check("ncu measured the steps", total > 0, f"{total * 1e3:.1f} ms in all kernels")


def offload(setup, step):
    """ZeRO 3 with optimizer and parameters in host memory, next to the same without; then a model
    that exceeds the GPU's memory."""
    name, model = ("tiny", TINY) if setup.tiny else ("gpt_1.3b", SIZES["gpt_1.3b"])
    peaks = {}
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << 16)
        for how, flags in (("on the GPU", []), ("offloaded", OFFLOADED)):
            tokens_per_s, lines = run_gpt(
                setup.places, step, model, 1 if setup.tiny else 8, folder,
                2 if setup.tiny else WARMUP + 3, launch=["zero3.yaml", *flags])
            peaks[how] = lines[-1]["ranks"][0].get("device_peak_bytes") or 0
            step.figure(f"{name}, {how}", row(model, tokens_per_s, setup.peak_tflops, peaks[how]))
    step.check("offload lowers the peak of GPU memory", peaks["offloaded"] < peaks["on the GPU"],
               f"{peaks['offloaded'] / 2**30:.2f} instead of {peaks['on the GPU'] / 2**30:.2f} GiB")
    if not setup.tiny:
        step.attempt("a model that exceeds the GPU's memory", offload_large, setup, step)


def host_memory_available():
    """Bytes, from /proc/meminfo."""
    lines = pathlib.Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")) * 1024


def offload_large(setup, step):
    """A model whose states exceed the GPU's memory trains with its states in host memory; without
    offload, the error says that memory is short."""
    model = dict(LARGE, layers=1)
    wanted = LARGE_OVER_GPU * setup.gpu.memory_gib * 2**30
    while formulas.state_bytes("one_rank", formulas.gpt_parameters(model), 1) < wanted:
        model["layers"] += 1
    needed, available = HOST_BYTES * formulas.gpt_parameters(model) * 1.1, host_memory_available()
    if needed > available:
        step.check("a model that exceeds the GPU's memory", None,
                   f"the host has {available / 2**30:.0f} GiB of free memory, the model needs "
                   f"{needed / 2**30:.0f} GiB")
        return
    name = f"{formulas.gpt_parameters(model) / 1e9:.2f} billion parameters"
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << 16)
        before = step.left()
        tokens_per_s, lines = run_gpt(setup.places, step, model, 8, folder, 4,
                                      launch=["zero3.yaml", *OFFLOADED])
        took = before - step.left()
        step.figure(f"{name}, offloaded",
                    {**row(model, tokens_per_s, setup.peak_tflops,
                           lines[-1]["ranks"][0].get("device_peak_bytes")),
                     "start_and_end_s": took - sum(line["step_s"] for line in lines)})
        losses = [line["loss"] for line in lines]
        step.check(f"{name}: it trains", all(map(math.isfinite, losses)), f"losses {losses}")
        ran = step.run(gpt_command(setup.places, model, 8, folder, 1, launch=["zero3.yaml"]),
                       setup.places.environment())
        step.check(f"{name}: without offload, the error says that memory is short",
                   ran.status != 0 and "out of memory (OOM)" in ran.out, ran.tail()[-500:])


def resume(setup, step):
    """Saves a checkpoint after half of the steps and resumes from it: the same losses as a run
    without interruption."""
    model = TINY if setup.tiny else SIZES["gpt_124m"]
    half = 2 if setup.tiny else 4
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"], 1 << 16)
        saved = os.path.join(folder, "saved")

        def run(steps, *flags):
            _, lines = run_gpt(setup.places, step, model, 2, folder, steps, flags=flags)
            return [line["loss"] for line in lines]
        whole = run(2 * half)
        before = step.left()
        first = run(half, "--save", saved)
        step.figure("run_and_save_s", before - step.left())
        nbytes = sum(path.stat().st_size for path in pathlib.Path(saved).rglob("*")
                     if path.is_file())
        step.figure("checkpoint_gib", nbytes / 2**30)
        before = step.left()
        second = run(2 * half, "--resume", saved)
        step.figure("load_and_run_s", before - step.left())
    parts = first + second[-half:]
    apart = max(abs(a - b) for a, b in zip(whole, parts)) if len(whole) == len(parts) else math.inf
    step.check("losses as without interruption", apart <= RESUME_TOLERANCE,
               f"at most {apart:.1e} apart")
