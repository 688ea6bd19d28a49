# SPDX-License-Identifier: Apache-2.0
"""A Llama of transformers with about a million parameters, loaded in bf16, and trained by DeepSpeed and FSDP as they are
and on the engine acc: where its trainings part (docs/precision.md).

    python bench/precision_experiment.py [--build build/release] [--out bench/results/precision_experiment.json]
        [--steps 100] [--keep FOLDER]

All begin with the same weights and see the same data, two ranks each. `acclaunch compare` records them, and compares each
pair. `bench/figures.py` draws the result, `--table` prints it as Markdown. Needs transformers and DeepSpeed.
"""
import argparse
import contextlib
import datetime
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

from names import ROOT, Options

# name: what trains, the engine
CONFIGURATIONS = {
    "DeepSpeed ZeRO 3": ("deepspeed", "torch"),
    "FSDP, weights as loaded": ("fsdp", "torch"),
    "FSDP, weights in fp32": ("fsdp_upcast", "torch"),
    "acc, DeepSpeed's program": ("deepspeed", "acc"),
    "acc, weights as loaded": ("fsdp", "acc"),
    "acc, weights in fp32": ("fsdp_upcast", "acc"),
}
RATE, ROWS, LENGTH, VOCABULARY = 3e-5, 8, 48, 512


# ---- a rank ------------------------------------------------------------------------------------------


def new_model():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=344, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=False))


def batch(step, rank, ranks):
    """Rows of a chain in which each word has two likely successors."""
    import torch
    source = random.Random(step)
    rows = []
    for _ in range(ROWS):
        words = [source.randrange(VOCABULARY)]
        while len(words) < LENGTH:
            likely = (words[-1] * 7 + source.randrange(2)) % VOCABULARY
            words.append(likely if source.random() < 0.9 else source.randrange(VOCABULARY))
        rows.append(words)
    return torch.tensor(rows[rank::ranks])


def train(folder, kind, steps):
    import torch
    import torch.distributed as dist
    from transformers import LlamaForCausalLM
    torch.set_num_threads(1)
    if kind == "deepspeed":
        import deepspeed
        deepspeed.utils.logger.setLevel("ERROR")
        if "deepspeed.comm.torch" in sys.modules:
            sys.modules["deepspeed.comm.torch"].build_shm_op = lambda: None  # compiles C++ code
    dist.init_process_group("gloo")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    loaded = str(next(model.parameters()).dtype)
    if kind == "fsdp_upcast":
        model.float()
    forward, update = (with_deepspeed if kind == "deepspeed" else with_fsdp)(model)
    for step in range(steps):
        ids = batch(step, dist.get_rank(), dist.get_world_size())
        update(forward(input_ids=ids, labels=ids).loss)
    if dist.get_rank() == 0:
        print("loaded", loaded, flush=True)
    dist.barrier()
    sys.stdout.flush()
    from acclaunch import _recorder
    _recorder._recorder.end("exit")
    os._exit(0)


def with_deepspeed(model):
    import deepspeed
    import torch
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=0.0, foreach=False), config={
            "train_micro_batch_size_per_gpu": ROWS // 2, "bf16": {"enabled": True}, "gradient_clipping": 1.0,
            "zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False,
            "zero_optimization": {"stage": 3}})

    def update(loss):
        engine.backward(loss)
        engine.step()
    return engine, update


def with_fsdp(model):
    import torch
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16, buffer_dtype=torch.bfloat16)
    sharded = FullyShardedDataParallel(model, auto_wrap_policy=ModuleWrapPolicy([LlamaDecoderLayer]),
                                       mixed_precision=bf16, device_id=torch.device("cpu"), use_orig_params=True)
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=RATE, weight_decay=0.0, foreach=False)

    def update(loss):
        loss.backward()
        sharded.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
    return sharded, update


# ---- the experiment ----------------------------------------------------------------------------------


def run(arguments, folder, name):
    """Trains one configuration. Returns its precisions."""
    kind, engine = CONFIGURATIONS[name]
    recording = folder / name
    environment = os.environ | {"PYTHONPATH": str(arguments.build / "python"), "PYTHON_EXEC": sys.executable,
                                "ACC_RECORD": str(recording), "OMP_NUM_THREADS": "1"}
    command = [arguments.build / "bin/acclaunch", "--engine", engine, "--cpu", "--num_processes", "2", __file__,
               "--worker", str(folder / "model"), "--kind", kind, "--steps", str(arguments.steps)]
    done = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{name} ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    (recording / "loaded").write_text(done.stdout.split("loaded ")[1].split()[0].removeprefix("torch."))


