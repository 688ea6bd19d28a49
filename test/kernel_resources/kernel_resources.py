#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares registers, stack and spills of every GPU kernel with a committed table.

    kernel_resources.py COMPILE_COMMANDS TABLE [--update]

Reads what ptxas said when the CUDA sources of COMPILE_COMMANDS were compiled (cmake/with_ptxas_report).
TABLE has one line per kernel. Its first line names the GPU and the version of ptxas; exits with 77 if this
ptxas is another one, since each version allocates registers differently. --update writes the table. Exits
with 1 if the table differs.
"""
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

GPU = "sm_90"
ANONYMOUS = re.compile(r"(\d+)_GLOBAL__N__")
ENTRY = re.compile(r"Compiling entry function '(\S+)' for '(\w+)'")
STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
REGISTERS = re.compile(r"Used (\d+) registers")


def reports(path):
    """(source, nvcc, file with the report of ptxas) of each CUDA source."""
    for entry in json.loads(pathlib.Path(path).read_text()):
        if entry["file"].endswith(".cu"):
            words = shlex.split(entry["command"])
            nvcc = next(word for word in words if os.path.basename(word) == "nvcc")
            report = pathlib.Path(entry["directory"]) / (words[words.index("-o") + 1] + ".ptxas")
            yield pathlib.Path(entry["file"]).name, nvcc, report


def ptxas_version(nvcc):
    ptxas = pathlib.Path(nvcc).with_name("ptxas")
    text = subprocess.run([ptxas if ptxas.exists() else "ptxas", "--version"], capture_output=True,
                          text=True, check=True).stdout
    return re.search(r"V([\d.]+)", text).group(1)


def rows_of(report):
    """(name, registers, stack, spill stores, spill loads) of each kernel for GPU."""
    name = stack = None
    for line in report.read_text().splitlines():
        if found := ENTRY.search(line):
            name = found.group(1) if found.group(2) == GPU else None
        elif found := STACK.search(line):
            stack = found.groups()
        elif (found := REGISTERS.search(line)) and name:
            yield name, found.group(1), *stack
            name = None


def with_plain_namespaces(name):
    """nvcc puts a hash of the path into the mangled name of an anonymous namespace; g++ does not."""
    while found := ANONYMOUS.search(name):
        rest = found.end(1) + int(found.group(1))
        name = name[:found.start(1)] + "12_GLOBAL__N_1" + name[rest:]
    return name


def readable(names):
    """Kernel names as in the sources, without parameters."""
    plain = "\n".join(with_plain_namespaces(name) for name in names)
    text = subprocess.run(["c++filt"], input=plain, capture_output=True, text=True,
                          check=True).stdout
    shorter = []
    for name in text.splitlines():
        name = name.replace("(anonymous namespace)::", "").removeprefix("void ")
        depth = 0
        for i, letter in enumerate(name):
            depth += (letter == "<") - (letter == ">")
            if letter == "(" and depth == 0:
                name = name[:i]
                break
        shorter.append(name)
    return shorter


def table_of(sources):
    lines = [f"{GPU}, ptxas {ptxas_version(sources[0][1])}",
             "registers stack spill_stores spill_loads kernel (bytes per thread)"]
    for source, _, report in sources:
        rows = list(rows_of(report))
        names = readable([row[0] for row in rows])
        lines += [f"{int(registers):3d} {stack} {stores} {loads} {source}: {name}"
                  for name, (_, registers, stack, stores, loads) in sorted(zip(names, rows))]
    return "\n".join(lines) + "\n"


def main():
    path, table = sys.argv[1], pathlib.Path(sys.argv[2])
    sources = sorted(reports(path))
    if not sources:
        raise SystemExit(f"kernel_resources: {path} has no CUDA sources")
    if "--update" in sys.argv[3:]:
        table.write_text(table_of(sources))
        return 0
    before = table.read_text()
    expected = before.split("\n", 1)[0]
    own = f"{GPU}, ptxas {ptxas_version(sources[0][1])}"
    if expected != own:
        print(f"skipped: the table is of {expected}, this is {own}")
        return 77
    now = table_of(sources)
    if now == before:
        return 0
    old, new = set(before.splitlines()), set(now.splitlines())
    for line in sorted(old - new):
        print("-", line)
    for line in sorted(new - old):
        print("+", line)
    print(f"kernel_resources: kernels use other registers or spills than {table} says; if that is "
          f"intended: {sys.argv[0]} {path} {table} --update")
    return 1


if __name__ == "__main__":
    sys.exit(main())
