# SPDX-License-Identifier: Apache-2.0
"""The set `ranks`: every strategy with several ranks that share the GPU."""
import concurrent.futures
import contextlib
import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

from . import trace
from .correctness import (FEW_STEPS, FP32_TOLERANCE, PRECISIONS, STEPS, expected_losses, losses,
                          module_command, most_apart, parity_command)
from .places import NCCL_SHARING, NCCL_VARIABLES, ROOT
from .runner import Skipped, StepFailed, TimedOut, json_of, last_json
from .speed import OFFLOADED, SIZES, TINY, WARMUP, run_gpt, write_tokens

OFFLOADS = {
    "fsdp_full_shard, parameters offloaded": ("fsdp_full_shard", ["--fsdp_offload_params", "true"]),
    "zero2, optimizer offloaded": ("zero2", ["--offload_optimizer_device", "cpu"]),
    "zero3, optimizer and parameters offloaded": ("zero3", OFFLOADED),
}
OVERLAP_BATCHES = (32, 64)  # sequences per rank
MPS = "nvidia-cuda-mps-control"
# Cases of test/compat/torch_modules.cpp whose arithmetic is the same on a GPU to rounding.
MODULE_CASES = ("embedding with a tied head", "a block used twice", "an unused unit", "units in units",
                "two losses, each with its backward", "frozen for a phase", "gradient accumulation",
                "no_sync", "checkpoint", "the meta device", "Adagrad of torch")
RUN_SECONDS = 45  # limit per run that hangs: above PEER_SECONDS, after which a rank is named


def cases(setup, most_ranks, has_offloads):
    """Lists the runs as (name, configuration, ranks, flags): two ranks of every configuration first, in a trial
    of the first two (the unit tests on stand-ins have all strategies)."""
    found = []
    for workers in (2, 4) if most_ranks >= 4 else (2,):
        for path in sorted(setup.places.configs.glob("*.yaml"))[:2 if setup.tiny else None]:
            found.append((f"{path.stem}, {workers} ranks", path.name, workers, []))
        if has_offloads and workers == 2:
            found += [(f"{name}, 2 ranks", config + ".yaml", 2, flags)
                      for name, (config, flags) in OFFLOADS.items()]
    return found


