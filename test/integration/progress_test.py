# SPDX-License-Identifier: Apache-2.0
"""Progress of the checkpoint commands and of a training's saves and loads, on a terminal and elsewhere. Time passes by
a preloaded clock: a second for each large read or write.

    progress_test.py ACCLAUNCH TRAIN_GPT FAST_CLOCK SOURCE_FOLDER"""
import json
import os
import pty
import re
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, TRAIN_GPT, CLOCK, SOURCE = sys.argv[1:5]
LINE = r"\d\S* [KM]B of \d\S* [KM]B, \d+ %, \d\S* [KM]?B/s(, (\d+ s|\d+:\d\d min) left|, flushing to the disk)"


def write_checkpoint(path):
    """A safetensors file of 40 tensors of 512 KiB."""
    count, nbytes = 40, 1 << 19
    header = json.dumps({f"layer.{i}": {"dtype": "F32", "shape": [nbytes // 4], "data_offsets": [i * nbytes, (i + 1) * nbytes]}
                         for i in range(count)}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(count * nbytes))


def run(*words, clock=True, **variables):
    environment = {**os.environ, **variables, **({"LD_PRELOAD": CLOCK} if clock else {})}
    done = subprocess.run([ACCLAUNCH, *map(str, words)], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    return done.stderr


def run_on_terminal(*words):
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ.update({"TERM": "xterm", "LD_PRELOAD": CLOCK})
        os.execv(ACCLAUNCH, [ACCLAUNCH, *map(str, words)])
    shown = b""
    try:
        while data := os.read(terminal, 4096):
            shown += data
    except OSError:
        pass
    assert os.waitpid(pid, 0)[1] == 0, shown
    return shown.decode()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    source = folder / "model.safetensors"
    write_checkpoint(source)
    for number, (words, what) in enumerate([(("convert", source, folder / "out", "--to", "bin"), "writing"), (("verify", source), "checking")]):
        words = [*words, "--num_threads", "1"]
        overwritable = [f"{word}{number}a" if word == folder / "out" else word for word in words]
        lines = run(*overwritable).splitlines()
        progress = [line for line in lines if re.fullmatch(rf"acclaunch: {what}: {LINE}", line)]
        assert 2 <= len(progress) <= 40, lines
        assert any(re.fullmatch(rf"acclaunch: {what}: 21 MB in \d+\.\d s, .*/s", line) for line in lines), lines
        assert run(*[f"{word}{number}b" if word == folder / "out" else word for word in words], clock=False) == ""
        assert run(*[f"{word}{number}c" if word == folder / "out" else word for word in words], "--quiet") == ""
        in_json = run(*[f"{word}{number}d" if word == folder / "out" else word for word in words], ACC_LOG_FORMAT="json")
        assert all(what in json.loads(line)["message"] or "checking" in json.loads(line)["message"] for line in in_json.splitlines()), in_json
        shown = run_on_terminal(*[f"{word}{number}e" if word == folder / "out" else word for word in words])
        drawn = re.findall(rf"\r\x1b\[K{what}: {LINE}", shown)
        assert len(drawn) > 5, shown
        left = re.sub(r"[^\n]*\r\x1b\[K", "", shown)
        assert what + ":" not in left, left  # the line is erased at the end

    # The saves and loads of a training: rank 0 tells of its part.
    train = ["--cpu", "--use_fsdp", "--num_processes", "2", TRAIN_GPT, "--data", f"{SOURCE}/docs", "--layers", "12", "--dim", "128",
             "--seq_len", "16", "--steps"]
    for kind in ("SHARDED_STATE_DICT", "FULL_STATE_DICT"):
        checkpoint = folder / kind
        saving = run("--fsdp_state_dict_type", kind, *train, "1", "--save", checkpoint)
        assert re.search(rf"\[0\] acclaunch: saving {checkpoint}: {LINE}", saving), saving
        assert "[1] acclaunch: saving" not in saving, saving
        loading = run("--fsdp_state_dict_type", kind, *train, "2", "--resume", checkpoint)
        assert re.search(rf"\[0\] acclaunch: loading {checkpoint}: {LINE}", loading), loading
