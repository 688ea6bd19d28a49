# SPDX-License-Identifier: Apache-2.0
"""compare_programs_test.py ACCLAUNCH PACKAGE: `acclaunch compare` on a part of the collection in compare_programs:
mistakes, of which it must name the place and the cause, and configurations that it must call equal. All of it runs in
bench/compare_mistakes.py. Exits with 77 without torch."""

import importlib.util
import pathlib
import sys
import tempfile

if not importlib.util.find_spec("torch"):
    print("skipped: no torch")
    sys.exit(77)

sys.path.append(str(pathlib.Path(__file__).parent / "compare_programs"))
import run_rows  # noqa: E402
from table import EQUAL, MISTAKES  # noqa: E402

ROWS = ["loss_not_divided", "labels_of_this_rank", "same_data_on_all_ranks", "wrapper_bypassed", "local_norm",
        "bf16_weights", "decay_of_norms",
        "1 rank, 2 ranks of DDP", "accumulation, larger batch, padding, DDP", "FSDP 1 and FSDP2", "tied weights",
        "incomplete last batch"]


def main():
    acclaunch, package = sys.argv[1:3]
    rows = [row for row in MISTAKES + EQUAL if row.name in ROWS]
    assert len(rows) == len(ROWS), {row.name for row in rows} ^ set(ROWS)
    with tempfile.TemporaryDirectory() as folder:
        failures = run_rows.record(acclaunch, package, folder, dict.fromkeys(
            side for row in rows for side in (row.a, row.b)))
        assert not failures, failures
        verdicts = {row.name: run_rows.compare_recordings(acclaunch, package, folder, row) for row in rows}
    wrong = [f"{row.name}: {verdicts[row.name]}" for row in rows if not verdicts[row.name].is_right(row)]
    assert not wrong, "\n".join(wrong)


if __name__ == "__main__":
    main()
