# SPDX-License-Identifier: Apache-2.0
"""Commands that read a checkpoint which a writer replaces meanwhile. The writer works at a chosen
point: before the command opens its n-th file or folder, for each n (at_open.c). A command returns
what it makes of the first checkpoint or of the second one, or fails and leaves nothing.

    overtaken_reads_test.py ACCLAUNCH AT_OPEN DATA TRAIN_GPT"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, AT_OPEN, DATA, TRAIN_GPT = sys.argv[1:5]
REASON = "read it again when the save is over"


def run(words, **variables):
    return subprocess.run([ACCLAUNCH, *map(str, words)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **variables})


def weights(path, value):
    """A safetensors file of six tensors of one value."""
    header, data = {}, b""
    for i in range(6):
        part = struct.pack("<96f", *[value + i] * 96)
        header[f"layer.{i}"] = {"dtype": "F32", "shape": [12, 8],
                                "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def content(path):
    """The bytes of all files at a path, by name."""
    if path.is_file():
        return path.read_bytes()
    return {str(file.relative_to(path)): file.read_bytes()
            for file in sorted(path.rglob("*")) if file.is_file()} if path.exists() else None


# Commands for a shell. $1 is 0 before open n, 1 before the next one, and so on.
ONCE = "[ $1 = 0 ] || exit 0; "
WRITERS = {
    # Ours: the folders are exchanged, then the older one is removed.
    "exchange": ONCE + "mv {at} {at}.old && mv {new} {at} && rm -rf {at}.old",
    # torch, DeepSpeed, Accelerate: each file is written in place.
    "in place": ONCE + "cp -rf {new}/. {at}",
    # The same; the reader opens files between two writes.
    "file by file": "cd {new}; file=$(find . -type f | sort | sed -n $(($1 + 1))p); "
                    "[ -z \"$file\" ] || cp -f $file {at}/$file",
    # A folder of several checkpoints gets one more.
    "series": ONCE + "mv {new} {at}/checkpoint_1 && printf checkpoint_1 > {at}/latest",
    "replaced file": ONCE + "mv {new} {at}",
    "file in place": ONCE + "cp -f {new} {at}",
}

SHARDS = ["--to", "safetensors", "--max_shard_size", "1KB"]
# How the two checkpoints are made of the weights; the writer; the command, and its output.
CASES = [
    (SHARDS, "exchange", ["merge-weights"]),
    (SHARDS, "in place", ["merge-weights"]),
    (SHARDS, "file by file", ["merge-weights"]),
    (["--to", "dcp", "--num_processes", "3"], "in place", ["merge-weights"]),
    (["--to", "dcp", "--num_processes", "3"], "file by file", ["merge-weights"]),
    (["--to", "dcp", "--num_processes", "3"], "exchange", ["reshard", "--num_processes", "2"]),
    (["--to", "deepspeed", "--num_processes", "3"], "in place", ["merge-weights"]),
    (["--to", "deepspeed", "--num_processes", "3"], "file by file", ["merge-weights"]),
    ("accelerate", "file by file", ["convert", "--to", "dcp"]),
    (["--to", "deepspeed", "--num_processes", "3"], "exchange", ["convert", "--to", "bin"]),
    ("file", "replaced file", ["merge-weights"]),
    ("file", "file in place", ["convert", "--to", "bin"]),
    ("state", "exchange", ["convert", "--to", "bin"]),
    ("state", "exchange", ["convert", "--to", "deepspeed", "--num_processes", "2"]),
    ("state", "exchange", ["reshard", "--num_processes", "3"]),
    ("state", "exchange", ["inspect", "--json"]),
    ("state", "in place", ["inspect", "--json"]),
    ("state", "exchange", ["verify"]),
    ("state", "in place", ["verify"]),
    ("sharded", "exchange", ["load"]),
    ("full", "file by file", ["load"]),
    ("sharded", "series", ["load"]),
]


def train(form, *flags, **variables):
    """Two ranks, of which one is overtaken. They train one step, or none after a load."""
    return run(["--cpu", "--use_fsdp", "--num_processes", 2, "--fsdp_state_dict_type",
                f"{form.upper()}_STATE_DICT", TRAIN_GPT, "--data", __file__, "--layers", 1, "--dim", 16,
                "--heads", 2, "--seq_len", 16, "--steps", 1, *flags], ACC_OPEN_RANK="1", **variables)


def make(folder, form):
    """Two checkpoints with the same names and shapes and with other values."""
    made = []
    for name, value, source in (("first", 1.0, "ds_zero2_w3"), ("second", 100.0, "ds_zero3_w3")):
        path = folder / name
        if form == "file":
            path = path.with_suffix(".safetensors")
            weights(path, value)
        elif form in ("sharded", "full"):
            done = train(form, "--seed", int(value), "--save", path)
            assert done.returncode == 0, done.stderr
        elif form in ("state", "accelerate"):
            to = ["dcp", "--num_processes", 2] if form == "state" else ["bin"]
            done = run(["convert", Path(DATA) / source, path, "--to", *to])
            assert done.returncode == 0, done.stderr
        else:
            weights(folder / "weights.safetensors", value)
            done = run(["convert", folder / "weights.safetensors", path, *form])
            assert done.returncode == 0, done.stderr
        made.append(path)
    return made


def copy(source, to):
    shutil.copytree(source, to) if source.is_dir() else shutil.copy(source, to)


def result(command, at, out, **variables):
    """What a command makes of a checkpoint: its exit status, its output and its files."""
    has_output = command[0] not in ("inspect", "verify")
    if command[0] == "load":
        out.mkdir()
        done = train("sharded", "--resume", at, "--export", out / "model.safetensors", **variables)
        if not any(out.iterdir()):
            out.rmdir()
    else:
        done = run([command[0], at, *([out] if has_output else []), *command[1:]], **variables)
    text = done.stdout if command[0] == "inspect" else ""
    if done.returncode == 0 and has_output and not (out / "model.safetensors").exists():
        # Other formats hold numbers that each save draws, so their content is compared.
        same = out.with_name("same")
        assert run(["convert", out, same, "--to", "bin"]).returncode == 0
        files = content(same)
        shutil.rmtree(same)
        return done, (text, files)
    return done, (text, content(out) if has_output else None)


def check(form, writer, command, folder):
    first, second = make(folder, form)
    at = folder / ("at" + first.suffix)
    made = []
    for source in (first, second):
        copy(source, at)
        done, one = result(command, at, folder / "expected")
        assert done.returncode == 0, done.stderr
        made.append(one)
        for path in (at, folder / "expected"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    assert command[0] in ("verify", "inspect") or made[0] != made[1]
    refused, number = 0, 0
    while True:
        number += 1
        copy(first, at / "checkpoint_0" if writer == "series" else at)
        copy(second, folder / "new")
        hit, out = folder / "hit", folder / "out"
        done, one = result(
            command, at, out, LD_PRELOAD=AT_OPEN, ACC_OPEN_UNDER=str(at), ACC_OPEN_AT=str(number),
            ACC_OPEN_HIT=str(hit), ACC_OPEN_RUN=WRITERS[writer].format(at=at, new=folder / "new"))
        where = f"{form}, {writer}, {command}, before open {number}: {done.stdout}{done.stderr}"
        if done.returncode == 0:
            assert one in made, f"parts of two checkpoints: {where}"
        else:
            assert done.returncode == 2 and REASON in done.stderr, where
            assert not out.exists() and (command[0] == "load" or not done.stdout), where
            refused += 1
        was_hit = hit.exists()
        for path in (at, folder / "new", hit, out):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        if not was_hit:
            break
    assert refused > 0, f"{form}, {writer}, {command}: {number} points, none between two reads"
    print(f"{form}, {writer}, {command}: {refused} of {number - 1} refused", flush=True)


for case in CASES:
    with tempfile.TemporaryDirectory() as temporary:
        check(*case, Path(temporary))
