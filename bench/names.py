# SPDX-License-Identifier: Apache-2.0
"""Options of the other scripts."""
import argparse
import os
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
BIN = ROOT / "build/release/bin"
PEERS = ROOT.parent / "shared/peers"
PYTHON = os.environ.get("ACC_PEERS_PYTHON", sys.executable)


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


def numbers(text):
    return [int(word) for word in text.split(",")]


def type_of(default):
    """A path is made absolute. A list is given as numbers or names with commas; its names are all that are known."""
    if isinstance(default, pathlib.Path):
        return lambda text: pathlib.Path(text).absolute()
    if isinstance(default, (list, tuple)):
        return numbers if isinstance(default[0], int) else some_of(default)
    return str if default is None else type(default)


class Options(argparse.ArgumentParser):
    """Parser of a script with the description `text`. `defaults`: options with their defaults, which tell the types;
    False for a flag. Options may be spelled with - or _."""

    def __init__(self, text, **defaults):
        super().__init__(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        for name, default in defaults.items():
            kind = {"action": "store_true"} if default is False else {"default": default, "type": type_of(default)}
            self.add_argument(*dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}")), **kind)


def flags(values):
    """Returns the words --NAME VALUE for each entry of a dictionary."""
    return [word for name, value in values.items() for word in (f"--{name}", value)]
