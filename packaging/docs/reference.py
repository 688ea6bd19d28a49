# SPDX-License-Identifier: Apache-2.0
"""Writes the API reference as Markdown: one page per public header, in the order of the header.

    reference.py FOLDER     run in the root of the repository

A comment and the declarations below it, up to the next comment or empty line, form one entry. A declaration
without a comment above or in it is an error, except opaque handles, forward declarations, and constructors that only copy,
move or destroy. The page of the Python package is written by mkdocstrings, from docstrings.
"""
import ast
import pathlib
import re
import sys

HEADERS = {
    "cpp": ("C++", [
        "runtime/include/acc/runtime.hpp", "runtime/include/acc/runtime/types.hpp",
        "runtime/include/acc/runtime/initializer.hpp", "runtime/include/acc/runtime/optimizers.hpp",
        "runtime/include/acc/runtime/lr_schedule.hpp", "runtime/include/acc/runtime/checkpoint_series.hpp",
        "runtime/include/acc/runtime/data_order.hpp", "runtime/include/acc/runtime/reports.hpp",
        "plugins/include/acc/base/error.hpp",
        "plugins/include/acc/settings/fsdp_plugin.hpp", "plugins/include/acc/settings/deepspeed_plugin.hpp",
        "runtime/torch/include/acc/torch.hpp"]),
    "c": ("C", [
        "runtime/include/acc/runtime.h", "runtime/include/acc/runtime_checkpoint.h",
        "runtime/include/acc/runtime_data.h",
        "runtime/include/acc/collectives.h"]),
}
SECTION = re.compile(r"^/\* -+ (.+?) -+ ?\*/$")
# What every class may have, and what a reader does not call.
PLUMBING = re.compile(r"= delete;|= default;|^friend |^~|\w+\(\w+&& other\)|operator=\(\w+&& other\)|^#|^extern \"C\"")


class Reader:
    """The lines of a header, from which comments and whole declarations are taken."""

    def __init__(self, lines):
        self.lines, self.next = lines, 0

    def more(self):
        return self.next < len(self.lines)

    def peek(self):
        return self.lines[self.next]

    def take(self):
        self.next += 1
        return self.lines[self.next - 1]

    def comment(self):
        """Takes a comment of either kind and returns its text."""
        if self.peek().strip().startswith("///"):
            found = []
            while self.more() and self.peek().strip().startswith("///"):
                found.append(re.sub(r"^/// ?", "", self.take().strip()))
            return "\n".join(found)
        found = [self.take()]
        while "*/" not in found[-1]:
            found.append(self.take())
        text = re.sub(r"^\s*/\*+|\*+/\s*$", "", "\n".join(found))
        lines = [re.sub(r"^\s*\* ?", "", line) if number else line.strip() for number, line in enumerate(text.split("\n"))]
        return "\n".join(lines).strip()

    def declaration(self):
        """Takes lines up to the end of a declaration: a `;` or a closing brace outside of brackets."""
        found, depth = [], 0
        if self.peek().startswith("#"):
            found.append(self.take())
            while found[-1].endswith("\\"):
                found.append(self.take())
            return found
        while True:
            line = self.take()
            found.append(line)
            code = re.sub(r"//.*|/\*.*?(\*/|$)|'.'|\"[^\"]*\"|^\s*[^/]*\*/$", "", line)
            depth += sum(code.count(each) for each in "({") - sum(code.count(each) for each in ")}")
            if depth == 0 and re.search(r"[;}]\s*$", code.strip()):
                return found


def text_of(comment):
    """Comment text as Markdown: identifiers in backticks stay, other special characters are escaped."""
    lines, after_text = [], False
    for line in comment.split("\n"):
        if line.startswith("    "):
            if after_text:
                lines.append("")
            after_text = False
        else:
            parts = line.split("`")
            parts[::2] = [re.sub(r"([*_<\[\]])", r"\\\1", each) for each in parts[::2]]
            line = "`".join(parts)
            after_text = bool(line)
        lines.append(line)
    return "\n".join(lines)


