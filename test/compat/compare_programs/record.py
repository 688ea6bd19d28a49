# SPDX-License-Identifier: Apache-2.0
"""record.py FOLDER SIDES: records the trainings of a list in JSON, one after the other in these processes: each has a
name, which is that of its folder, and the variables TRAIN and MISTAKE."""

import gc
import json
import os
import sys

import torch.distributed as dist
from train import main as train


def forget_accelerate():
    if "accelerate" in sys.modules:
        from accelerate.state import AcceleratorState, GradientState
        AcceleratorState._reset_state()
        GradientState._reset_state()


def record(folder, side):
    from acclaunch import _recorder
    os.environ |= {"ACC_RECORD": os.path.join(folder, side["name"]), "TRAIN": side["train"],
                   "MISTAKE": side["mistake"], "ACC_RECORD_RANDOM": side["random"]}
    _recorder.install()
    try:
        train()
    finally:
        _recorder._recorder.end("exit")
        forget_accelerate()
        gc.collect()


def main():
    folder, sides = sys.argv[1:]
    gc.freeze()
    for side in json.loads(sides):
        print("records", side["name"], flush=True)
        record(folder, side)
        if dist.is_initialized():
            dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
