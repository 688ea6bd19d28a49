# SPDX-License-Identifier: Apache-2.0
"""Checks of losses against PyTorch's recorded run and against the CPU back end."""
import concurrent.futures
import json
import os
import pathlib
import shutil
import tempfile

from .runner import Skipped, StepFailed, run, succeed

ROWS = 8  # sequences per global batch of the parity set
STEPS = 20  # steps of the parity set; fewer on stand-ins
FEW_STEPS = 2
FP32_TOLERANCE = 2e-5  # largest difference of a step's loss from the double-precision run
BF16_TOLERANCE = 0.02
OFFLOADS = {
    "fsdp_full_shard, parameters offloaded": ("fsdp_full_shard", ["--fsdp_offload_params", "true"]),
    "zero2, optimizer offloaded": ("zero2", ["--offload_optimizer_device", "cpu"]),
    "zero3, optimizer and parameters offloaded":
        ("zero3", ["--offload_optimizer_device", "cpu", "--offload_param_device", "cpu"]),
}
TEST_SECONDS = 60  # limit per test binary
PEER_SECONDS = 30  # timeout of collectives, after which a rank names the missing one
NCCL_SHARING = 23000  # the first NCCL that lets ranks share a GPU
# NCCL's kernels of all ranks must fit on the GPU at the same time.
NCCL_VARIABLES = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}


def parity_command(places, config, workers, metrics, flags=(), program=(), steps=STEPS):
    return [places.program("acclaunch"), "--config_file", places.configs / config,
            "--main_process_port", 0, *flags, "--num_processes", workers, *program,
            places.program("train_gpt"), "--batches", places.data / "tokens.npy",
            "--init_from", places.data / "init.safetensors", "--layers", 2, "--heads", 4,
            "--dim", 64, "--seq_len", 64, "--vocab", 256, "--micro_batch", ROWS // workers,
            "--lr", "1e-3", "--betas", "0.9,0.95", "--eps", "1e-8", "--weight_decay", "0.1",
            "--grad_clip", "1.0", "--steps", steps, "--metrics", metrics]


def read_losses(path):
    return [json.loads(line)["loss"] for line in pathlib.Path(path).read_text().splitlines()]


def expected_losses(places):
    return json.loads((places.data / "losses.json").read_text())["single_fp64"]["loss"]


def most_apart(a, b):
    """Largest difference of two runs' losses; infinite if their lengths differ."""
    if len(a) != len(b) or not a:
        return float("inf")
    return max(abs(x - y) for x, y in zip(a, b))


def losses(places, clock, config, workers, steps, flags=(), variables=None):
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        environment = dict(places.environment(), ACC_SHARE_GPUS="1",
                           ACC_COLLECTIVE_TIMEOUT=300 if places.standin else PEER_SECONDS,
                           **(variables or {}))
        succeed(parity_command(places, config, workers, metrics, flags, steps=steps), clock,
                environment)
        return read_losses(metrics)


def parity(places, record, clock, tiny):
    """Compares the losses of one rank in fp32 and bf16."""
    steps = FEW_STEPS if tiny else STEPS
    reference = expected_losses(places)[:steps]
    for precision, tolerance in (("no", FP32_TOLERANCE), ("bf16", BF16_TOLERANCE)):
        flags = ["--mixed_precision", precision]
        name = {"no": "fp32", "bf16": "bf16"}[precision]
        ours = losses(places, clock, "fsdp_full_shard.yaml", 1, steps, flags)
        cpu = losses(places, clock, "fsdp_full_shard.yaml", 1, steps, ["--cpu", *flags])
        for other, values in (("PyTorch's fp64 run", reference), ("the CPU back end", cpu)):
            apart = most_apart(ours, values)
            record.check(f"{name} losses of {other}", apart <= tolerance,
                         f"at most {apart:.1e} apart, allowed {tolerance:.0e}")


