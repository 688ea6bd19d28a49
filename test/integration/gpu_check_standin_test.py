# SPDX-License-Identifier: Apache-2.0
"""Runs all steps of scripts/gpu_check on stand-in libraries, without recording results.

    gpu_check_standin_test.py BIN STANDIN_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]


def gpu_check(bin_folder, standins, *arguments):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(standins), PYTHONDONTWRITEBYTECODE="1",
                       ACC_CUDA_BACKEND=str(standins / "libacc_cuda.so"),
                       ACC_CUBLASLT_LIBRARY=str(standins / "libcublasLt.so.13"),
                       ACC_CUDNN_LIBRARY=str(standins / "libcudnn.so.9"),
                       ACC_NCCL_LIBRARY=str(standins / "libnccl.so.2"))
    return subprocess.run([sys.executable, ROOT / "scripts/gpu_check", "--bin", bin_folder,
                           *arguments], env=environment, capture_output=True, text=True,
                          check=False)


def main():
    bin_folder, standins = sys.argv[1], pathlib.Path(sys.argv[2])
    refused = gpu_check(bin_folder, standins)
    assert refused.returncode == 2 and "no figures for docs/gpu" in refused.stderr, refused
    with tempfile.TemporaryDirectory() as folder:
        ran = gpu_check(bin_folder, standins, "--out", folder)
        print(ran.stdout, ran.stderr)
        files = sorted(path.name for path in pathlib.Path(folder).iterdir())
        assert len(files) == 2 and "stand-in" in files[0], files
        data = json.loads(pathlib.Path(folder, files[0]).read_text())
        page = pathlib.Path(folder, files[1]).read_text()
    assert ran.returncode == 0, f"status {ran.returncode}"
    assert data["standin"] and not data["has_figures"]
    assert "no measurements, only whether the steps run" in page
    for step in data["steps"]:
        assert step["status"] in ("passed", "skipped"), step
        assert not step["figures"], step
    passed = {step["name"] for step in data["steps"] if step["status"] == "passed"}
    must_run = {"facts", "tests", "parity", "strategies_staged", "strategies_nccl", "gpt_124m",
                "gpt_1.3b", "overlap", "collectives"}
    assert must_run <= passed, must_run - passed


if __name__ == "__main__":
    main()
