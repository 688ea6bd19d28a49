# SPDX-License-Identifier: Apache-2.0
"""Validates the report.json of failed attempts against docs/report.schema.json.

    report_json_test.py ACCLAUNCH SOURCE_FOLDER GROUP_PROBE
"""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ACCLAUNCH, SOURCE = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from json_schema import Schema

SCHEMA = Schema(SOURCE / "docs/report.schema.json", knows_all=True)

WORKER = r"""
[ $RANK = 0 ] && exec sleep 1000
printf 'about to fail \377\033[31m\n' >&2
printf %s '{"message": {"message": "ValueError: bad", "extraInfo":
            {"py_callstack": "Traceback\n  there\nValueError: bad\n"}}}' > $TORCHELASTIC_ERROR_FILE
exit 3
"""


def reports(folder, flags, script, status):
    ran = subprocess.run([ACCLAUNCH, "--cpu", "--log_dir", str(folder), *flags, "--no_python",
                          "sh", "-c", script], capture_output=True)
    assert ran.returncode == status, (ran.returncode, ran.stderr)
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*/attempt_*/report.json"))]
    for report in found:
        assert SCHEMA.faults(report) == [], SCHEMA.faults(report)
    return found


def check_schema_itself(report):
    """The schema must reject invalid documents."""
    for name in report:
        assert SCHEMA.faults({k: v for k, v in report.items() if k != name}), name
    worker = report["workers"][0]
    for name in worker:
        less = {k: v for k, v in worker.items() if k != name}
        assert SCHEMA.faults({**report, "workers": [less]}), name
    assert SCHEMA.faults({**report, "more": 1})
    assert SCHEMA.faults({**report, "exit_status": 256})
    assert SCHEMA.faults({**report, "workers": [{**worker, "end": {}}]})
    assert SCHEMA.faults({**report, "workers": [{**worker, "collectives": {}}]})


def check_collectives(folder, probe):
    """Rank 2 leaves without an error while the others wait for it."""
    [report] = reports(folder, ["--num_processes", "3"], f"exec {probe} 2 exits", 42)
    [late] = report["late"]
    # One of them alone, if the job ended before the other one was there.
    assert late["ranks"] == [2] and late["waiting_ranks"] in ([0], [1], [0, 1]), late
    assert (late["kind"], late["number"], late["group"]) == ("all_reduce", 4, "world"), late
    assert (late["unit"], late["phase"]) == ("transformer.h.2", "backward"), late
    assert late["bytes"] == 4000 and late["called_instead"] == "", late
    left = report["workers"][2]["collectives"]
    assert left["rank"] == 2 and left["unit"] == "transformer.h.2", left
    assert [each["kind"] for each in left["last"]] == ["barrier"] + 2 * ["all_reduce"], left
    for each in left["last"]:
        assert each["state"] == "done" and each["called_at_us"] <= each["ended_at_us"], each
    waited = report["workers"][late["waiting_ranks"][0]]["collectives"]
    assert waited["last"][-1]["state"] in ("failed", "waiting"), waited
    assert report["first_failure"] == 2, "the rank that the others needed, not the first of them"
    assert left["failure"] is None, left
    failures = [worker["collectives"]["failure"] for worker in report["workers"]]
    assert any(failures), "one of the others, unless it was ended before it could fail"
    for failure in filter(None, failures):
        assert failure["rank_at_fault"] == 2 and not failure["timed_out"], failure
        assert "rank 2" in failure["message"], failure
    groups = [(group["name"], group["called"], group["waiting_in"]) for group in waited["groups"]]
    assert ("world", 4, 4) in groups, groups
    assert not list(folder.glob("**/flight_record")), "the report has them"


def check_failure(folder):
    [report] = reports(folder, ["--num_processes", "2"], WORKER, 3)
    check_schema_itself(report)
    assert report["exit_status"] == 3 and report["first_failure"] == 1, report
    ended, failed = report["workers"]
    assert failed["end"] == {"kind": "exited", "value": 3, "signal": None, "core_dumped": False,
                             "exit_status": 3}, failed
    assert failed["error_message"] == "ValueError: bad", failed
    assert failed["traceback"] == ["Traceback", "  there", "ValueError: bad"], failed
    assert failed["last_stderr_lines"] == ["about to fail \ufffd\x1b[31m"], failed
    assert not failed["told_to_end"] and ended["told_to_end"], report
    assert ended["end"]["signal"] == "SIGTERM" and ended["moment_us"] > failed["moment_us"], report


def check_restarts(folder):
    first, last = reports(folder, ["--num_processes", "2", "--max_restarts", "1"], "kill -9 $$", 137)
    assert (first["attempt"], last["attempt"]) == (0, 1)
    assert first["restarts_after_ms"] is not None and last["restarts_after_ms"] is None
    assert last["workers"][last["first_failure"]]["end"]["signal"] == "SIGKILL"


def main():
    with tempfile.TemporaryDirectory() as folder:
        check_failure(Path(folder) / "failure")
        check_restarts(Path(folder) / "restarts")
        check_collectives(Path(folder) / "collectives", os.path.abspath(sys.argv[3]))


main()
