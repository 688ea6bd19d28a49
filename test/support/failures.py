# SPDX-License-Identifier: Apache-2.0
import sys


def exit_with(failures):
    """Ends a test program: prints the failures and exits with 1 if there are any, else with 0."""
    for failure in failures:
        print("broken:", failure)
    sys.exit(1 if failures else 0)