def strategies(setup, step, variables, most_ranks, has_offloads, command=parity_command):
    """Runs every configuration with ranks that share the GPU, several runs at the same time."""
    steps = FEW_STEPS if setup.tiny else STEPS
    reference = expected_losses(setup.places)[:steps]

    def one(case):
        _, config, workers, flags = case
        return most_apart(losses(setup, step, config, workers, steps, flags, variables,
                                 min(RUN_SECONDS, step.left()), command), reference)

    jobs = max(1, min(4, len(os.sched_getaffinity(0)) // 3))
    step.at_once = jobs > 1
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(one, case): case[0]
                   for case in cases(setup, most_ranks, has_offloads)}
        for future in concurrent.futures.as_completed(running):
            name = running[future]
            apart = step.attempt(name, future.result)
            if apart is not None:
                step.check(name, apart <= FP32_TOLERANCE, f"losses at most {apart:.1e} apart")


def strategies_staged(setup, step):
    strategies(setup, step, {"ACC_COLLECTIVES": "staged"}, 4, True)


def modules(setup, step):
    """Modules of PyTorch that the Python package shards, on one rank in every precision and on two
    ranks with every configuration: losses as in `parity`."""
    if not setup.places.torch or setup.standin:
        raise Skipped("needs a Python with torch for CUDA (give one with --python)")
    reference = expected_losses(setup.places)[:STEPS]
    for precision, (tolerance, flag) in PRECISIONS.items():
        name = f"fsdp_full_shard, 1 rank, {precision}"
        ours = step.attempt(name, losses, setup, step, "fsdp_full_shard.yaml", 1, STEPS,
                            ["--mixed_precision", flag], None, RUN_SECONDS, module_command)
        if ours is not None:
            apart = most_apart(ours, reference)
            step.check(name, apart <= tolerance, f"losses at most {apart:.1e} apart")
    _, variables = backends(setup)[0]
    strategies(setup, step, variables, 2, True, module_command)


def compile_modules(setup, step, program):
    """Compiles acc::torch and its test against this machine's LibTorch."""
    compiler = shutil.which("g++")
    if compiler is None:
        raise Skipped("needs g++, which compiles acc::torch against this machine's LibTorch")
    found = step.run([setup.places.python, "-c",
                      "import torch; print('LibTorch:', torch.__path__[0], torch.version.cuda)"])
    folder, cuda = (found.out.rpartition("LibTorch: ")[2].split() + ["", "None"])[:2]
    if found.status != 0 or cuda == "None":
        raise Skipped("needs a torch for CUDA")
    sources = [*sorted(ROOT.glob("runtime/torch/src/*.cpp")), ROOT / "test/compat/torch_modules.cpp"]
    flags = ["-std=c++20", "-O1", "-I", ROOT / "include", "-I", ROOT / "runtime/torch/include",
             "-isystem", f"{folder}/include", "-isystem", f"{folder}/include/torch/csrc/api/include"]
    compiling = " ".join(shlex.quote(str(word)) for word in [compiler, *flags, "-c"])
    libraries = [f"-L{each}" for each in (setup.places.bin.parent / "lib", f"{folder}/lib")]
    linking = [compiler, "-o", program, *(program.parent / f"{each.stem}.o" for each in sources), *libraries,
               *(each.replace("-L", "-Wl,-rpath,") for each in libraries), "-Wl,--no-as-needed",
               "-lacc_runtime", "-ltorch", "-ltorch_cpu", "-lc10"]
    for command in (["sh", "-c", f"cd {shlex.quote(str(program.parent))} && printf '%s\\0' \"$@\" | "
                     f"xargs -0 -n 1 -P {len(sources)} {compiling}", "compile", *sources], linking):
        ran = step.run(command)
        if ran.status != 0:
            raise StepFailed("acc::torch does not compile: " + ran.tail())


def libtorch(setup, step):
    """Modules of LibTorch that acc::torch shards, compared with plain LibTorch on the GPU."""
    if not setup.places.torch or setup.standin:
        raise Skipped("needs a Python with torch for CUDA (give one with --python)")
    _, variables = backends(setup)[0]
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "torch_modules"
        compile_modules(setup, step, program)
        for workers in (1, 2):
            ran = step.run([*setup.places.launcher("fsdp_full_shard.yaml", workers), program,
                            *MODULE_CASES], variables if workers > 1 else None)
            step.check(f"acc::torch, {workers} ranks", ran.status == 0 and "trained" in ran.out,
                       "losses, norms and weights as with plain LibTorch" if ran.status == 0 else ran.tail())


def nccl_variables(setup):
    """Variables of a run in which several ranks use NCCL. Raises Skipped if they cannot."""
    if setup.nccl is None:
        raise Skipped("no libnccl.so.2 was found; give its folder with --nccl")
    if setup.gpu.count < 2 and setup.nccl < NCCL_SHARING:
        raise Skipped(f"NCCL {setup.nccl // 10000}.{setup.nccl // 100 % 100} does not let ranks "
                      "share a GPU, 2.30 does; give the folder of a newer one with --nccl")
    shared = NCCL_VARIABLES if setup.nccl >= NCCL_SHARING and setup.gpu.count < 4 else {}
    return dict(shared, ACC_COLLECTIVES="nccl")


def strategies_nccl(setup, step):
    variables = nccl_variables(setup)
    strategies(setup, step, variables, 4 if setup.nccl >= NCCL_SHARING else setup.gpu.count, False)


def backends(setup):
    """(name, variables) of the routes by which ranks on these GPUs can communicate."""
    try:
        ways = [("nccl", nccl_variables(setup))]
    except Skipped:
        ways = []
    return [*ways, ("staged", {"ACC_COLLECTIVES": "staged"})]


@contextlib.contextmanager
def mps(setup):
    """Variables with which kernels of several processes run on one GPU at the same time, by NVIDIA's
    Multi-Process Service; without it they take turns. Empty where it is not needed or missing."""
    control = shutil.which(MPS) or shutil.which(MPS, path="/usr/local/nvidia/bin:/opt/bin")
    if setup.gpu.count > 1 or setup.standin or control is None:
        yield {}
        return
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}

        def ask(*flags, text=""):
            """True if the daemon did as it was told."""
            try:
                return subprocess.run([control, *flags], env={**os.environ, **variables},
                                      input=text, text=True, check=False, timeout=20,
                                      stdout=subprocess.DEVNULL).returncode == 0
            except (OSError, subprocess.SubprocessError):
                return False
        if not ask("-d"):
            yield {}
            return
        try:
            yield variables
        finally:
            ask(text="quit\n")


