#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that a folder includes only what its library links, that a folder belongs to one library, that folders
do not include each other in a circle, nor modules of the Python package, that messages are printed through
acc/base/log.hpp, that libraries that take long to compile are compiled in one source, that each environment variable is
named and read in one place, and that few files name a setting.

usage: structure_test.py STRUCTURE SOURCE_DIR

STRUCTURE is written by CMake, one line per library: name|sources|public headers|public links|private links.
Headers belong to the library whose sources lie in their folder; a public header in include/ belongs to the
library that has a source of the same name, or that names it (HEADERS of acc_add_library).
"""
import ast
import collections
import os
import pathlib
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

# A name of a variable that acclaunch or Accelerate's launcher defines, alone in a literal.
VARIABLE = re.compile(r'"((?:ACC|ACCELERATE)_[A-Z0-9_]+)"')
# The decoder; the search for libraries, whose tests replace the function; a program that links only libacc_runtime.
MAY_READ_VARIABLES = {"plugins/src/base/variables.cpp", "plugins/src/base/library_search.cpp",
                      "tools/self_test/checks.cpp"}
SETTING_ROWS = "plugins/include/acc/settings/setting_rows.hpp"
FLAG_ROWS = "launcher/include/acc/launcher/setting_keys.hpp"
# Files that may name a setting of the runtime, and a flag of the launcher: its row, its fields, and its use. The
# numbers of those that more files name may only fall.
MAX_FILES_OF_SETTING = 4
# Names settings in advice to users, as keys of recordings, and as flags that it passes on; it reads none. Libraries
# below the settings have words of their own.
WITHOUT_SETTINGS = ("launcher/src/commands/compare/", "runtime/checkpoint/")
# Where a word alone in a literal may be a key of Accelerate's file. Elsewhere it is one of a report.
ACCELERATE_KEYS = ("launcher/src/accelerate_cli/", "launcher/src/commands/config/", "plugins/src/documents/",
                   "plugins/src/settings/")
# Commands have options of their own, some with the names of flags of a launch; so have mpirun and the deepspeed
# command.
OWN_OPTIONS = ("launcher/src/commands/", "launcher/src/accelerate_cli/commands_of_others.cpp")
MAX_FILES_OF_FLAG = 3
# Why more files name some of them. questions.cpp has a row for each question of Accelerate's questionnaire;
# arguments.cpp reproduces the code of Accelerate's launcher, which names its arguments one by one.
MORE_FILES_OF_SETTING = {
    # Row, field, member, one use, and its question or the remark about its loss.
    "fsdp_state_dict_type": 5,
    "parallelism_config_dp_replicate_size": 5, "zero3_save_16bit_model": 5, "gradient_clipping": 6, "zero_stage": 6,
    "parallelism_config_dp_shard_size": 7, "offload_optimizer_nvme_path": 6, "offload_param_nvme_path": 6,
    # FSDP and DeepSpeed differ by it: both write it, and several messages advise to change it.
    "fsdp_version": 9, "zero_hpz_partition_size": 9, "gradient_accumulation_steps": 8, "mixed_precision": 23,
    # Two mechanisms of the engine obey it.
    "allgather_bucket_size": 5,
    # Also an option of estimate-memory.
    "memory_checkpoint_every": 5, "save_async": 5,
}
MORE_FILES_OF_FLAG = {
    # Placing of machines and workers: read from the job manager, hostfile and arguments, and part of the commands
    # that messages advise to run.
    "machine_rank": 7, "main_process_ip": 8, "main_process_port": 6, "num_machines": 8, "num_processes": 11,
    "rdzv_backend": 6, "use_cpu": 8,
    # Questions of Accelerate's questionnaire.
    "debug": 4, "gpu_ids": 4, "use_parallelism_config": 5,
    # Each front end has its row.
    "module": 4, "no_python": 5, "node_rank": 4,
    # Different flags of this name: of Accelerate and torchrun.
    "numa_binding": 4,
    # Messages that name it are printed where the error occurs.
    "preload": 5, "redirects": 4, "status_port": 6,
}


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


def python_imports(top):
    """By each module of the Python package, the others that it imports, at the top or in a function."""
    folder = pathlib.Path(top, "python", "acclaunch")
    found = {path.stem: set() for path in folder.glob("*.py")}
    for name, imported in found.items():
        for node in ast.walk(ast.parse((folder / f"{name}.py").read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported.update(each.name.partition("acclaunch.")[2] for each in node.names)
            elif isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "acclaunch":
                imported.update([node.module.partition(".")[2], *(each.name for each in node.names)])
    return {name: imported & found.keys() for name, imported in found.items()}


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


def code_of(top):
    """The text of each source and header of the products without its comments."""
    code = collections.defaultdict(str)
    for path, _, line in product_lines(top):
        code[path] += re.sub(r"(^|\s+)//.*", "", line)
    return {path: re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL) if path.endswith(".h") else text
            for path, text in code.items()}


def variables_in_two_places(code):
    """Names of variables that are literals in two files, and reads outside of the decoder."""
    places = collections.defaultdict(set)
    for path, text in code.items():
        for name in VARIABLE.findall(text):
            places[name].add(path)
        if re.search(r"\bgetenv\(", text) and path not in MAY_READ_VARIABLES:
            yield f"{path}: calls getenv; use process_variable of acc/base/variables.hpp"
    for name, paths in sorted(places.items()):
        if len(paths) > 1:
            yield f"{name} is a literal in {', '.join(sorted(paths))}; make it a constant of acc/base/variables.hpp"


def flags_in(path, text):
    """The words of a source that may be flags of a launch, or keys of its configuration file."""
    found = set(re.findall(r'"(\w+)"_key|\.key = "(\w+)"', text))
    if path.startswith(ACCELERATE_KEYS):
        found |= set(re.findall(r'"(\w+)"()', text))
    if not path.startswith(OWN_OPTIONS):
        found |= set(re.findall(r"--(\w+)()", text))
    return {name for pair in found for name in pair}


def too_widely_named(code):
    """Settings and flags that more files name than MAX_FILES_... and MORE_FILES_... allow."""
    rows = [(re.search(r'\.key = "(\w+)"', row).group(1), row)
            for row in re.split(r"\bSettingRow\{", code[SETTING_ROWS])[1:]]
    settings = [key for key, row in rows if ".plugin =" in row or ".engine =" in row]
    flags = [key for key, row in rows if ".section = launch" in row and key not in settings]
    flags += re.findall(r'\.key = "(\w+)"', code[FLAG_ROWS])
    code = {path: text for path, text in code.items() if not path.startswith(WITHOUT_SETTINGS)}
    # A function may have the name of a setting: Runtime::save_async.
    words = {path: set(re.findall(r"\b(\w+)\b(?!\()", text)) for path, text in code.items()}
    spelled = {path: flags_in(path, text) for path, text in code.items() if path.startswith(("launcher/", "plugins/"))}
    for keys, names, more, most in ((settings, words, MORE_FILES_OF_SETTING, MAX_FILES_OF_SETTING),
                                    (flags, spelled, MORE_FILES_OF_FLAG, MAX_FILES_OF_FLAG)):
        for key in sorted(set(keys)):
            paths = sorted(path for path, found in names.items() if key in found)
            if len(paths) > more.get(key, most):
                yield f"{key} is named in {len(paths)} files, at most {more.get(key, most)}: {', '.join(paths)}"


def members_not_compared(code):
    """Members of ShardingSettings that neither a row nor the agreement of the ranks names."""
    header = code["plugins/include/acc/settings/sharding_settings.hpp"]
    body = re.search(r"^struct ShardingSettings \{\n(.*?)^\};", header, re.DOTALL | re.MULTILINE).group(1)
    members = re.findall(r"^  (?!static)[\w:<>]+ (\w+)(?: =.*)?;$", body, re.MULTILINE)
    known = set(re.findall(r"&ShardingSettings::(\w+)", code[SETTING_ROWS]))
    known |= set(re.findall(r"\bsharding\.(\w+)", code["runtime/src/api/agreement.cpp"]))
    if len(members) < 40:
        yield f"only {len(members)} members of ShardingSettings found"
    for member in members:
        if member not in known:
            yield f"ShardingSettings::{member} has no row in {SETTING_ROWS} and no term in agreement.cpp"


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
    circle = find_circle(python_imports(top))
    if circle:
        problems.append("modules of the package acclaunch import each other in a circle: " + " -> ".join(circle))
    problems += forbidden_lines(top)
    problems += without_license(top)
    code = code_of(top)
    problems += variables_in_two_places(code)
    problems += too_widely_named(code)
    problems += members_not_compared(code)
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
