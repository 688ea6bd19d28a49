# SPDX-License-Identifier: Apache-2.0
"""Runs all sets of scripts/gpu_check on stand-in libraries, without recording results.

    gpu_check_standin_test.py BIN STANDIN_FOLDER
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
# More than the sets need on a slow machine, so that no step is cut.
SECONDS = 1500
# Steps that must run here; the others need torch or NVIDIA's tools.
MUST_PASS = {"correctness": {"tests", "nccl", "parity", "products"},
             "speed": {"peak", "gpt_124m", "gpt_1.3b", "offload", "resume"},
             "ranks": {"strategies_nccl", "strategies_staged", "overlap", "collectives"}}


def gpu_check(bin_folder, standins, *arguments):
    environment = dict(os.environ, LD_LIBRARY_PATH=str(standins), PYTHONDONTWRITEBYTECODE="1",
                       ACC_CUDA_BACKEND=str(standins / "libacc_cuda.so"),
                       ACC_CUBLASLT_LIBRARY=str(standins / "libcublasLt.so.13"),
                       ACC_NCCL_LIBRARY=str(standins / "libnccl.so.2"))
    return subprocess.run([sys.executable, ROOT / "scripts/gpu_check", "--bin", bin_folder,
                           "--seconds", str(SECONDS), *arguments], env=environment,
                          capture_output=True, text=True, check=False)


def check_set(name, bin_folder, standins, folder):
    ran = gpu_check(bin_folder, standins, "--set", name, "--out", folder)
    print(ran.stdout, ran.stderr)
    record = next(pathlib.Path(folder).glob(f"*-{name}.json"))
    data = json.loads(record.read_text())
    page = record.with_suffix(".md").read_text()
    logs = {path.stem for path in record.with_suffix("").iterdir()}
    assert ran.returncode == 0, f"{name}: status {ran.returncode}"
    assert data["standin"] and not data["has_figures"]
    assert "no measurements, only whether the steps run" in page
    for step in data["steps"]:
        assert step["status"] in ("passed", "skipped"), step
        assert not step["figures"], step
    passed = {step["name"] for step in data["steps"] if step["status"] == "passed"}
    assert MUST_PASS[name] <= passed, MUST_PASS[name] - passed
    assert MUST_PASS[name] <= logs, logs


def main():
    bin_folder, standins = sys.argv[1], pathlib.Path(sys.argv[2])
    refused = gpu_check(bin_folder, standins, "--set", "ranks")
    assert refused.returncode == 2 and "no figures for docs/gpu" in refused.stderr, refused
    with tempfile.TemporaryDirectory() as folder:
        for name in MUST_PASS:
            check_set(name, bin_folder, standins, folder)


if __name__ == "__main__":
    main()
