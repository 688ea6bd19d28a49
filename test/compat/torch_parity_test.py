# SPDX-License-Identifier: Apache-2.0
"""torch_parity_test.py ACCLAUNCH PACKAGE [TRAIN_TORCH]: examples/python/train_gpt.py, or the C++ program
train_torch, on the data of test/data/parity_gpt, under every strategy, with 1, 2 and 4 workers, on one and two
machines. Losses, norms and weights must be those of PyTorch in double precision. Exits with 77 without
torch."""

import contextlib
import gc
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "support"))
from ports import reserved_port  # noqa: E402

try:
    import numpy
    import torch
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

ROOT = pathlib.Path(__file__).absolute().parents[2]
DATA = ROOT / "test" / "data" / "parity_gpt"
# Limits of a loss, a norm (relative) and a weight: of the README of the data, and of bf16.
LIMITS = {"no": (2e-5, 1e-4, 5e-4), "bf16": (3e-3, 2e-2, 2e-2), "fp16": (1e-3, 5e-3, 1e-2)}
# Of the strategies; precision_test has all of them in each.
PRECISIONS = {"NO_SHARD": ("no", "bf16"), "FULL_SHARD": tuple(LIMITS)}
STRATEGIES = ("NO_SHARD", "SHARD_GRAD_OP", "FULL_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")


def expect_equal(folder, precision, what):
    """Compares the losses, norms and weights of a run."""
    expected = json.loads((DATA / "losses.json").read_text())["single_fp64"]
    found = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert len(found) == 20
    of_loss, of_norm, of_weight = LIMITS[precision]
    for step, each in enumerate(found):
        loss, norm = expected["loss"][step], expected["grad_norm"][step]
        assert abs(each["loss"] - loss) <= of_loss, (what, each, loss)
        assert abs(each["grad_norm"] - norm) <= of_norm * norm, (what, each, norm)
    final = load_file(folder / "weights.safetensors")
    for name, value in load_file(DATA / "final.safetensors").items():
        difference = (final[name] - value).abs().max().item()
        assert difference <= of_weight, (what, name, difference)


def arguments(folder, tokens):
    return ["--tokens", str(tokens), "--init_from", str(DATA / "init.safetensors"), "--steps", "20",
            "--metrics", str(folder / "metrics.jsonl"), "--export", str(folder / "weights.safetensors")]


def train(folder, precision, what):
    """One run of the example in this process; rank 0 compares."""
    import train_gpt

    sys.argv = ["train_gpt.py", *arguments(folder, DATA / "tokens.npy")]
    with contextlib.redirect_stdout(io.StringIO()):
        train_gpt.main()
    gc.collect()
    if int(os.environ.get("RANK", 0)) == 0:
        expect_equal(folder, precision, what)


def runs_of(kind):
    """Pairs of strategy and precision. kind: "strategies": all of FSDP; "machines": those that differ on several
    machines; "alone": those that differ on one machine; "float32": these in one precision."""
    kinds = {"strategies": STRATEGIES, "machines": STRATEGIES[1:4], "alone": ("NO_SHARD", "FULL_SHARD"),
             "float32": ("NO_SHARD", "FULL_SHARD")}
    for strategy in kinds[kind]:
        for precision in ("no",) if kind == "float32" else PRECISIONS.get(strategy, ("no",)):
            yield strategy, precision


def worker(kind, folder):
    """kind: of `runs_of`, or "config": as the launcher configures it."""
    sys.path.append(str(ROOT / "examples" / "python"))
    torch.set_num_threads(1)
    folder = pathlib.Path(folder)
    if kind == "config":
        train(folder, "no", kind)
    else:
        for strategy, precision in runs_of(kind):
            os.environ |= {"FSDP_SHARDING_STRATEGY": strategy,
                           "ACCELERATE_MIXED_PRECISION": precision}
            train(folder, precision, (strategy, precision))
    print("equal", flush=True)


def main():
    acclaunch, package, *program = sys.argv[1:]
    config = ["--config_file"]
    port = ["--main_process_port", str(reserved_port())]
    fsdp = ["--use_fsdp", "--fsdp_sync_module_states", "true"]
    jobs = [(kind, workers, [[*fsdp, "--num_processes", str(workers)]]) for kind, workers in (
        (("strategies", 2), ("float32", 4)) if program else (("alone", 1), ("strategies", 2), ("float32", 4)))]
    jobs += [("config", workers, [[*config, str(ROOT / "configs" / f"{name}.yaml"),
                                   "--num_processes", str(workers)]])
             for name, workers in (("zero1", 2), ("zero3_hpz", 4))]
    jobs += [("machines", 4, [[*fsdp, "--num_processes", "4", "--num_machines", "2",
                               "--rdzv_conf", "heartbeat_timeout=600",  # no machine is lost
                               "--main_process_ip", "127.0.0.1", *port, "--machine_rank", str(rank)]
                              for rank in range(2)])]
    for kind, workers, launchers in jobs:
        with tempfile.TemporaryDirectory() as folder:
            if program:
                run_program(acclaunch, program[0], kind, launchers, pathlib.Path(folder))
            else:
                outputs = run([[acclaunch, "--cpu", "--preload", "numpy,torch", *flags, os.path.abspath(__file__),
                                kind, folder] for flags in launchers],
                              {"PYTHONPATH": package, "PYTHON_EXEC": sys.executable})
                assert outputs.count("equal") == workers, outputs
    if program:
        expect_configs(acclaunch, program[0])


def expect_configs(acclaunch, program):
    """The program trains under every file of configs/."""
    for config in sorted((ROOT / "configs").glob("*.yaml")):
        output = run([[acclaunch, "--config_file", str(config), "--cpu", "--num_processes", "2", program,
                       "--data", str(ROOT / "README.md"), "--steps", "10"]], {"OMP_NUM_THREADS": "1"})
        assert "step 10, loss" in output, (config, output)


def run(commands, environment):
    """Runs launchers that form one job. Returns their output."""
    started = [subprocess.Popen(each, env=os.environ | environment, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, text=True) for each in commands]
    outputs = "\n".join(each.communicate(timeout=550)[0] for each in started)
    assert all(each.returncode == 0 for each in started), outputs
    return outputs


def run_program(acclaunch, program, kind, launchers, folder):
    """One job for each strategy. Precisions of the others than FULL_SHARD are those of the runs in Python."""
    torch.save(torch.from_numpy(numpy.load(DATA / "tokens.npy")), folder / "tokens.pt")
    for strategy, precision in runs_of(kind) if kind != "config" else [(None, "no")]:
        if precision != "no" and (kind, strategy) != ("strategies", "FULL_SHARD"):
            continue
        own = [] if strategy is None else ["--fsdp_sharding_strategy", strategy, "--mixed_precision",
                                           precision]
        what = strategy, precision, launchers
        output = run([[acclaunch, "--cpu", *flags, *own, program,
                       *arguments(folder, folder / "tokens.pt")] for flags in launchers],
                     {"OMP_NUM_THREADS": "1"})
        assert "step 20, loss" in output, output
        expect_equal(folder, precision, what)


if __name__ == "__main__":
    worker(*sys.argv[1:]) if "RANK" in os.environ else main()
