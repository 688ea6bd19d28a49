# SPDX-License-Identifier: Apache-2.0
"""acclaunch compare as a user calls it: runs of a program that writes recordings, output, exit status, page and schema.

    compare_test.py ACCLAUNCH SOURCE_FOLDER
"""
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ACCLAUNCH, SOURCE = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from json_schema import Schema

SCHEMA = Schema(SOURCE / "docs/compare.schema.json")
# A program that writes what a recorder would: the loss and the data of a step. A batch of 4 rows is divided among ranks.
PROGRAM = '''
import json, os, sys, time
rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
way = os.environ.get("WAY", "")
print("way", way, "of rank", rank, "random", os.environ["ACC_RECORD_RANDOM"], flush=True)
if way == "fail":
    sys.exit("something is wrong")
with open(os.path.join(os.environ["ACC_RECORD"], f"rank_{rank}.jsonl"), "w") as file:
    def write(kind, **keys):
        print(json.dumps({"kind": kind, **keys}), file=file, flush=True)
    write("program", version=1, rank=rank, world_size=ranks, engine="torch")
    for step in range(int(os.environ["ACC_RECORD_STEPS"])):
        rows = [4 * step + row for row in range(4)][rank * 4 // ranks:(rank + 1) * 4 // ranks]
        write("data", step=step, micro_step=0, name="0", dtype="int64", shape=[len(rows), 1], exact=[sum(rows), 0])
        write("loss", step=step, micro_step=0, value=2.0 + (1e-3 if way == "other" and step == 2 else 0), dtype="float32")
        write("step", step=step, skipped=False, parameters=1)
        if way == "hang" and step == 1:
            open(os.environ["HANGS"], "w").close()
            time.sleep(1000)
    write("end", reason="steps")
'''


def compare(words, status, folder, **variables):
    ran = subprocess.run([ACCLAUNCH, "compare", *words], env={**os.environ, "HANGS": str(folder / "hangs"), **variables},
                         cwd=folder, capture_output=True, text=True)
    assert ran.returncode == status, (words, ran.returncode, ran.stdout, ran.stderr)
    return ran


def check_runs(folder):
    equal = compare(["--cpu", "--a", "num_processes=1", "--b", "num_processes=2,env.WAY=same", "--steps", "4", "--keep",
                     "kept", "--random", "off", "program.py"], 0, folder)
    assert "A: num_processes=1\n" in equal.stdout and "equal to rounding up to step 3" in equal.stdout, equal.stdout
    assert "number of ranks  1  2" in equal.stdout, equal.stdout
    assert "runs B: num_processes=2,env.WAY=same" in equal.stderr, equal.stderr
    assert "way same of rank 1 random off" in (folder / "kept/b.log").read_text()
    assert sorted(each.name for each in (folder / "kept/b").iterdir()) == ["rank_0.jsonl", "rank_1.jsonl"]
    different = compare(["--a", "cpu=true", "--b", "cpu=true,env.WAY=other", "--steps", "4", "--report", "page.html",
                         "program.py"], 1, folder)
    assert "part at step 2: forward" in different.stdout, different.stdout
    assert "<h2>loss</h2>" in (folder / "page.html").read_text()
    again = compare(["--a", "cpu=true", "--b", "cpu=true", "--report", "page.html", "program.py"], 2, folder)
    assert "page.html" in again.stderr and "runs A" not in again.stderr, again.stderr
    itself = compare(["--self", "--cpu", "--num_processes", "1", "--json", "program.py"], 0, folder)
    assert [each["b"]["ranks"] for each in json.loads(itself.stdout)["comparisons"]] == [1, 2], itself.stdout


def check_recordings(folder):
    """Two folders, as text and as JSON."""
    compare(["kept/a", "kept/b"], 0, folder)
    compare(["kept/a", "kept"], 2, folder)
    compare(["kept/a"], 2, folder)
    result = json.loads(compare(["--json", "kept/a", "kept/b"], 0, folder).stdout)
    assert SCHEMA.faults(result) == [], SCHEMA.faults(result)
    assert result["comparisons"][0]["steps"] == 4
    assert SCHEMA.faults({**result, "more": 1}) and SCHEMA.faults({"exit_status": 0})


def check_failures(folder):
    failed = compare(["--a", "cpu=true", "--b", "cpu=true,env.WAY=fail", "program.py"], 2, folder)
    assert "B (cpu=true,env.WAY=fail) ended with exit status 1" in failed.stderr, failed.stderr
    assert "something is wrong" in failed.stderr and "B recorded nothing" in failed.stderr, failed.stderr
    # What was recorded before a side hangs is compared.
    hangs = compare(["--a", "cpu=true", "--b", "cpu=true,env.WAY=hang", "--timeout", "15", "program.py"], 2, folder)
    assert "B (cpu=true,env.WAY=hang) was still running after 15 s" in hangs.stderr, hangs.stderr
    assert "the first 2 are compared" in hangs.stdout, hangs.stdout


def check_interrupt(folder):
    """A signal ends the run with its workers, and nothing remains."""
    (folder / "hangs").unlink()
    variables = {**os.environ, "TMPDIR": str(folder / "tmp"), "HANGS": str(folder / "hangs")}
    (folder / "tmp").mkdir()
    job = subprocess.Popen([ACCLAUNCH, "compare", "--a", "cpu=true,env.WAY=hang", "--b", "cpu=true", "program.py"],
                           env=variables, cwd=folder, stderr=subprocess.PIPE)
    while not (folder / "hangs").exists():
        assert job.poll() is None, job.stderr.read()
        time.sleep(0.02)
    job.send_signal(signal.SIGTERM)
    assert job.wait() == -signal.SIGTERM, job.returncode
    assert list((folder / "tmp").iterdir()) == []


with tempfile.TemporaryDirectory() as name:
    place = Path(name)
    (place / "program.py").write_text(PROGRAM)
    for check in (check_runs, check_recordings, check_failures, check_interrupt):
        check(place)
