# SPDX-License-Identifier: Apache-2.0
"""train_gpt compared with PyTorch's FSDP2, FSDP1 and DDP: each strategy, fp32 and bf16, one thread per worker.

    python bench/train.py [--bin build/release/bin] [--peers ../shared/peers] [--python PYTHON]
                          [--case large|small] [--dtype fp32|bf16] [--strategies full,grad_op,ddp,hybrid]
                          [--rounds R] [--steps S] [--impls fsdp2,fsdp1,ddp,alone] [--no-memory]
                          [--record bench/results/train.json]

PYTHON needs torch; PEERS contains fsdp_cpu_bench.py and gpt_model.py. Every round runs each implementation
in each strategy once, one after the other, and measures the SGEMM rate of all cores together with torch.
"alone" is train_gpt as independent workers, one per core: the difference to it is the cost of
communication. Speeds are medians over the rounds of each run's median step. GFLOP/s count the matrix
products of forward and backward, with attention in full, as gpt_model.step_flops does. Memory is the peak
of the sum of PSS over the workers, sampled in a separate run.
"""
import array
import collections
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading

from gpu.check.formulas import flops_per_token
from launchers import kib
from names import BIN, PEERS as PEERS_FOLDER, PYTHON, ROOT, Options

WARMUP = 3
CASES = {
    "large": dict(workers=2, layers=6, dim=512, heads=8, vocab=8192, seq_len=256, micro_batch=2),
    "small": dict(workers=4, layers=4, dim=256, heads=8, vocab=4096, seq_len=128, micro_batch=2),
}
CONFIGS = {"full": "fsdp_full_shard", "grad_op": "fsdp_shard_grad_op", "ddp": "fsdp_no_shard",
           "hybrid": "fsdp_hybrid_shard"}
PEERS = {"fsdp2": ("full", "grad_op", "hybrid"), "fsdp1": tuple(CONFIGS), "ddp": ("ddp",)}
IMPLS = (*PEERS, "alone")
PRECISIONS = {"fp32": "no", "bf16": "bf16"}
SGEMM = """
import time, torch
torch.set_num_threads(1)
a, b, c = (torch.randn(2048, 2048) for _ in range(3))
torch.mm(a, b, out=c)
print("ready", flush=True)
input()
count, begin = 0, time.perf_counter()
while time.perf_counter() - begin < 1.5:
    torch.mm(a, b, out=c)
    count += 1
print(count * 2 * 2048**3 / (time.perf_counter() - begin) / 1e9)
"""


def sgemm_rate(python):
    """Returns the total GFLOP/s of single-threaded processes, one per core, running at the same time."""
    argv = [python, "-c", SGEMM]
    processes = [subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
                 for _ in os.sched_getaffinity(0)]
    for process in processes:
        process.stdout.readline()
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    return sum(float(process.communicate()[0]) for process in processes)


def workers_below(pid):
    """Returns the descendants of a launcher that have a rank."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes()
            if b"\0LOCAL_RANK=" in b"\0" + environment:
                found.append(child)
            else:
                found += workers_below(child)
        except OSError:
            continue  # the process has ended in the meantime
    return found


class PeakMemory:
    """Peak of the sum of PSS over the workers of a launcher, sampled by a thread until `stop`."""

    def __init__(self, pid):
        self.pid, self.peak, self.ended = pid, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        while not self.ended.wait(0.1):
            try:
                held = sum(kib(pid, "smaps_rollup", "Pss") for pid in workers_below(self.pid))
            except OSError:
                continue  # the launcher has ended in the meantime
            self.peak = max(self.peak, held / 1024)

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.peak


def run(argv, with_memory, succeeded):
    """Runs a command. Returns its stdout and, with with_memory, its peak memory. Exits if it failed."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    process = subprocess.Popen(argv, env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    memory = PeakMemory(process.pid) if with_memory else None
    output, errors = process.communicate()
    peak = memory.stop() if memory else None
    if not succeeded(process.returncode, output):
        sys.exit(f"{' '.join(argv)}\nended with {process.returncode}:\n{errors[:4000]}")
    return output, peak


