# SPDX-License-Identifier: Apache-2.0
"""Each page of docs/errors shows a message that the program really prints, and the troubleshooting page leads to it.

    error_pages_test.py ROOT

A page either provokes its message in a block ```console```, which walk_test.py compares (a block ```output``` at its top then
repeats lines of that block), or names the source that prints it: `<!-- printed by FILE -->` before a block ```output```, in
which `…` stands for the parts that vary.
"""
import pathlib
import re
import sys

CONSOLE = re.compile(r"^```console\n(.*?)^```", re.MULTILINE | re.DOTALL)
TEXT = re.compile(r"(?<!-->\n)^```output\n(.*?)^```", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"<!-- printed by (\S+) -->\n```output\n(.*?)```", re.DOTALL)


def literals_of(path):
    """Text of a source file in which adjacent string literals are joined."""
    return re.sub(r'"\s*\n\s*"', "", path.read_text())


def main():
    root = pathlib.Path(sys.argv[1])
    index = (root / "docs/troubleshooting.md").read_text()
    wrong, provoked, quoted = [], 0, 0
    for page in sorted((root / "docs/errors").glob("*.md")):
        text = page.read_text()
        if f"](errors/{page.name})" not in index:
            wrong.append(f"{page.name}: docs/troubleshooting.md has no link to it")
        quotes = QUOTED.findall(text)
        provoked += "```console\n" in text
        quoted += len(quotes)
        if "```console\n" not in text and not quotes:
            wrong.append(f"{page.name}: shows no message")
        printed = "".join(CONSOLE.findall(text)).splitlines()
        for line in "".join(TEXT.findall(text)).splitlines():
            if not any(line in each for each in printed):
                wrong.append(f"{page.name}: no command of the page prints {line!r}")
        for file, block in quotes:
            source = literals_of(root / file)
            for part in re.split(r"…|\n", block):
                if part.strip() and part.strip() not in source:
                    wrong.append(f"{page.name}: {file} does not print {part.strip()!r}")
    for each in wrong:
        print(each)
    print(f"{provoked} pages provoke their message, {quoted} messages are quoted from their source")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
