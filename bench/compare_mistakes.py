# SPDX-License-Identifier: Apache-2.0
"""Runs `acclaunch compare` on the collection of test/compat/compare_programs: programs with one mistake each, of which
it must name the first difference and the cause, and pairs of configurations that it must call equal. Prints a line for
each and totals.

    python bench/compare_mistakes.py [--keep FOLDER] [--separately] [NAME ...]

NAME: regular expressions for names of rows. Without --separately all sides of the same number of ranks and engine are
recorded in one launch, and the recordings are compared; with it each row is one run of the command. With --keep the
recordings that are in the folder are not made again.
"""

import contextlib
import pathlib
import sys
import tempfile

from names import ROOT, Options

sys.path.append(str(ROOT / "test/compat/compare_programs"))
import run_rows  # noqa: E402
from table import EQUAL, MISTAKES  # noqa: E402


def main():
    parser = Options(__doc__, build=ROOT / "build/release", keep=None, separately=False)
    parser.add_argument("names", nargs="*", metavar="NAME")
    arguments = parser.parse_args()
    mistakes, pairs = (run_rows.chosen(rows, arguments.names) for rows in (MISTAKES, EQUAL))
    with contextlib.nullcontext(arguments.keep) if arguments.keep else tempfile.TemporaryDirectory() as folder:
        run = new_run(arguments, folder, [*mistakes, *pairs])
        named = report("mistakes", mistakes, run)
        alike = report("pairs that are equal", pairs, run)
    print(f"named: {named} of {len(mistakes)}; false alarms: {len(pairs) - alike} of {len(pairs)}")


def new_run(arguments, folder, rows):
    """Returns the function that gives the verdict of a row."""
    command = arguments.build / "bin/acclaunch", arguments.build / "python"
    if arguments.separately:
        return lambda row: run_rows.compare_programs(*command, row)
    sides = dict.fromkeys(side for row in rows for side in (row.a, row.b))
    printed = run_rows.record(*command, folder, sides)
    (pathlib.Path(folder) / "output.log").write_text(printed)
    return lambda row: run_rows.compare_recordings(*command, folder, row)


def report(title, rows, run):
    """Prints a line for each row. Returns the number of right verdicts."""
    right = 0
    print(f"{title}: {len(rows)}")
    for row in rows:
        verdict = run(row)
        is_right = verdict.is_right(row)
        right += is_right
        found = verdict.problem or ("equal" if verdict.is_equal else f"{verdict.first} [{', '.join(verdict.causes)}]")
        print(f"  {'right' if is_right else 'WRONG'}  {row.name}: {found}", flush=True)
    return right


if __name__ == "__main__":
    main()
