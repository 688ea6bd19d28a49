# SPDX-License-Identifier: Apache-2.0
"""Validates the output of `acclaunch explain --json` against docs/explain.schema.json.

    explain_json_test.py ACCLAUNCH SOURCE_FOLDER
"""
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, SOURCE = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from json_schema import Schema

SCHEMA = Schema(SOURCE / "docs/explain.schema.json")


def explain(words, folder, status=0, **variables):
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), "SECRET_TOKEN": "hush",
                   **variables}
    ran = subprocess.run([ACCLAUNCH, "explain", "--json", *words], env=environment, cwd=folder,
                         capture_output=True, text=True)
    assert ran.returncode == status, (words, ran.returncode, ran.stdout, ran.stderr)
    assert not ran.stderr, ran.stderr
    plan = json.loads(ran.stdout)
    assert SCHEMA.faults(plan) == [], (words, SCHEMA.faults(plan))
    assert "hush" not in ran.stdout, words
    return plan


def check_schema_itself(plan):
    """The schema must reject invalid documents."""
    for name in list(plan):
        assert SCHEMA.faults({k: v for k, v in plan.items() if k != name}), name
    assert SCHEMA.faults({**plan, "mode": "fast"})
    assert SCHEMA.faults({**plan, "more": 1})
    assert SCHEMA.faults({**plan, "faults": ["a plan has none"]})
    assert SCHEMA.faults({**plan, "ranks": {**plan["ranks"], "first": "0"}})


def check_configs(folder):
    for config in sorted((SOURCE / "configs").glob("*.y*ml")):
        plan = explain(["--config_file", str(config), "true"], folder, ACC_SIMULATE_GPUS="8")
        assert any(s["source"] == "file" and f"{config}:" in s["where"] for s in plan["settings"])


def check_faces(folder):
    plan = explain(["torchrun", "--nproc-per-node", "2", "--numa-binding", "node", "--no-python",
                    "true"], folder)
    assert plan["face"] == "torchrun" and plan["numa_binding"] == "node"
    assert plan["environment"]["by_local_rank"]["RANK"] == ["0", "1"]
    plan = explain(["torchrun", "--nnodes", "1:4", "--rdzv-backend", "c10d", "--rdzv-endpoint",
                    "h:1", "--rdzv-id", "x"], folder)
    assert plan["machines"] == {"min": 1, "max": 4, "machine_rank": None}
    assert plan["environment"]["set"]["RANK"] is None
    plan = explain(["deepspeed", "--num_gpus", "2", "--no_python", "true"], folder,
                   ACC_SIMULATE_GPUS="2")
    assert plan["face"] == "deepspeed" and plan["environment"]["by_local_rank"]
    (folder / "ds.json").write_text('{"train_micro_batch_size_per_gpu": 1,\n'
                                    ' "zero_optimization": {"stage": 3}}')
    plan = explain(["deepspeed", "--num_gpus", "2", "--deepspeed_config", "ds.json"], folder,
                   ACC_SIMULATE_GPUS="2")
    stage = next(s for s in plan["settings"] if s["name"] == "zero_stage")
    assert stage["value"] == "3" and stage["source"] == "deepspeed_file", stage
    assert stage["where"].endswith("ds.json:2"), stage


FIVE_MISTAKES = """distributed_type: FSDP
num_processes: 2
mixed_precison: bf16
fsdp_config:
  fsdp_sharding_strategy: FULL_SHRAD
  fsdp_cpu_ram_efficient_loading: true
  fsdp_sync_module_states: false
deepspeed_config:
  zero_stage: 2
tpu_use_cluster: true
"""


def check_mistakes(folder):
    """A typo, a bad value, two contradicting keys, the block of another mode and an unsupported
    setting: all are reported in one run, with the lines of their keys."""
    (folder / "five.yaml").write_text(FIVE_MISTAKES)
    faults = explain(["--config_file", "five.yaml"], folder, status=2)["faults"]
    lines = [set(re.findall(r"five\.yaml:(\d+)", fault)) for fault in faults]
    expected = [{"3"}, {"5"}, {"6", "7"}, {"1", "9"}, {"10"}]
    assert sorted(map(sorted, lines)) == sorted(map(sorted, expected)), faults
    ran = subprocess.run([ACCLAUNCH, "explain", "--config_file", "five.yaml"], cwd=folder,
                         capture_output=True, text=True)
    assert ran.returncode == 2 and not ran.stdout
    assert all(fault in ran.stderr for fault in faults), ran.stderr


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = explain(["--num_processes", "2", "--main_process_port", "0", "true"], folder,
                       ACC_SIMULATE_GPUS="2", ACC_ZERO_STAGE="3")
        check_schema_itself(plan)
        assert plan["command"][-1].endswith("true")
        assert [w["gpu"] for w in plan["workers"]] == [0, 1]
        assert plan["rendezvous"]["port"] is None
        assert plan["environment"]["set"]["MASTER_PORT"] is None
        assert plan["environment"]["by_local_rank"]["LOCAL_RANK"] == ["0", "1"]
        assert plan["environment"]["removed"] == ["ACC_ZERO_STAGE"]
        assert "PATH" not in plan["environment"]["set"]
        assert explain([], folder)["command"] is None
        (folder / "c.yaml").write_text("num_processes: two\nmixed_precison: bf16\n"
                                       "distributed_type: FSDP\n")
        refused = explain(["--config_file", "c.yaml"], folder, status=2)
        assert len(refused["faults"]) == 2, refused
        assert refused["faults"][0].startswith("c.yaml:1: "), refused
        # A hint of several lines is a part of its fault.
        assert len(explain(["--num_machines", "2", "--num_processes", "2", "true"], folder,
                           status=2)["faults"]) == 1
        check_configs(folder)
        check_faces(folder)
        check_mistakes(folder)


main()
