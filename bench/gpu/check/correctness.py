# SPDX-License-Identifier: Apache-2.0
"""The set `correctness`: the tests, the losses, attention, matrix products, NVIDIA's sanitizers."""
import json
import os
import pathlib
import tempfile

from . import device
from .places import NCCL_SHARING, NCCL_VARIABLES
from .runner import Skipped, StepFailed, json_of

ROWS = 8  # sequences per global batch of the parity set
STEPS = 20  # steps of the parity set; fewer on stand-ins
FEW_STEPS = 2
FP32_TOLERANCE = 2e-5  # largest difference of a step's loss from the double-precision run
# (tolerance, configuration's flag) by precision. 16-bit losses may differ by their rounding.
PRECISIONS = {"fp32": (FP32_TOLERANCE, "no"), "bf16": (0.02, "bf16"), "fp16": (0.01, "fp16")}
TEST_SECONDS = 100  # limit per test program
PEER_SECONDS = 30  # timeout of collectives, after which a rank names the missing one
ATTENTION_SHAPES = [(8, 1024, 12, 64), (4, 2048, 16, 128), (64, 1024, 12, 64), (8, 2048, 16, 128),
                    (3, 1000, 12, 64)]  # batch, time, heads, channels per head
KERNEL_SHAPES = ATTENTION_SHAPES[-1:]  # also with the kernels, which use no tensor cores
PRODUCT_SIZES = {"124M": (16384, 768, 50304), "1.3B": (8192, 2048, 50304)}  # rows, dim, vocabulary
PRODUCT_ERROR = 0.01  # of bf16, relative to fp32
FP8_ERRORS = (0.001, 0.08)  # of a layer in fp8, relative to bf16; less: it was computed in bf16
FP8_TOLERANCE = 0.05  # largest difference of a step's loss in fp8 from the one in bf16
ATTENTION_ERROR = 0.01  # relative to fp32, or twice that of PyTorch's best back end
TOOLS = ("memcheck", "racecheck", "synccheck", "initcheck")
# Programs and arguments for compute-sanitizer: single kernels, at sizes that it can run.
SANITIZED = {"the runtime's kernels": ["cuda_kernels_test"],
             "train_gpt's kernels": ["train_gpt_gpu_test", "--source-file=*/kernels_test.cpp"],
             "attention": ["train_gpt_gpu_test", "--source-file=*/attention_test.cpp",
                           "--test-case-exclude=*cuDNN*"]}  # synccheck stops cuDNN's own kernels


def parity_command(places, config, workers, metrics, flags=(), steps=STEPS):
    return [*places.launcher(config, workers, *flags),
            places.program("train_gpt"), "--batches", places.data / "tokens.npy",
            "--init_from", places.data / "init.safetensors", "--layers", 2, "--heads", 4,
            "--dim", 64, "--seq_len", 64, "--vocab", 256, "--micro_batch", ROWS // workers,
            "--lr", "1e-3", "--betas", "0.9,0.95", "--eps", "1e-8", "--weight_decay", "0.1",
            "--grad_clip", "1.0", "--steps", steps, "--metrics", metrics]


def module_command(places, config, workers, metrics, flags=(), steps=STEPS):
    """Like parity_command, with a module of PyTorch that the Python package shards."""
    return [*places.launcher(config, workers, *flags),
            places.python, places.modules, "--tokens", places.data / "tokens.npy",
            "--init_from", places.data / "init.safetensors", "--layers", 2, "--heads", 4,
            "--dim", 64, "--positions", 64, "--vocab", 256, "--rows", ROWS,
            "--lr", "1e-3", "--grad_clip", "1.0", "--steps", steps, "--metrics", metrics]


def expected_losses(places):
    return json.loads((places.data / "losses.json").read_text())["single_fp64"]["loss"]


def most_apart(a, b):
    """Largest difference of two runs' losses; infinite if their lengths differ."""
    if len(a) != len(b) or not a:
        return float("inf")
    return max(abs(x - y) for x, y in zip(a, b))


def losses(setup, step, config, workers, steps, flags=(), variables=None, limit=None,
           command=parity_command):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        environment = dict(setup.places.environment(), ACC_SHARE_GPUS="1",
                           ACC_COLLECTIVE_TIMEOUT=300 if setup.standin else PEER_SECONDS,
                           **(variables or {}))
        step.succeed(command(setup.places, config, workers, metrics, flags, steps),
                     environment, limit)
        lines = pathlib.Path(metrics).read_text().splitlines()
    return [json.loads(line)["loss"] for line in lines]


def run_test(step, name, command, environment):
    ran = step.run(command, environment, TEST_SECONDS)
    detail = f"{ran.seconds:.1f} s" if ran.status in (0, 77) else ran.tail()
    step.check(name + (" (skipped itself)" if ran.status == 77 else ""), ran.status in (0, 77),
               detail)


