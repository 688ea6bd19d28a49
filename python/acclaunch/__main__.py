# SPDX-License-Identifier: Apache-2.0
"""`python -m acclaunch ARGUMENTS` runs the program acclaunch of the installation that this package
belongs to. Its workers run under the same Python as this module, unless PYTHON_EXEC names another."""

import os
import pathlib
import sys
import sysconfig


def find():
    """Path of the program: next to this interpreter's programs, or in the build folder or prefix of
    this package."""
    here = pathlib.Path(__file__).absolute()
    folders = [here.parents[2] / "bin"]  # build/release/python/acclaunch
    if len(here.parents) > 4:  # PREFIX/lib/python3.N/site-packages/acclaunch, PREFIX/share/acclaunch/python/acclaunch
        folders.append(here.parents[4] / "bin")
    folders.append(pathlib.Path(sysconfig.get_path("scripts")))
    for folder in folders:
        if os.access(folder / "acclaunch", os.X_OK):
            return str(folder / "acclaunch")
    sys.exit("python -m acclaunch: the program acclaunch was not found in " + ", ".join(map(str, folders)))


def main():
    os.environ.setdefault("PYTHON_EXEC", sys.executable)
    program = find()
    os.execv(program, [program, *sys.argv[1:]])


if __name__ == "__main__":
    main()