def names_in(code):
    """Names that a declaration declares, without those of its parameters."""
    head = re.sub(r"template <[^>]*>\s*|\bACC_API |\[\[nodiscard\]\] |\bstatic |\bexplicit |/\*.*?\*/|//[^\n]*", "", code,
                  flags=re.DOTALL).strip()
    for pattern in (r"^#define (\w+)", r"^typedef (?:struct|enum) \w* ?\{.*\} (\w+);$", r"^typedef .*\(\*(\w+)\)",
                    r"^typedef (?:struct|enum) \w+ (\w+);$", r"^(?:class|struct|enum class|enum) (\w+)",
                    r"^using ([\w:]+)", r"^[^=({]*?(operator\W+?)\(", r"^[^({]*?(\w+)\s*\(", r"(\w+)(?:\[\w*\])?\s*(?:=[^;]*|\{[^;]*)?;$"):
        if found := re.search(pattern, head, re.DOTALL):
            return found[1]
    raise SystemExit(f"reference.py: no name in: {code}")


def without_body(code):
    """A function's declaration without its definition."""
    found = re.match(r"(.*?\))( const)?( noexcept)? (?::[^{]*)?\{.*\}$", code, re.DOTALL)
    return f"{found[1]}{found[2] or ''}{found[3] or ''};" if found and not code.startswith(("struct", "enum", "#")) else code


class Page:
    def __init__(self, path, language):
        self.path, self.language = path, language
        self.name = re.sub(r".*/include/", "", path)
        self.out, self.missing, self.intro, self.count, self.comments = [], [], "", 0, ""

    def entries(self, reader, level, owner=""):
        """Reads the declarations of a namespace or of a class's public part."""
        comment, group, is_private = "", [], False

        def flush():
            nonlocal comment, group
            if group:
                self.entry(level, owner, comment, group)
            comment, group = "", []

        while reader.more():
            line = reader.peek().strip()
            if line in ("public:", "private:", "protected:"):
                is_private = line != "public:"
                flush()
                reader.take()
            elif SECTION.match(line):
                flush()
                title = SECTION.match(reader.take().strip())[1]
                self.out.append(f"## {title[0].upper()}{title[1:]}\n")
                level = 3
            elif not line or line == "}":
                flush()
                reader.take()
            elif line.startswith(("///", "/*")):
                flush()
                comment = reader.comment()
            elif line.startswith("namespace detail"):
                flush()
                while not reader.take().startswith("}  // namespace detail"):
                    pass
            elif line.startswith(("namespace ", "extern ", "}  // namespace")):
                self.intro = self.intro or (comment if line.startswith("namespace ") else "")
                comment = ""
                reader.take()
            elif line.startswith("#") and not line.startswith("#define ACC_"):
                flush()
                reader.declaration()
            elif line.startswith("//"):
                reader.take()
            else:
                lines = reader.declaration()
                code = "\n".join(lines)
                stripped = code.strip()
                if is_private or PLUMBING.search(stripped.split("\n")[0]) and not stripped.startswith("#define") \
                        or stripped.startswith("#define ACC_NOEXCEPT") \
                        or re.fullmatch(r"(class|struct) \w+;", stripped):
                    continue
                if re.match(r"(class|template <[^>]*>\s*class)\b", stripped):
                    self.klass(level, comment, lines)
                    comment = ""
                else:
                    group.append(without_body(self.dedent(lines)))
        flush()

    @staticmethod
    def dedent(lines):
        margin = len(lines[0]) - len(lines[0].lstrip())
        return "\n".join(line[margin:] if not line[:margin].strip() else line.lstrip() for line in lines)

    def klass(self, level, comment, lines):
        name = re.search(r"class (?:ACC_API )?(\w+)", lines[0])[1]
        head = lines[0].split("{")[0].strip()
        self.entry(level, "", comment, [f"{head};"], name)
        self.entries(Reader(lines[1:-1]), level + 1, name)

    def entry(self, level, owner, comment, group, name=None):
        self.comments += comment
        names = list(dict.fromkeys(names_in(code) for code in group)) if name is None else [name]
        # A comment of a class or an enumeration may name its helpers: "`to_string` returns …".
        documented = comment or any("/*" in code or "//" in code for code in group) or \
            all(f"`{each}`" in self.comments for each in names)
        if not documented and not all(re.match(r"typedef struct \w+ \w+;|using \w+::|.*_INITIALIZER", code, re.DOTALL) for code in group):
            if owner and names == [owner]:
                return  # a constructor
            self.missing.append(f"{self.path}: {', '.join(names)} has no comment")
        self.count += len(group)
        title = ", ".join(f"`{each}`" for each in names[:6]) + (", …" if len(names) > 6 else "")
        anchors = "".join(f'<a id="{owner}{"." * bool(owner)}{each}"></a>' for each in names)
        self.out.append(f"{'#' * level} {title}\n")
        if anchors:
            self.out.append(f"{anchors}{text_of(comment)}\n" if comment else anchors + "\n")
        fence = "cpp" if self.language == "cpp" else "c"
        self.out.append(f"```{fence}\n" + "\n".join(group) + "\n```\n")

    def text(self):
        source = pathlib.Path(self.path).read_text()
        lines = [line for line in source.split("\n") if "SPDX-License-Identifier" not in line and line != "#pragma once"]
        if self.language == "c":  # the first comment describes the header
            reader = Reader(lines)
            while not reader.peek().startswith("/*"):
                reader.take()
            self.intro = re.sub(r"(?m)^ ", "", reader.comment())
            lines = lines[reader.next:]
        self.entries(Reader(lines), 2)
        return "\n".join([f"# {self.name}\n", text_of(self.intro), "", *self.out])


