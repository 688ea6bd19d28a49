# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own zero_to_fp32 merges ZeRO checkpoints that we write.

  deepspeed_checkpoint_test.py PEER_FILES CHECKPOINTS
"""

import contextlib
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("DS_ACCELERATOR", "cpu")
try:
    import torch
    from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

PEER_FILES, CHECKPOINTS = sys.argv[1], Path(sys.argv[2])


def merged(folder):
    with contextlib.redirect_stdout(io.StringIO()):
        return get_fp32_state_dict_from_zero_checkpoint(str(folder))


def check(source, expected, stage, ranks):
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([PEER_FILES, "deepspeed", source, folder, str(stage), str(ranks)],
                       check=True)
        found = merged(folder)
        assert found.keys() == expected.keys(), (found.keys(), expected.keys())
        for name, value in expected.items():
            assert found[name].dtype == value.dtype and torch.equal(found[name], value), name


def main():
    reference = load_file(CHECKPOINTS / "ds_zero3_w2" / "reference.safetensors")
    weights = {name[len("param/"):]: value for name, value in reference.items()
               if name.startswith("param/")}
    full = CHECKPOINTS / "ds_zero2_w3" / "fp32_full.safetensors"
    for stage in (1, 2, 3):
        for ranks in (1, 3, 11):
            check(CHECKPOINTS / "ds_zero3_w2", weights, stage, ranks)
        check(full, load_file(full), stage, 2)
    print("ok")


main()