def cases(places, most_ranks, has_offloads):
    """Lists the runs as (name, configuration, ranks, flags)."""
    found = []
    for path in sorted(places.configs.glob("*.yaml")):
        for workers in (2, 4) if most_ranks >= 4 else (2,):
            found.append((f"{path.stem}, {workers} ranks", path.name, workers, []))
    if has_offloads:
        found += [(f"{name}, 2 ranks", config + ".yaml", 2, flags)
                  for name, (config, flags) in OFFLOADS.items()]
    return found


def strategies(places, record, clock, variables, most_ranks, has_offloads, tiny):
    """Runs every configuration with ranks that share the GPU, several runs at the same time."""
    steps = FEW_STEPS if tiny else STEPS
    reference = expected_losses(places)[:steps]

    def one(case):
        _, config, workers, flags = case
        return most_apart(losses(places, clock, config, workers, steps, flags, variables),
                          reference)

    jobs = max(1, min(4, len(os.sched_getaffinity(0)) // 3))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = [(case, pool.submit(one, case))
                   for case in cases(places, most_ranks, has_offloads)]
        for case, future in running:
            try:
                apart = future.result()
                record.check(case[0], apart <= FP32_TOLERANCE, f"losses at most {apart:.1e} apart")
            except StepFailed as error:
                record.check(case[0], False, str(error))


def strategies_staged(places, record, clock, tiny):
    strategies(places, record, clock, {"ACC_COLLECTIVES": "staged"}, 4, True, tiny)


def strategies_nccl(places, record, clock, nccl, gpus, tiny):
    if nccl is None:
        raise Skipped("no libnccl.so.2 was found; give its folder with --nccl")
    can_share = nccl >= NCCL_SHARING
    if gpus < 2 and not can_share:
        raise Skipped(f"NCCL {nccl // 10000}.{nccl // 100 % 100} does not let ranks share a GPU, "
                      "2.30 does; give the folder of a newer one with --nccl")
    variables = NCCL_VARIABLES if can_share and gpus < 4 else {}
    strategies(places, record, clock, dict(variables, ACC_COLLECTIVES="nccl"),
               4 if can_share else gpus, False, tiny)


def tests(places, record, clock):
    """Runs the binaries of the tests labelled gpu directly, because there may be no ctest."""
    found = places.gpu_tests()
    if not found:
        raise StepFailed(f"{places.bin}/gpu_tests.txt lists no gpu test")
    environment = dict(places.environment(), ACC_TEST_DATA=str(places.data.parent))
    for program in found:
        try:
            ran = run([program], clock, environment, TEST_SECONDS)
        except StepFailed as error:
            record.check(program.name, False, str(error))
            continue
        detail = f"{ran.seconds:.1f} s" if ran.status in (0, 77) else ran.tail()
        record.check(program.name + (" (skipped itself)" if ran.status == 77 else ""),
                     ran.status in (0, 77), detail)


def find_sanitizer():
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    return shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer",
                                                             path=os.path.join(toolkit, "bin"))


def sanitizer(places, record, clock, standin):
    """Runs two bf16 steps, including the launcher, under compute-sanitizer's memcheck."""
    if standin:
        raise Skipped("compute-sanitizer works on real GPUs only")
    tool = find_sanitizer()
    if tool is None:
        raise Skipped("compute-sanitizer was not found")
    with tempfile.TemporaryDirectory() as folder:
        metrics = os.path.join(folder, "metrics.jsonl")
        command = parity_command(places, "fsdp_full_shard.yaml", 1, metrics,
                                 ["--mixed_precision", "bf16"],
                                 [tool, "--tool", "memcheck", "--report-api-errors", "no",
                                  "--error-exitcode", "9"], FEW_STEPS)
        ran = run(command, clock, places.environment())
    if "ERROR SUMMARY" not in ran.out + ran.err:
        raise Skipped("compute-sanitizer does not work here: " + ran.tail()[-300:])
    record.check("memcheck of two bf16 steps", ran.status == 0 and "ERROR SUMMARY: 0 errors" in ran.out + ran.err,
                 ran.tail()[-300:])