def precisions(recording):
    """The dtypes of a recording: at loading, in the prepared model, of products, gradients, weights and states."""
    found = {"loading": (recording / "loaded").read_text()}
    for line in map(json.loads, (recording / "rank_0.jsonl").read_text().splitlines()):
        if line["kind"] == "model":
            found["preparation"] = line["parameters"][0]["dtype"]
        if line.get("step") == 1:
            if line["kind"] == "tensor" and line["phase"] == "forward" and line["name"].endswith("q_proj"):
                found["training"] = line["dtype"]
            if line["kind"] == "tensor" and line["phase"] == "gradient":
                found["gradient"] = line["dtype"]
            if line["kind"] == "group":
                found["optimizer"] = line["weight_dtype"]
                found["states"] = line["state_dtypes"].get("exp_avg", "")
    return found


def norms(recording):
    """The norm of the gradients before they were clipped, by step."""
    lines = map(json.loads, (recording / "rank_0.jsonl").read_text().splitlines())
    return {line["step"]: line["norm"] for line in lines if line["kind"] == "clip"}


def compare(arguments, folder, a, b):
    done = subprocess.run([arguments.build / "bin/acclaunch", "compare", "--json", folder / a, folder / b],
                          capture_output=True, text=True)
    if done.returncode not in (0, 1):
        sys.exit(f"acclaunch compare ended with {done.returncode}: {done.stderr}")
    found = json.loads(done.stdout)["comparisons"][0]
    return {"a": a, "b": b, "verdict": found["verdict"], "first": found["first"],
            "cause": found["causes"][0]["text"] if found["causes"] else "", "curves": found["curves"]}


def table(results):
    print("| configuration | loaded | prepared | products | gradients | updated weights | states |\n" + "| --- " * 7 + "|")
    for name, found in results["precisions"].items():
        kinds = [found.get(key, "") for key in ("loading", "preparation", "training", "gradient", "optimizer", "states")]
        print(f"| {name} |", " | ".join(each.replace("bfloat16", "bf16").replace("float32", "fp32") for each in kinds), "|")
    print("\n| A | B | first difference | cause |\n| --- | --- | --- | --- |")
    for pair in results["pairs"]:
        first = pair["first"]
        place = f"step {first['step']}, {first['phase']}, `{first['name']}`: {first['a']}; {first['b']}" if first \
            else "equal to rounding"
        print(f"| {pair['a']} | {pair['b']} | {place} | {pair['cause']} |")


def main():
    parser = Options(__doc__, build=ROOT / "build/release", out=ROOT / "bench/results/precision_experiment.json",
                     steps=100)
    parser.add_argument("--keep", help="folder for the recordings; those that it has are not made again")
    parser.add_argument("--table", action="store_true", help="only print the result")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    parser.add_argument("--kind", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        train(arguments.worker, arguments.kind, arguments.steps)
    if not arguments.table:
        with contextlib.nullcontext(arguments.keep) if arguments.keep else tempfile.TemporaryDirectory() as name:
            measure(arguments, pathlib.Path(name))
    table(json.loads(arguments.out.read_text()))


def measure(arguments, folder):
    if not (folder / "model").exists():
        new_model().bfloat16().save_pretrained(folder / "model")
    for name in CONFIGURATIONS:
        if not (folder / name / "loaded").exists():
            run(arguments, folder, name)
            print(f"trained: {name}", flush=True)
    names = list(CONFIGURATIONS)
    pairs = [compare(arguments, folder, a, b) for a, b in
             [(names[0], names[1]), (names[0], names[2]), (names[1], names[2]), *zip(names[:3], names[3:])]]
    of_steps = {name: norms(folder / name) for name in names}
    curves = {name: [[point["step"], point["loss"][side], of_steps[name].get(point["step"])] for point in pair["curves"]]
              for pair in pairs for side, name in enumerate((pair["a"], pair["b"]))}
    for pair in pairs:
        del pair["curves"]
    result = {"script": "bench/precision_experiment.py", "date": datetime.date.today().isoformat(), "rate": RATE,
              "steps": arguments.steps, "precisions": {name: precisions(folder / name) for name in names},
              "pairs": pairs, "curves": curves}
    arguments.out.write_text(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
