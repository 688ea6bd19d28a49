# SPDX-License-Identifier: Apache-2.0
"""Every manual page is formatted without a warning, and names every flag of its command's --help.

    manual_pages_test.py PAGES BIN
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

PAGES, BIN = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def output(*command):
    done = subprocess.run(command, capture_output=True, text=True, env={
        **os.environ, "LC_ALL": "C.UTF-8", "MANWIDTH": "100", "MANPAGER": "cat", "MAN_KEEP_FORMATTING": ""})
    return done.returncode, done.stdout, done.stderr


def flags_of(text):
    return set(re.findall(r"^ +(--[a-z][a-z0-9_-]*)", text, re.MULTILINE))


def help_of(page):
    if page.stem == "acc-rendezvous":
        return output(BIN / "acc-rendezvous", "--help")[1]
    command = page.stem.removeprefix("acclaunch").removeprefix("-") or "launch"
    return output(BIN / "acclaunch", "help", command)[1]


def main():
    if not shutil.which("man") or not shutil.which("mandoc"):
        sys.exit(77)
    pages = sorted(PAGES.glob("man/man*/*"))
    assert len(pages) > 15, pages
    for page in pages:
        _, text, warnings = output("man", "--warnings", "-E", "UTF-8", "-l", str(page))
        assert not warnings, (page, warnings)
        status, found, _ = output("mandoc", "-T", "lint", "-W", "warning", str(page))
        assert status == 0, (page, found)
        missing = flags_of(help_of(page)) - set(re.findall(r"--[a-z][a-z0-9_-]*", text.replace("‐", "-")))
        assert not missing, (page, missing)
        print(f"{page.name}: {len(text.splitlines())} lines")


if __name__ == "__main__":
    main()