def native_code(setup, step):
    """Checks with the toolkit's cuobjdump that kernels need no compilation at their first start."""
    dump = setup.tools.get("cuobjdump")
    if dump is None or setup.standin:
        return
    wanted = "sm_" + "".join(map(str, setup.gpu.capability or ()))
    for program in (setup.places.cuda_backend(), setup.places.program("train_gpt")):
        ran = step.run([dump["path"], "--list-elf", program], limit=20)
        step.check(f"{program.name} has code for {wanted}", wanted in ran.out)


def tests(setup, step):
    """Runs the programs of the tests labelled gpu directly, because there may be no ctest. With stand-ins ctest has run
    them; here one case of each shows that the bundle has what they need."""
    found = [each for each in setup.places.gpu_tests() if each.name != "cuda_nccl_test"]
    if not found:
        raise StepFailed(f"{setup.places.bin}/gpu_tests.txt lists no gpu test")
    environment = dict(setup.places.environment(), ACC_TEST_DATA=str(setup.places.data.parent))
    step.attempt("native code", native_code, setup, step)
    cases = ["--last=1"] if setup.standin else []
    for program in found:
        step.attempt(program.name, run_test, step, program.name, [program, *cases], environment)


def nccl(setup, step):
    """Runs the groups' tests with each NCCL: those of one rank, and on several GPUs or with a
    version that lets ranks share one, those of several ranks."""
    if not setup.places.all_nccl():
        raise Skipped("no libnccl.so.2 was found; give its folder with --nccl")
    for path in setup.places.all_nccl():
        version = device.nccl_version(path)
        variables = dict(setup.places.environment(), ACC_NCCL_LIBRARY=path)
        if version and version >= NCCL_SHARING:
            variables |= NCCL_VARIABLES
        step.note(f"NCCL {version}: {path}")
        program = setup.places.program("cuda_nccl_test")
        for what, arguments in (("one rank", ["--test-case=*on one rank*"]), ("all groups", [])):
            name = f"NCCL {version}, {what}"
            step.attempt(name, run_test, step, name, [program, *arguments], variables)


def parity(setup, step):
    """Compares the losses of one rank with PyTorch's and the CPU's in every precision, and those
    with CUDA graphs and in fp8 with those in bf16."""
    steps = FEW_STEPS if setup.tiny else STEPS
    reference = expected_losses(setup.places)[:steps]

    def compare(name, tolerance, flags):
        ours = losses(setup, step, "fsdp_full_shard.yaml", 1, steps, flags)
        apart = most_apart(ours, reference)
        step.check(f"{name} losses of PyTorch's fp64 run", apart <= tolerance,
                   f"at most {apart:.1e} apart, allowed {tolerance:.0e}")
        cpu = losses(setup, step, "fsdp_full_shard.yaml", 1, steps, ["--cpu", *flags])
        apart = most_apart(ours, cpu)
        step.check(f"{name} losses of the CPU back end", apart <= tolerance,
                   f"at most {apart:.1e} apart, allowed {tolerance:.0e}")

    def like_bf16(name, tolerance, flags, variables=None):
        expected = losses(setup, step, "fsdp_full_shard.yaml", 1, steps,
                          ["--mixed_precision", "bf16", "--deterministic"])
        ours = losses(setup, step, "fsdp_full_shard.yaml", 1, steps,
                      [*flags, "--deterministic"], variables)
        apart = most_apart(ours, expected)
        step.check(f"{name} losses of bf16", apart <= tolerance,
                   f"at most {apart:.1e} apart, allowed {tolerance:.0e}")

    for name, (tolerance, flag) in PRECISIONS.items():
        step.attempt(f"{name} losses", compare, name, tolerance, ["--mixed_precision", flag])
    step.attempt("losses with CUDA graphs", like_bf16, "CUDA graphs:", 0.0,
                 ["--mixed_precision", "bf16"], {"TRAIN_GPT_GRAPHS": "1"})
    fp8 = ["--mixed_precision", "fp8"]
    refused = step.attempt("fp8 losses", refusal, setup, step, fp8)
    if refused:
        step.note(f"fp8 is refused: {refused}")
    else:
        step.attempt("fp8 losses", like_bf16, "fp8", FP8_TOLERANCE, fp8)


def refusal(setup, step, flags):
    """The reason why train_gpt refuses to compute with these flags (exit status 2), or None."""
    with tempfile.TemporaryDirectory() as folder:
        ran = step.run(parity_command(setup.places, "fsdp_full_shard.yaml", 1,
                                      os.path.join(folder, "metrics.jsonl"), flags, 1),
                       setup.places.environment())
    lines = [line for line in ran.out.splitlines() if "train_gpt" in line]
    return (lines or [ran.tail()])[0] if ran.status == 2 else None