def train_gpt_command(args, case, workers, strategy, dtype, folder, metrics):
    hybrid = ["--parallelism_config_dp_shard_size", workers // 2] if strategy == "hybrid" else []
    argv = [args.bin / "acclaunch", "--config_file", ROOT / "configs" / f"{CONFIGS[strategy]}.yaml",
            "--cpu", "--mixed_precision", PRECISIONS[dtype], *hybrid,
            "--num_processes", workers, "--num_cpu_threads_per_process", 1, "--main_process_port", 0,
            args.bin / "train_gpt", "--tokens", folder / "tokens.bin", "--metrics", metrics,
            "--steps", WARMUP + args.steps, "--micro_batch", case["micro_batch"], "--grad_clip", 1,
            "--layers", case["layers"], "--dim", case["dim"], "--heads", case["heads"],
            "--vocab", case["vocab"], "--seq_len", case["seq_len"]]
    return list(map(str, argv))


def median_rate(metrics):
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(step["tokens_per_s"] for step in steps[WARMUP:])


def run_train_gpt(args, case, strategy, dtype, folder, with_memory):
    metrics = folder / "metrics.jsonl"
    argv = train_gpt_command(args, case, case["workers"], strategy, dtype, folder, metrics)
    _, peak = run(argv, with_memory, lambda code, _: code == 0)
    return median_rate(metrics), peak


def run_alone(args, case, dtype, folder):
    """Returns the tokens/s of all cores together, with one worker per core and no communication."""
    cores = len(os.sched_getaffinity(0))
    metrics = [folder / f"alone{core}.jsonl" for core in range(cores)]
    jobs = [subprocess.Popen(train_gpt_command(args, case, 1, "ddp", dtype, folder, path),
                             stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
            for path in metrics]
    for job in jobs:
        _, errors = job.communicate()
        if job.returncode != 0:
            sys.exit(f"train_gpt alone ended with {job.returncode}:\n{errors[:4000]}")
    return sum(map(median_rate, metrics))


def peer_words(args, case, impl, strategy, dtype):
    """Returns the program of torch's rank and its arguments."""
    return [args.peers / "fsdp_cpu_bench.py", "--impl", impl, "--strategy", strategy, "--dtype", dtype,
            "--steps", args.steps, "--warmup", WARMUP, "--layers", case["layers"], "--dim", case["dim"],
            "--heads", case["heads"], "--vocab", case["vocab"], "--seq", case["seq_len"],
            "--micro-batch", case["micro_batch"]]


def run_peer(args, case, impl, strategy, dtype, with_memory):
    argv = [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            case["workers"], *peer_words(args, case, impl, strategy, dtype)]
    # The results are complete once they are printed; the exit status of the ranks does not matter
    # then.
    output, peak = run(list(map(str, argv)), with_memory, lambda _, text: '{"impl"' in text)
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return result["tokens_per_s"], peak


def write_random_tokens(path, vocab):
    source = random.Random(1)
    path.write_bytes(array.array("H", (source.randrange(vocab) for _ in range(1 << 18))).tobytes())


def runs_of(args, case):
    """Returns pairs (implementation, strategy), acclaunch's first."""
    strategies = [name for name in args.strategies if name != "hybrid" or case["workers"] >= 4]
    runs = [("train_gpt", name) for name in strategies]
    for impl in args.impls:
        runs += [(impl, name) for name in PEERS.get(impl, ()) if name in strategies or impl == "ddp"]
    return runs + [("alone", "")] * ("alone" in args.impls)


def measure(args, name, case, dtype):
    speeds, memory, sgemm = collections.defaultdict(list), {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_random_tokens(folder / "tokens.bin", case["vocab"])

        def one(impl, strategy, with_memory):
            if impl == "train_gpt":
                return run_train_gpt(args, case, strategy, dtype, folder, with_memory)
            if impl == "alone":
                return run_alone(args, case, dtype, folder), None
            return run_peer(args, case, impl, strategy, dtype, with_memory)

        runs = runs_of(args, case)
        for each in runs:
            memory[each] = one(*each, True)[1] if args.memory and each[0] != "alone" else None
        for _ in range(args.rounds):
            sgemm.append(sgemm_rate(args.python))
            for each in runs:
                speeds[each].append(one(*each, False)[0])
    medians = {each: statistics.median(speeds[each]) for each in runs}
    report(name, case, dtype, runs, medians, memory, statistics.median(sgemm))
    return [{"case": name, "dtype": dtype, "impl": impl, "strategy": strategy, "tokens_per_s": round(speed)}
            for (impl, strategy), speed in medians.items()]


def report(name, case, dtype, runs, speeds, memory, sgemm):
    sizes = ", ".join(f"{key} {value}" for key, value in case.items())
    print(f"\n{name}, {dtype}: {sizes}; SGEMM of all cores {sgemm:.1f} GFLOP/s")
    print(f"{'':<10} {'strategy':<8} {'tokens/s':>9} {'GFLOP/s':>8} {'PSS MiB':>8}"
          "   train_gpt of the same strategy is")
    for impl, strategy in runs:
        speed, held = speeds[impl, strategy], memory[impl, strategy]
        print(f"{impl:<10} {strategy:<8} {speed:9.0f} {speed * flops_per_token(case) / 1e9:8.1f}"
              f" {held or 0:8.0f}   {compared(impl, strategy, runs, speeds, memory)}", flush=True)


def compared(impl, strategy, runs, speeds, memory):
    """Returns acclaunch's rates divided by this one's: for every strategy if this is DDP or "alone"."""
    if impl == "train_gpt":
        return ""
    ours = [each for each in runs if each[0] == "train_gpt"
            and (impl in ("ddp", "alone") or each[1] == strategy)]
    held = memory[impl, strategy]
    return ", ".join(f"{each[1]} {speeds[each] / speeds[impl, strategy]:.2f}x"
                     + (f" (memory {memory[each] / held:.2f}x)" if held else "") for each in ours)


def main():
    parser = Options(__doc__, bin=BIN, peers=PEERS_FOLDER, python=PYTHON, rounds=3, steps=12, strategies=list(CONFIGS),
                     impls=list(IMPLS))
    parser.add_argument("--case", choices=CASES, help="default: both")
    parser.add_argument("--dtype", choices=PRECISIONS, help="default: both")
    parser.add_argument("--no-memory", dest="memory", action="store_false")
    parser.add_argument("--record", type=pathlib.Path, help="file for the speeds, for bench/figures.py")
    args = parser.parse_args()
    speeds = []
    for name, case in CASES.items():
        for dtype in PRECISIONS:
            if args.case in (None, name) and args.dtype in (None, dtype):
                speeds += measure(args, name, case, dtype)
    if args.record:
        args.record.write_text("[\n" + ",\n".join(map(json.dumps, speeds)) + "\n]\n")


if __name__ == "__main__":
    main()