def overlap(setup, step):
    """FULL_SHARD on several ranks with ACC_TRACE: cost of communication and hidden share."""
    model = TINY if setup.tiny else SIZES["gpt_124m"]
    workers = max(2, min(setup.gpu.count, 8))
    shares = []
    with tempfile.TemporaryDirectory() as folder:
        write_tokens(os.path.join(folder, "tokens.bin"), model["vocab"],
                     1 << (14 if setup.tiny else 18))

        def measure(name, variables, batch):
            title = f"{name}, micro-batch {batch}"
            shares.append(step.attempt(f"{title}: timeline", traced, setup, step, title, variables,
                                       (model, workers, batch, folder)))
        ways = dict(backends(setup))
        for name, variables in ways.items():
            for batch in (1,) if setup.tiny else OVERLAP_BATCHES:
                measure(name, variables, batch)
        with mps(setup) as together:
            for batch in OVERLAP_BATCHES if together and "nccl" in ways else ():
                measure("nccl by MPS", dict(ways["nccl"], **together), batch)
    known = [share for share in shares if share is not None]
    step.figure("hidden_share_least", min(known, default=None))


def traced(setup, step, name, variables, run):
    """Records the figures of one route. Returns its smallest hidden share."""
    model, workers, batch, folder = run
    timeline = os.path.join(folder, name + ".json")
    steps = 2 if setup.tiny else WARMUP + 5
    speed, _ = run_gpt(setup.places, step, model, batch, folder, steps,
                       dict(variables, ACC_SHARE_GPUS="1", ACC_TRACE=timeline), workers=workers)
    events = trace.read_events(timeline)
    ended = len(trace.ends_of_steps(events, 0))
    step.check(f"{name}: {steps} steps in the timeline of rank 0", ended == steps, f"{ended}")
    ranks = trace.overlap(events, 0 if setup.tiny else WARMUP)
    step.check(f"{name}: every rank has a timeline", len(ranks) == workers,
               f"{len(ranks)} of {workers}")
    hidden = [rank["share"] for rank in ranks.values() if rank["share"] is not None]
    longest = {key: max((rank[f"{key}_us"] for rank in ranks.values()), default=0) / 1e3
               for key in ("communication", "wait")}
    step.figure(name, {"ranks": workers, "tokens_per_s": speed,
                       "hidden_share": min(hidden, default=None),
                       "communication_ms": longest["communication"], "wait_ms": longest["wait"]})
    return min(hidden, default=None)


def collectives(setup, step):
    """Our groups on device memory next to NCCL through torch.distributed."""
    nbytes, calls = (4096, 2) if setup.tiny else (64 << 20, 20)
    workers = max(2, min(setup.gpu.count, 8))
    step.figure("bytes", nbytes)

    def measure(name, variables):
        times = {}

        def found(line):
            values = json_of(line)
            if values is not None and "op" in values:
                times[f"{values['op']}_us"] = values["mean_us"]
                step.figure(f"{name}, {workers} ranks", dict(times))
        step.succeed([setup.places.program("acclaunch"), "--use_fsdp", "--num_processes", workers,
                      "--main_process_port", 0, setup.places.program("group_bench"), nbytes, nbytes,
                      calls], dict(setup.places.environment(), ACC_SHARE_GPUS="1", **variables),
                     None, found)
        step.check(f"{name}: all_gather, reduce_scatter and all_reduce", len(times) == 3)

    def measure_raw(name, variables):
        ran = step.succeed([setup.places.python, "-m", "torch.distributed.run", "--standalone",
                            "--nproc-per-node", workers, setup.places.scripts / "torch_peers.py",
                            "collectives", "--bytes", nbytes, "--calls", calls], variables)
        step.figure(f"{name}, {workers} ranks",
                    {f"{op}_us": us for op, us in last_json(ran.out).items()})

    with mps(setup) as together:
        how = " by MPS" if together else ""
        for name, variables in backends(setup):
            step.attempt(f"{name}{how}: collectives", measure, name + how,
                         dict(variables, **together))
        if not setup.places.torch or setup.tiny:
            step.note("raw NCCL was not measured: it needs a Python with torch for CUDA")
            return
        try:
            measure_raw("raw NCCL" + how, dict(raw_nccl_variables(setup), **together))
        except (StepFailed, TimedOut, Skipped) as error:
            step.note(f"raw NCCL was not measured: {error}")


def raw_nccl_variables(setup):
    """Variables with which torch uses the same NCCL as our groups. Its own libnccl.so.2, which is
    loaded by name, may not let ranks share a GPU."""
    if setup.gpu.count >= 2:
        return {}
    return dict(nccl_variables(setup), LD_PRELOAD=setup.places.library("nccl"))
