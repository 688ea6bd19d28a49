#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a folder includes only what its library links, that a folder belongs to one library, that folders
do not include each other in a circle, that messages are printed through acc/base/log.hpp, and that libraries that take
long to compile are compiled in one source.

usage: structure_test.py STRUCTURE SOURCE_DIR

STRUCTURE is written by CMake, one line per library: name|sources|public headers|public links|private links.
Headers belong to the library whose sources lie in their folder; a public header in include/ belongs to the
library that has a source of the same name, or that names it (HEADERS of acc_add_library).
"""
import collections
import os
import re
import sys

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
HEADERS = (".hpp", ".h", ".inc", ".cuh")
PRODUCTS = ("launcher", "plugins", "rendezvous", "runtime", "tools")
TO_STDERR = re.compile(r"\bcerr\b|\bclog\b|print\w*\(stderr|put[cs]\(.*\bstderr\)|write\(STDERR_FILENO|\bperror\(")
# Libraries whose templates take seconds to compile: (what uses one, the source that compiles it for all, and
# sources that may compile it again). torch_record.cpp parses into a type of its own.
COMPILED_ONCE = (
    (re.compile(r"#include <CLI/"), "launcher/src/commands/options.cpp", ()),
    (re.compile(r"#include <spdlog/"), "plugins/src/base/log.cpp", ()),
    (re.compile(r"[Jj]son(<[^<>]*>)?::parse\(|(\.|->)dump\("), "plugins/src/json/json.cpp",
     ("launcher/src/report/torch_record.cpp",)),
)
# The log itself, a signal handler, and a progress line that is erased again.
MAY_WRITE_TO_STDERR = {"plugins/src/base/log.cpp", "runtime/src/sharding/view_guard.cpp",
                       "plugins/src/base/progress.cpp"}


class Library:
    def __init__(self, name, sources, headers, public, private):
        self.name = name
        self.sources = sources
        self.headers = headers
        self.public = public
        self.private = private


def read_structure(path):
    libraries = {}
    for line in open(path, encoding="utf-8"):
        name, *lists = line.rstrip("\n").split("|")
        libraries[name] = Library(name, *[[part for part in field.split(";") if part] for field in lists])
    return libraries


def exported(libraries, name):
    """The library and what it passes on to those that link it."""
    found, to_visit = set(), [name]
    while to_visit:
        current = to_visit.pop()
        if current in found or current not in libraries:
            continue
        found.add(current)
        to_visit += libraries[current].public
    return found


def visible(libraries, library):
    result = {library.name}
    for link in library.public + library.private:
        result |= exported(libraries, link)
    return result


def all_headers(top):
    for folder, names, leaves in os.walk(top):
        names[:] = [name for name in names if name not in ("build", ".git") and not name.startswith("build")]
        for leaf in leaves:
            if leaf.endswith(HEADERS):
                yield os.path.join(folder, leaf)


def library_root(source):
    """…/x/src/a/b.cpp -> …/x"""
    parts = source.split("/src/")
    return parts[0] if len(parts) > 1 else os.path.dirname(source)


def owners_of_headers(libraries, top, problems):
    folders, stems, owner = {}, {}, {}
    for library in libraries.values():
        for source in library.sources:
            folder = os.path.dirname(source)
            if folders.setdefault(folder, library.name) != library.name:
                problems.append(f"{os.path.relpath(folder, top)}: belongs to {folders[folder]} and {library.name}")
            stems[(library_root(source), os.path.splitext(os.path.basename(source))[0])] = library.name
        for header in library.headers:
            owner[header] = library.name
    for header in all_headers(top):
        folder = os.path.dirname(header)
        if header in owner:
            continue
        if folder in folders:
            owner[header] = folders[folder]
        elif "/include/" in header:
            root = header.split("/include/")[0]
            # include/acc/checkpoint/dcp/folder.hpp lies beside src/dcp.
            beside = os.path.join(root, "src", os.path.basename(folder))
            stem = os.path.splitext(os.path.basename(header))[0]
            owner[header] = folders.get(beside) or stems.get((root, stem))
        else:  # a folder of headers alone belongs to the library of the folder above
            while folder.startswith(top) and folder not in folders:
                folder = os.path.dirname(folder)
            owner[header] = folders.get(folder)
    return folders, owner


def find_circle(edges):
    """A list of folders that include each other in a circle, or None."""
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for to in sorted(edges.get(node, ())):
            if state.get(to) == "open":
                return path[path.index(to):] + [to]
            if to not in state:
                circle = visit(to)
                if circle:
                    return circle
        path.pop()
        state[node] = "done"
        return None

    for node in sorted(edges):
        if node not in state:
            circle = visit(node)
            if circle:
                return circle
    return None


def product_lines(top):
    """(path, line number, line) of all sources and headers of the products."""
    for product in PRODUCTS:
        for folder, _, leaves in os.walk(os.path.join(top, product)):
            for leaf in leaves:
                if leaf.endswith((".cpp", ".cu") + HEADERS):
                    path = os.path.relpath(os.path.join(folder, leaf), top)
                    for number, line in enumerate(open(os.path.join(top, path), encoding="utf-8"), 1):
                        yield path, number, line


def forbidden_lines(top):
    """Lines that write to stderr without the log (without level, and not in JSON format), and those that compile
    a library again that one source compiles for all."""
    for path, number, line in product_lines(top):
        if TO_STDERR.search(line) and path not in MAY_WRITE_TO_STDERR:
            yield f"{path}:{number}: writes to stderr; use acc/base/log.hpp: {line.strip()}"
        for used, source, others in COMPILED_ONCE:
            if used.search(line) and path != source and path not in others:
                yield f"{path}:{number}: only {source} compiles this library; use its header: {line.strip()}"


def without_license(top):
    """Sources of the products whose first two lines do not name the license."""
    for product in PRODUCTS:
        for folder, _, leaves in os.walk(os.path.join(top, product)):
            for leaf in leaves:
                path = os.path.join(folder, leaf)
                if leaf.endswith((".cpp", ".cu", ".py", ".h") + HEADERS):
                    with open(path, encoding="utf-8") as source:
                        if "SPDX-License-Identifier" not in source.readline() + source.readline():
                            yield f"{os.path.relpath(path, top)}: begins without an SPDX-License-Identifier line"


def main():
    structure, top = sys.argv[1], os.path.realpath(sys.argv[2])
    libraries = read_structure(structure)
    problems = []
    folders, owner = owners_of_headers(libraries, top, problems)
    by_suffix = collections.defaultdict(list)
    for header in owner:
        parts = os.path.relpath(header, top).split("/")
        for i in range(len(parts)):
            by_suffix["/".join(parts[i:])].append(header)

    edges = collections.defaultdict(set)
    num_includes = 0
    files = [(source, library) for library in libraries.values() for source in library.sources]
    files += [(header, libraries[name]) for header, name in owner.items() if name]
    for path, library in files:
        may_include = visible(libraries, library)
        for spelled in INCLUDE.findall(open(path, encoding="utf-8").read()):
            num_includes += 1
            beside = os.path.normpath(os.path.join(os.path.dirname(path), spelled))
            candidates = [beside] if beside in owner else by_suffix.get(spelled, [])
            names = {owner[header] for header in candidates}
            where = f"{os.path.relpath(path, top)}: includes {spelled}"
            if not candidates:
                problems.append(f"{where}, which is nowhere")
            elif not names & may_include:
                problems.append(f"{where} of {', '.join(sorted(str(name) for name in names))}, "
                                f"which {library.name} does not link")
            for header in candidates:
                if owner[header] in may_include:
                    a, b = (inside(folder, top) for folder in (os.path.dirname(path), os.path.dirname(header)))
                    nested = a.startswith(b + "/") or b.startswith(a + "/")  # variants below their interface
                    if a != b and not nested:
                        edges[a].add(b)
    circle = find_circle(edges)
    if circle:
        problems.append("folders include each other in a circle: " + " -> ".join(circle))
    problems += forbidden_lines(top)
    problems += without_license(top)
    for problem in problems:
        print(problem)
    print(f"{len(libraries)} libraries, {len(folders)} folders, {num_includes} includes, {len(problems)} problems")
    sys.exit(1 if problems else 0)


def inside(folder, top):
    """The folder of a library that a file belongs to: public headers count as the sources beside them."""
    relative = os.path.relpath(folder, top)
    root, found, rest = relative.partition("/include/acc/")
    if not found:
        return relative
    parts = rest.split("/")
    beside = os.path.join(root, "src", *parts[1:])
    return beside if parts[1:] and os.path.isdir(os.path.join(top, beside)) else relative


if __name__ == "__main__":
    main()
