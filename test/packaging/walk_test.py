# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of pages of the documentation in the order of each page, with an installed acclaunch, and
compares what they print.

    walk_test.py PREFIX PAGE... [--show]     --show: print what each command printed, without comparing

A block ```LANGUAGE title="FILE"``` is written to FILE. In a block ```console``` each line that begins with
`$ ` is a command (with its continuation lines), and the lines up to the next one are its standard output and
error. In the page `…` stands for any text, and a line `…` for any lines. All commands of a page run in one
shell, in an empty folder. Pages that import torch, transformers or peft are left out where they are missing.
"""
import functools
import os
import pathlib
import re
import subprocess
import sys
import tempfile

FENCE = re.compile(r"^```(\w*)(?: title=\"([^\"]+)\")?[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PACKAGES = r"^(?:import|from) (torch|transformers|peft)\b"
END = "status of the command:"
SKIPPED = 77


def commands_in(block):
    """Yields each command of a console block with the output that the page shows."""
    command, shown = None, []
    for line in block.splitlines():
        if line.startswith("$ "):
            if command is not None:
                yield command, shown
            command, shown = line[2:], []
        elif command is not None and command.endswith("\\") and not shown:
            command += "\n" + line
        else:
            shown.append(line)
    if command is not None:
        yield command, shown


def matches(shown, printed):
    pattern = ""
    for line in shown:
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            pattern += ".*".join(re.escape(part) for part in line.rstrip().split("…")) + r" *\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in printed)) is not None


class Shell:
    def __init__(self, folder, variables):
        self.process = subprocess.Popen(["bash", "--norc", "--noprofile"], cwd=folder, env=variables, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, command):
        """Runs a command that does not read the terminal. Returns the lines that a command prints. A status other than 0 is printed as `status N`."""
        self.process.stdin.write(f"{{ {command}\n}} </dev/null\nstatus=$?; echo; echo '{END}' $status\n")
        self.process.stdin.flush()
        lines = []
        for line in self.process.stdout:
            if line.startswith(END):
                status = line.removeprefix(END).strip()
                if lines and not lines[-1]:
                    lines.pop()
                return lines + ([] if status == "0" else [f"status {status}"])
            lines.append(line.rstrip("\n"))
        sys.exit(f"the shell has ended in: {command}")


def walk(page, prefix, python, shows):
    """Runs the commands of one page. Returns their number, and that of those that print something else."""
    text = page.read_text()
    with tempfile.TemporaryDirectory() as folder:
        variables = {"PATH": f"{prefix}/bin:{python.parent}:/usr/bin:/bin", "HOME": folder, "LC_ALL": "C.UTF-8",
                     "PYTHONPATH": f"{prefix}/share/acclaunch/python", "PREFIX": str(prefix), "OMP_NUM_THREADS": "1",
                     "PKG_CONFIG_PATH": f"{prefix}/lib/pkgconfig", "TMPDIR": folder}
        work = pathlib.Path(folder) / "work"
        work.mkdir()
        shell = Shell(work, variables)
        wrong = count = 0
        for language, title, block in FENCE.findall(text):
            if title:
                (work / title).write_text(block)
            if language != "console":
                continue
            for command, shown in commands_in(block):
                count += 1
                # Whether a port is free, and which machine is first, depends on the moment.
                printed = [line.replace(str(prefix), "PREFIX") for line in shell.run(command)
                           if not line.startswith(("acclaunch: port ", "acclaunch: waiting for the rendezvous"))]
                if shows:
                    print(f"$ {command}", *printed, sep="\n")
                elif not matches(shown, printed):
                    wrong += 1
                    print(f"{page}: $ {command}\n--- the page shows", *shown, "--- it prints", *printed, sep="\n")
                else:
                    print(f"ok: {command}")
        assert count > 0, f"no commands in {page}"
        print(f"{page.name}: {count} commands")
        shell.process.stdin.close()
        shell.process.wait()
    return count, wrong


def main():
    shows = "--show" in sys.argv
    prefix, *pages = (pathlib.Path(each).absolute() for each in sys.argv[1:] if each != "--show")
    python = pathlib.Path(os.environ.get("ACC_TEST_PYTHON", sys.executable))
    is_there = functools.cache(lambda package: subprocess.run(
        [python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec('{package}') is None)"]).returncode == 0)
    pages = [page for page in pages
             if all(is_there(package) for package in set(re.findall(PACKAGES, page.read_text(), re.MULTILINE)))]
    if not pages:
        sys.exit(SKIPPED)
    results = [walk(page, prefix, python, shows) for page in pages]
    print(f"{sum(count for count, _ in results)} commands in {len(pages)} pages")
    sys.exit(1 if any(wrong for _, wrong in results) else 0)


if __name__ == "__main__":
    main()
