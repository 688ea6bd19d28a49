# SPDX-License-Identifier: Apache-2.0
"""data_accelerate_test.py ACCLAUNCH: a program of Accelerate with --data_order acc and --engine acc, that is saved in
the middle of an epoch, continues with another number of ranks, and skips batches. Its record proves that each sample
was used once; without the flag its order is that of Accelerate. Exits with 77 without Accelerate."""

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import tempfile

if not all(map(importlib.util.find_spec, ("torch", "accelerate", "safetensors"))):
    print("skipped: no Accelerate")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "workers"))
DEADLINE = 900  # seconds; far more than a busy machine needs
SIZE = 70
ENGINE = ["--engine", "acc", "--use_fsdp", "--fsdp_version", "2", "--fsdp_auto_wrap_policy", "NO_WRAP",
          "--fsdp_state_dict_type", "SHARDED_STATE_DICT"]


def train(folder, part):
    """part: `first` saves in the middle of epoch 1; `rest` loads it and goes on to the end of epoch 2."""
    import torch
    from accelerate import Accelerator
    from accelerate.utils import set_seed
    from leave import leave
    from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

    torch.set_num_threads(1)
    set_seed(5)
    accelerator = Accelerator()
    model = torch.nn.Sequential(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    dataset = TensorDataset(torch.arange(SIZE).float().unsqueeze(1))
    loader = DataLoader(dataset, batch_size=4, shuffle=True)
    evaluation = DataLoader(dataset, batch_size=4)
    model, optimizer, loader, evaluation = accelerator.prepare(model, optimizer, loader, evaluation)
    ranks = accelerator.num_processes

    def step(batch):
        accelerator.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
        return accelerator.gather(batch).flatten().int().tolist()

    found = {}

    def epoch(number, batches, stop=None):
        for count, (batch,) in enumerate(batches, 1):
            found.setdefault(str(number), []).append(step(batch))
            if count == stop:
                return

    def evaluate():
        seen = []
        for batch, in evaluation:
            seen += accelerator.gather_for_metrics(batch).flatten().int().tolist()
        assert seen == list(range(SIZE)), seen

    assert len(loader) == -(-SIZE // (4 * ranks)), len(loader)
    if part == "first":
        epoch(0, loader)
        evaluate()
        epoch(1, loader, stop=3)
        accelerator.save_state(f"{folder}/state")
        for _ in range(2):
            found.setdefault("lost", [])  # these batches are made again
        for count, (batch,) in enumerate(accelerator.skip_first_batches(loader, 3), 1):
            found["lost"].append(step(batch))
            if count == 2:
                break
    elif part == "rest":
        accelerator.load_state(f"{folder}/state")
        assert loader.iteration == 1, loader.iteration
        epoch(1, loader)
        evaluate()
        epoch(2, loader)
        accelerator.load_state(f"{folder}/state")  # and once more, as programs do that count batches themselves
        epoch("skipped", accelerator.skip_first_batches(loader, 3))
    elif part == "plain":
        for number in range(2):
            epoch(number, loader)
        loader.set_epoch(1)
        skipped = accelerator.skip_first_batches(loader, 2)
        assert len(skipped) == len(loader) - 2
        epoch("skipped", skipped)
        torch.manual_seed(accelerator.process_index)  # ranks that differ use the seed of rank 0
        epoch("unseeded", accelerator.prepare_data_loader(DataLoader(dataset, batch_size=4, shuffle=True)))
    if accelerator.is_main_process:
        print("FOUND " + json.dumps(found), flush=True)
        if part == "plain" and os.environ.get("ACC_DATA_ORDER"):
            class Stream(IterableDataset):
                def __iter__(self):
                    return iter(dataset)
            weighted = WeightedRandomSampler([1.0] * SIZE, SIZE)
            for wrong, text in ((DataLoader(Stream(), batch_size=4), "IterableDataset"),
                                (DataLoader(dataset, sampler=weighted, batch_size=4), "WeightedRandomSampler")):
                try:
                    accelerator.prepare_data_loader(wrong)
                except RuntimeError as error:
                    assert "--data_order acc: " in str(error) and text in str(error), error
                else:
                    raise AssertionError("not refused")
    accelerator.wait_for_everyone()
    leave()


def flat(batches):
    return [each for batch in batches for each in batch]


def main():
    acclaunch = sys.argv[1]

    def run(ranks, folder, part, *flags, preload=("--preload", "accelerate,torch._dynamo,safetensors.torch")):
        done = subprocess.run([acclaunch, "--cpu", "--num_processes", str(ranks),
                               *preload, *flags, __file__, folder, part],
                              text=True, timeout=DEADLINE, env=os.environ | {"PYTHON_EXEC": sys.executable,
                                                                             "OMP_NUM_THREADS": "1"},
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0, done.stdout
        line = next(line for line in done.stdout.splitlines() if "FOUND" in line)
        return json.loads(line.split("FOUND", 1)[1]), done.stdout

    def once(batches):
        assert sorted(flat(batches)) == list(range(SIZE)), sorted(flat(batches))

    with tempfile.TemporaryDirectory() as folder:
        record = ["--data_order", "acc", "--data_record", f"{folder}/record"]
        first, _ = run(2, folder, "first", *record, *ENGINE)
        file = pathlib.Path(folder, "state", "acc_data_order.json")
        positions = json.loads(file.read_text())["loaders"]
        assert (positions[0]["acc.data.loader0.epoch"], positions[0]["acc.data.loader0.offset"]) == (1, 24)
        subprocess.run([acclaunch, "reshard", f"{folder}/state", f"{folder}/resharded", "--num_processes", "3"],
                       check=True, capture_output=True)
        assert pathlib.Path(folder, "resharded", file.name).read_bytes() == file.read_bytes()
        rest, output = run(3, folder, "rest", *record, *ENGINE)
        assert "3 batches of 12 samples are not the position of the checkpoint, 24 samples" in output, output
        assert rest["skipped"] == rest["1"]
        # Epoch 0 on two ranks: 70 samples in batches of 8, the last one filled with the first samples.
        assert flat(first["0"])[:SIZE] + flat(first["0"])[:2] == flat(first["0"])
        once([flat(first["0"])[:SIZE]])
        left = flat(rest["1"])  # 46 samples in batches of 12, on three ranks
        once([flat(first["1"]) + left[:SIZE - 24]])
        assert left[:len(flat(first["lost"]))] == flat(first["lost"])
        once([flat(rest["2"])[:SIZE]])
        assert flat(first["0"])[:SIZE] != flat(rest["2"])[:SIZE]
        check = subprocess.run([acclaunch, "data", "check", f"{folder}/record"], text=True, capture_output=True)
        assert check.returncode == 0, check.stdout + check.stderr
        assert "loader0: epoch 1: 70 samples, each used once, 2 again to fill a batch\n" in check.stdout, check.stdout
        # Without sharding, and without the flag, where the order is Accelerate's.
        plain, _ = run(2, folder, "plain", "--data_order", "acc", preload=())  # in ranks that are started
        assert plain["0"] == first["0"] and plain["skipped"] == plain["1"][2:]
        once([flat(plain["unseeded"])[:SIZE]])
        theirs, _ = run(2, folder, "plain")
        assert theirs["0"] != plain["0"]


if len(sys.argv) == 3:
    train(*sys.argv[1:])
else:
    main()
