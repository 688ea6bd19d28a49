"""train_gpt in FULL_SHARD against PyTorch's FSDP2, FSDP1 and DDP: same model, fp32, one thread a worker.

    python bench/train.py [--bin build/release/bin] [--peers ../shared/peers] [--python PYTHON]
                          [--case large|small] [--rounds R] [--steps S] [--impls train_gpt,fsdp2,...]

PYTHON needs torch; PEERS holds fsdp_cpu_bench.py and gpt_model.py. Every round runs each
implementation once, one after the other, and measures the SGEMM rate of all cores together with
torch. Speeds are medians over the rounds of each run's median step. GFLOP/s count the matrix
products of forward and backward, attention in full, as gpt_model.step_flops does. Memory is the
peak of the sum of PSS over the workers, sampled in a run of its own.
"""
import argparse
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

ROOT = pathlib.Path(__file__).resolve().parent.parent
WARMUP = 3
CASES = {
    "large": dict(workers=2, layers=6, dim=512, heads=8, vocab=8192, seq=256, micro_batch=2),
    "small": dict(workers=4, layers=4, dim=256, heads=8, vocab=4096, seq=128, micro_batch=2),
}
PEER_STRATEGIES = {"fsdp2": "full", "fsdp1": "full", "ddp": "ddp"}
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


def flops_per_token(case):
    weights = case["layers"] * 12 * case["dim"] ** 2 + case["vocab"] * case["dim"]
    return 6.0 * weights + 12.0 * case["layers"] * case["seq"] * case["dim"]


def sgemm_rate(python):
    """GFLOP/s of one single-threaded process a core, all at once."""
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
    """Descendants that a launcher gave a rank."""
    found = []
    for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        try:
            environment = pathlib.Path(f"/proc/{child}/environ").read_bytes()
            if b"\0LOCAL_RANK=" in b"\0" + environment:
                found.append(child)
            else:
                found += workers_below(child)
        except OSError:
            continue  # ended meanwhile
    return found


def pss_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    return 0.0


class PeakMemory:
    """Highest sum of PSS over the workers of a launcher, sampled by a thread until `stop`."""

    def __init__(self, pid):
        self.pid, self.peak, self.ended = pid, 0.0, threading.Event()
        self.thread = threading.Thread(target=self.sample)
        self.thread.start()

    def sample(self):
        while not self.ended.wait(0.1):
            try:
                self.peak = max(self.peak, sum(map(pss_mib, workers_below(self.pid))))
            except OSError:
                continue  # a worker ended between the two reads

    def stop(self):
        self.ended.set()
        self.thread.join()
        return self.peak


def run(argv, with_memory, succeeded):
    """Standard output and, where asked for, the peak memory. Ends the bench unless `succeeded`."""
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    process = subprocess.Popen(argv, env=environment, text=True, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    memory = PeakMemory(process.pid) if with_memory else None
    output, errors = process.communicate()
    peak = memory.stop() if memory else None
    if not succeeded(process.returncode, output):
        sys.exit(f"{' '.join(argv)}\nended with {process.returncode}:\n{errors[:4000]}")
    return output, peak


def run_train_gpt(args, case, folder, with_memory):
    metrics = folder / "metrics.jsonl"
    argv = [args.bin / "acclaunch", "--config_file", ROOT / "configs" / "fsdp_full_shard.yaml",
            "--num_processes", case["workers"], "--num_cpu_threads_per_process", 1,
            args.bin / "train_gpt", "--tokens", folder / "tokens.bin", "--metrics", metrics,
            "--steps", WARMUP + args.steps, "--micro_batch", case["micro_batch"], "--grad_clip", 1,
            "--layers", case["layers"], "--dim", case["dim"], "--heads", case["heads"],
            "--vocab", case["vocab"], "--seq_len", case["seq"]]
    _, peak = run(list(map(str, argv)), with_memory, lambda code, _: code == 0)
    steps = [json.loads(line) for line in metrics.read_text().splitlines()]
    return statistics.median(step["tokens_per_s"] for step in steps[WARMUP:]), peak


def run_peer(args, case, impl, with_memory):
    argv = [args.python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node",
            case["workers"], args.peers / "fsdp_cpu_bench.py",
            "--impl", impl, "--strategy", PEER_STRATEGIES[impl], "--steps", args.steps,
            "--warmup", WARMUP, "--layers", case["layers"], "--dim", case["dim"],
            "--heads", case["heads"], "--vocab", case["vocab"], "--seq", case["seq"],
            "--micro-batch", case["micro_batch"]]
    # The figures are complete once they are printed, however the ranks end after that.
    output, peak = run(list(map(str, argv)), with_memory, lambda _, text: '{"impl"' in text)
    result = json.loads(next(line for line in output.splitlines() if line.startswith("{")))
    return result["tokens_per_s"], peak


def write_random_tokens(path, vocab):
    source = random.Random(1)
    path.write_bytes(array.array("H", (source.randrange(vocab) for _ in range(1 << 18))).tobytes())


def measure(args, name, case):
    speeds, memory, sgemm = collections.defaultdict(list), {}, []
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        write_random_tokens(folder / "tokens.bin", case["vocab"])

        def one(impl, with_memory):
            if impl == "train_gpt":
                return run_train_gpt(args, case, folder, with_memory)
            return run_peer(args, case, impl, with_memory)

        for impl in args.impls:
            memory[impl] = one(impl, True)[1]
        for _ in range(args.rounds):
            sgemm.append(sgemm_rate(args.python))
            for impl in args.impls:
                speeds[impl].append(one(impl, False)[0])
    report(name, case, args.impls, speeds, memory, statistics.median(sgemm))


def report(name, case, impls, speeds, memory, sgemm):
    sizes = ", ".join(f"{key} {value}" for key, value in case.items())
    print(f"\n{name}: {sizes}; SGEMM of all cores {sgemm:.1f} GFLOP/s")
    ours = statistics.median(speeds["train_gpt"])
    print(f"{'':<10} {'tokens/s':>9} {'GFLOP/s':>8} {'of SGEMM':>9} {'train_gpt is':>13}"
          f" {'PSS MiB':>8} {'train_gpt is':>13}")
    for impl in impls:
        speed = statistics.median(speeds[impl])
        gflops = speed * flops_per_token(case) / 1e9
        print(f"{impl:<10} {speed:9.0f} {gflops:8.1f} {gflops / sgemm:9.1%} {ours / speed:12.2f}x"
              f" {memory[impl]:8.0f} {memory['train_gpt'] / memory[impl]:12.2f}x", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--peers", type=pathlib.Path, default=ROOT.parent / "shared/peers")
    parser.add_argument("--python", default=os.environ.get("ACC_PEERS_PYTHON", sys.executable))
    parser.add_argument("--case", choices=CASES, help="by default both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--impls", default="train_gpt,fsdp2,fsdp1,ddp",
                        type=lambda text: text.split(","))
    args = parser.parse_args()
    if "train_gpt" not in args.impls:
        parser.error("--impls must name train_gpt, which the others are compared with")
    for name, case in CASES.items():
        if args.case in (None, name):
            measure(args, name, case)


if __name__ == "__main__":
    main()
