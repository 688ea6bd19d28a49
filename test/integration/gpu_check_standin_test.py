# SPDX-License-Identifier: Apache-2.0
"""Runs all sets of scripts/gpu_check in a bundle with stand-in libraries; records no results.

    gpu_check_standin_test.py BUILD_TREE
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
# With torch, attention is compared with its back end for the CPU; its speed takes too long here.
TORCH = os.environ.get("ACC_TEST_PYTHON")
# Steps that must run here; the others need NVIDIA's tools.
MUST_PASS = {"correctness": {"tests", "nccl", "parity", "products"} |
                            ({"attention"} if TORCH else set()),
             "speed": {"peak", "gpt_124m", "gpt_1.3b", "offload", "resume"},
             "ranks": {"strategies_nccl", "strategies_staged", "overlap", "collectives"}}


def pack(tree, bundle):
    """The size and the oldest C library do not matter here; bundle_test.sh checks them."""
    subprocess.run([ROOT / "scripts/gpu_bundle", "--build", tree, "--standins", "--out", bundle,
                    "--limit", "1000", "--glibc", "2.99"], check=True)


def gpu_check(bundle, *arguments):
    environment = {"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/"),
                   "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run([bundle / "scripts/with_standins", sys.executable,
                           bundle / "scripts/gpu_check", "--seconds", str(SECONDS), *arguments],
                          env=environment, capture_output=True, text=True, check=False)


def check_set(name, bundle, folder):
    python = TORCH if TORCH and name == "correctness" else sys.executable
    ran = gpu_check(bundle, "--set", name, "--out", folder, "--python", python)
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
    with tempfile.TemporaryDirectory() as folder:
        bundle = pathlib.Path(folder, "bundle")
        pack(sys.argv[1], bundle)
        refused = gpu_check(bundle, "--set", "ranks")
        assert refused.returncode == 2 and "no figures for docs/gpu" in refused.stderr, refused
        for name in MUST_PASS:
            check_set(name, bundle, os.path.join(folder, "figures"))


if __name__ == "__main__":
    main()
