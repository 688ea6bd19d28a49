# SPDX-License-Identifier: Apache-2.0
"""Records what a terminal shows of a job, for docs/figures: `acclaunch top`, and the report after a rank was killed.

    python bench/terminal.py BIN_FOLDER        writes bench/results/terminal.json; bench/figures.py draws it
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
LAUNCH = ["acclaunch", "--quiet", "--cpu", "--num_processes", "4", "--config_file", "fsdp_full_shard.yaml", "--status_port",
          "8080", "train_gpt", "--data", "book.txt", "--steps", "100000"]
TOP = ["acclaunch", "top", "--rdzv_endpoint", "127.0.0.1:8080", "--once"]


def main():
    environment = {**os.environ, "PATH": f"{pathlib.Path(sys.argv[1]).absolute()}:{os.environ['PATH']}", "COLUMNS": "100"}
    with tempfile.TemporaryDirectory() as folder:
        for name, target in (("book.txt", "README.md"), ("fsdp_full_shard.yaml", "configs/fsdp_full_shard.yaml")):
            os.symlink(ROOT / target, f"{folder}/{name}")

        def run(words):
            return subprocess.run(words, cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, check=False)

        with open(f"{folder}/report", "w+") as report:
            job = subprocess.Popen(LAUNCH, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=report)
            ranks = []
            while not ranks or any((rank.get("step") or 0) < 50 for rank in ranks):
                assert job.poll() is None, pathlib.Path(report.name).read_text()
                time.sleep(0.5)  # poll interval
                shown = run([*TOP, "--json"])
                ranks = [rank for each in json.loads(shown.stdout or "[]") for rank in each["ranks"]]
            table = run(TOP).stdout
            os.kill(ranks[2]["pid"], signal.SIGKILL)
            job.wait()
            report.seek(0)
            text = report.read()
    text = text.replace(f"{pathlib.Path(sys.argv[1]).absolute()}/", "")  # the folder of this machine
    recorded = {"top": {"command": " ".join(TOP), "lines": table.splitlines()},
                "report": {"command": " ".join(LAUNCH), "lines": text.splitlines()}}
    (ROOT / "bench/results/terminal.json").write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