def attention(setup, step):
    """Compares attention, forward and backward, with PyTorch's back ends at real shapes."""
    if not setup.places.torch:
        raise Skipped("no Python with torch was found (give one with --python)")
    has_cudnn = setup.places.library("cudnn") is not None
    if not has_cudnn:
        step.note("no libcudnn.so.9 was found: only the kernels are compared")
    shapes = [(2, 48, 2, 64), (1, 70, 2, 128)] if setup.tiny else ATTENTION_SHAPES
    for shape in shapes:
        name = "x".join(map(str, shape))
        rows = {}
        ours = [*(["kernels"] if setup.tiny or shape in KERNEL_SHAPES else []),
                *(["cudnn"] if has_cudnn else [])]

        def found(line):
            values = json_of(line)
            if values is None:
                return
            rows[values.pop("impl")] = values
            step.figure(f"{name}, {list(rows)[-1]}", values)

        def compare():
            step.succeed([setup.places.python, setup.places.scripts / "torch_attention.py",
                          "--shape", ",".join(map(str, shape)), "--program",
                          setup.places.program("kernel_bench"), "--ours", ",".join(ours),
                          "--device", "cpu" if setup.standin else "cuda", "--repetitions",
                          1 if setup.tiny else 20], setup.places.environment(), 60, found)
            peers = [row for impl, row in rows.items() if not impl.startswith("acc")]
            for impl in (f"acc {choice}" for choice in ours):
                step.check(f"{name}, {impl} ran", impl in rows, "see the log")
                for part in ("out_error", "grad_error") if impl in rows else ():
                    allowed = max(ATTENTION_ERROR, 2 * min((row[part] for row in peers), default=0))
                    error = rows[impl][part]  # None: not a number
                    step.check(f"{name}, {impl}, {part}", error is not None and error <= allowed,
                               f"{error}, allowed {allowed:.4f}")
        step.attempt(name, compare)


def products(setup, step):
    """Every matrix product of a step with its epilogue: rate, and error relative to fp32. As
    cuBLASLt's first proposal, without fused epilogues, and tuned. Then the layers in fp8."""
    sizes = {"tiny": (64, 32, 128)} if setup.tiny else PRODUCT_SIZES
    for size, (rows, dim, vocab) in sizes.items():
        for how, variables in (("", {"TRAIN_GPT_FUSE": "gelu,bias"}),
                               (", not fused", {"TRAIN_GPT_FUSE": "none"}),
                               (", tuned", {"TRAIN_GPT_TUNE": "1"})):
            def found(line):
                values = json_of(line)
                if values is None:
                    return
                name = f"{size}, {values.pop('what')}{how}"
                step.figure(name, values)
                error = values["error"]
                step.check(name, error is not None and error <= PRODUCT_ERROR,
                           f"error {error}, {values['tflops']} TFLOP/s")
            step.attempt(f"products of {size}{how}", step.succeed,
                         [setup.places.program("kernel_bench"), "gemm", rows, dim, vocab,
                          1 if setup.tiny else 20],
                         dict(setup.places.environment(), **variables), None, found)
        step.attempt(f"fp8 layers of {size}", fp8_layers, setup, step, size, rows, dim)


def fp8_layers(setup, step, size, rows, dim):
    """Linear layers in fp8, forward and backward, with the rounding of their operands."""
    def found(line):
        values = json_of(line)
        if values is None:
            return
        name = f"{size}, {values.pop('what')}"
        step.figure(name, values)
        error = values["error"]
        least, most = FP8_ERRORS
        step.check(name, error is not None and least <= error <= most,
                   f"error {error}, {values['tflops']} TFLOP/s")
    ran = step.run([setup.places.program("kernel_bench"), "fp8", rows, dim,
                    1 if setup.tiny else 20], setup.places.environment(), None, found)
    if ran.status == 2:
        step.note("fp8 is refused: " + ran.tail())
    elif ran.status != 0:
        raise StepFailed(ran.tail())


def sanitize(setup, step, tool, target):
    program, *arguments = SANITIZED[target]
    ran = step.run([setup.tools["compute-sanitizer"]["path"], "--tool", tool,
                    "--error-exitcode", 9, *(["--report-api-errors", "no"]
                                             if tool == "memcheck" else []),
                    setup.places.program(program), *arguments],
                   dict(setup.places.environment(), ACC_TEST_DATA=str(setup.places.data.parent)))
    if "SUMMARY" not in ran.out:
        raise Skipped("compute-sanitizer does not work here: " + ran.tail()[-300:])
    step.check(f"{tool} of {target}", ran.status == 0, f"{ran.seconds:.0f} s" if ran.status == 0
               else ran.tail())


def sanitizers(setup, step):
    """Runs compute-sanitizer's tools on the tests of single kernels."""
    if setup.standin:
        raise Skipped("compute-sanitizer works on real GPUs only; the kernels run under the "
                      "compiler's sanitizers on the stand-ins")
    if "compute-sanitizer" not in setup.tools:
        raise Skipped("compute-sanitizer was not found")
    for tool in TOOLS:
        for target in SANITIZED:
            step.attempt(f"{tool} of {target}", sanitize, setup, step, tool, target)
