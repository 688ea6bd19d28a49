# SPDX-License-Identifier: Apache-2.0
"""Options of the other scripts that take names."""
import argparse


def some_of(known):
    """Type of an option whose value is one or more of the names `known`, separated by commas. Any other name
    ends the script with status 2."""
    def parse(text):
        names = text.split(",")
        for name in names:
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown name '{name}', expected some of {','.join(known)}")
        return names
    return parse
