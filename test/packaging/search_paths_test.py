# SPDX-License-Identifier: Apache-2.0
"""No program and no library searches libraries in the current folder, where anybody may have put one.

    search_paths_test.py FOLDER...

Reads the dynamic section of every ELF file below the folders (ELF-64, little endian): each entry of RPATH, RUNPATH,
AUXILIARY and FILTER, and each needed library that is named with a slash, must be absolute or begin with $ORIGIN. The
loader takes an empty entry, such as that of "a:" or "::", for the current folder (ld.so(8)).
"""
import pathlib
import struct
import sys

NULL, NEEDED, STRTAB, RPATH, RUNPATH, AUXILIARY, FILTER = 0, 1, 5, 15, 29, 0x7ffffffd, 0x7fffffff
LOAD, DYNAMIC = 1, 2


def dynamic_strings(data):
    """Yields (tag, string) of an ELF file's dynamic section."""
    table, = struct.unpack_from("<Q", data, 32)
    size, count = struct.unpack_from("<HH", data, 54)
    segments = [struct.unpack_from("<IIQQQQ", data, table + size * index) for index in range(count)]
    for kind, _, offset, _, _, length in segments:
        if kind != DYNAMIC:
            continue
        entries = []
        for at in range(offset, offset + length, 16):
            entries.append(struct.unpack_from("<QQ", data, at))
            if entries[-1][0] == NULL:
                break
        address = dict(entries).get(STRTAB)
        strings = next(begin + address - mapped for segment, _, begin, mapped, _, length in segments
                       if segment == LOAD and mapped <= address < mapped + length)
        for tag, value in entries:
            if tag in (NEEDED, RPATH, RUNPATH, AUXILIARY, FILTER):
                yield tag, data[strings + value:data.index(b"\0", strings + value)].decode()


def safe(path):
    return path.startswith("/") or path == "$ORIGIN" or path.startswith("$ORIGIN/")


def main():
    checked, wrong = 0, []
    for folder in map(pathlib.Path, sys.argv[1:]):
        for path in sorted(folder.rglob("*")):
            if path.is_symlink() or not path.is_file() or path.suffix == ".o":
                continue
            with path.open("rb") as file:
                if file.read(6) != b"\x7fELF\2\1":
                    continue
                file.seek(0)
                data = file.read()
            checked += 1
            for tag, value in dynamic_strings(data):
                if tag in (RPATH, RUNPATH):
                    if not all(map(safe, value.split(":"))):
                        wrong.append(f"{path}: it searches libraries in [{value}]")
                elif "/" in value and not safe(value):
                    wrong.append(f"{path}: it needs {value!r}")
    print(*wrong, f"{checked} ELF files, {len(wrong)} that search the current folder", sep="\n")
    if not checked:
        sys.exit("there is no ELF file")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
