# SPDX-License-Identifier: Apache-2.0
"""Trains a GPT of 23 million parameters in one process with one thread, and makes its steps in turn without and with
the recorder of `acclaunch compare`. Prints the medians of the CPU time of a step, the median of the ratios of steps in
turn, and the bytes that a step records.

    PYTHONPATH=build/release/python python bench/recorder.py [--steps 15] [--micro_steps 1] [--bf16]
"""

import os
import pathlib
import statistics
import sys
import tempfile
import time

from names import ROOT, Options

sys.path[:0] = [str(ROOT / "python"), str(ROOT / "examples/python")]


def main():
    arguments = Options(__doc__, steps=15, micro_steps=1, bf16=False).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["ACC_RECORD"] = folder
        measure(arguments, folder)


def measure(arguments, folder):
    import torch
    from train_gpt import GPT

    from acclaunch import _recorder

    _recorder.install()
    torch.set_num_threads(1)
    model = GPT(8192, 256, 512, 6, 8)
    if arguments.bf16:
        model.bfloat16()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def step(is_on):
        _recorder._recorder.is_over = not is_on
        begin = time.process_time()
        for _ in range(arguments.micro_steps):
            (model(torch.randint(8192, (2, 257))) / arguments.micro_steps).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return time.process_time() - begin

    for is_on in (False, True, True):
        step(is_on)
    recording, = pathlib.Path(folder).iterdir()
    before = recording.stat().st_size
    pairs = [(step(False), step(True)) for _ in range(arguments.steps)]
    without, recorded = (statistics.median(each) for each in zip(*pairs))
    ratio = statistics.median(second / first for first, second in pairs)
    size = (recording.stat().st_size - before) / arguments.steps
    print(f"step without {without:.3f} s, recorded {recorded:.3f} s, ratio {ratio:.3f}; {size / 1000:.0f} KB per step")


if __name__ == "__main__":
    main()