def public_names(modules, name):
    """What `__all__` of a module lists; `*other.__all__` in it stands for the list of another module."""
    names = next(node.value for node in modules[name].body
                 if isinstance(node, ast.Assign) and node.targets[0].id == "__all__")
    found = []
    for each in names.elts:
        found += public_names(modules, each.value.value.id) if isinstance(each, ast.Starred) else [each.value]
    return found


def undocumented_python():
    """Public classes, functions and methods of the Python package that have no docstring."""
    found = []
    package = pathlib.Path("python/acclaunch")
    modules = {path.stem: ast.parse(path.read_text()) for path in sorted(package.glob("*.py"))}
    for name in ("torch", "c10d", "data"):
        public = public_names(modules, name)
        for module, tree in modules.items():
            for node in tree.body:
                if getattr(node, "name", None) not in public or not isinstance(node, (ast.ClassDef, ast.FunctionDef)):
                    continue
                parts = [(node.name, node)] + [
                    (f"{node.name}.{part.name}", part) for part in node.body if isinstance(node, ast.ClassDef) and
                    isinstance(part, ast.FunctionDef) and not part.name.startswith("_") and
                    not any("setter" in ast.unparse(each) for each in part.decorator_list)]
                found += [f"python/acclaunch/{module}.py: {title} has no docstring" for title, part in parts
                          if not ast.get_docstring(part)]
    return found


PYTHON = """# Python

Import as `import acclaunch.torch as acc`. [PyTorch modules](../docs/pytorch.md) explains the use.

::: acclaunch.torch
"""
DATA = """
## The order of samples

[Data in order](../docs/data.md) explains the use.

::: acclaunch.data
"""
BACK_END = """
## The back end of torch.distributed

::: acclaunch.c10d
"""


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    missing, index, count = undocumented_python(), ["# API reference\n"], 0
    for language, (title, paths) in HEADERS.items():
        index.append(f"## {title}\n")
        for path in paths:
            page = Page(path, language)
            name = page.name.replace("/", "_") + ".md"
            (folder / name).write_text(page.text())
            missing += page.missing
            count += page.count
            first = re.split(r"(?<=\.)\s", page.intro.replace("\n", " "), maxsplit=1)[0]
            index.append(f"- [`{page.name}`]({name}){': ' + text_of(first) if first else ''}")
        index.append("")
    (folder / "python.md").write_text(PYTHON + DATA + BACK_END)
    index += ["## Python\n", "- [`acclaunch.torch`, `acclaunch.data`, `acclaunch.c10d`](python.md)"]
    (folder / "index.md").write_text("\n".join(index) + "\n")
    print(f"reference: {count} declarations in {sum(len(paths) for _, paths in HEADERS.values())} headers")
    for each in missing:
        print(each)
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
