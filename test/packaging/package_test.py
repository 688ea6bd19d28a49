# SPDX-License-Identifier: Apache-2.0
"""`scripts/package wheel` packs build/release if its options fit a package, else build/package, and shows its progress.

    package_test.py SOURCE_FOLDER
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1]).absolute()
# Instead of cmake: notes what is built, prints the progress of ninja, and fails, so that nothing is packed.
CMAKE = """#!/bin/sh
echo "$@" >>"$CALLS"
case $1 in --build) echo '[1/2] one'; echo '[2/2] two'; echo 'an error of the compiler'; exit 1 ;; esac
mkdir -p "$4" && echo ACC_EXAMPLES:BOOL=OFF >>"$4/CMakeCache.txt"
"""
FITS = {"CMAKE_HOME_DIRECTORY:INTERNAL": "{clone}", "CMAKE_BUILD_TYPE:STRING": "Release", "CMAKE_GENERATOR:INTERNAL": "Ninja",
        "CMAKE_INSTALL_LIBDIR:PATH": "lib", "CMAKE_CXX_FLAGS:STRING": "", "ACC_CUDA:BOOL": "OFF", "ACC_FUZZ:BOOL": "OFF",
        "ACC_SANITIZE:STRING": "", "ACC_EXAMPLES:BOOL": "ON"}


def package(options):
    """Runs scripts/package in a clone whose build/release has these options. Returns its output and cmake's last call."""
    with tempfile.TemporaryDirectory() as name:
        clone = pathlib.Path(name).resolve() / "clone"
        (clone / "scripts").mkdir(parents=True)
        for script in ("package", "build_progress"):
            shutil.copy(SOURCE / "scripts" / script, clone / "scripts")
        shutil.copy(SOURCE / "CMakeLists.txt", clone)
        for path, text in (("scripts/deps", "#!/bin/sh\n"), ("bin/cmake", CMAKE)):
            (clone / path).parent.mkdir(exist_ok=True)
            (clone / path).write_text(text)
            (clone / path).chmod(0o755)
        if options is not None:
            (clone / "build/release").mkdir(parents=True)
            lines = [f"{key}={value.format(clone=clone)}\n" for key, value in (FITS | options).items()]
            (clone / "build/release/CMakeCache.txt").write_text("".join(lines))
        done = subprocess.run([clone / "scripts/package", "wheel"], text=True, capture_output=True, env={
            **os.environ, "PATH": f"{clone}/bin:{os.environ['PATH']}", "CALLS": str(clone / "calls")})
        assert done.returncode == 1, done
        return done.stdout, done.stderr, (clone / "calls").read_text().splitlines()[-1]


def main():
    for options, tree in (({}, "build/release"), ({"ACC_EXAMPLES:BOOL": "OFF"}, "build/release"), (None, "build/package"),
                          ({"CMAKE_BUILD_TYPE:STRING": "Debug"}, "build/package"), ({"ACC_CUDA:BOOL": "ON"}, "build/package"),
                          ({"ACC_SANITIZE:STRING": "thread"}, "build/package"), ({"ACC_QUICK_BUILD:BOOL": "ON"}, "build/package"),
                          ({"CMAKE_CXX_FLAGS:STRING": "-march=native"}, "build/package"),
                          ({"CMAKE_INSTALL_LIBDIR:PATH": "lib/x86_64-linux-gnu"}, "build/package"),
                          ({"CMAKE_HOME_DIRECTORY:INTERNAL": "/elsewhere"}, "build/package")):
        out, err, call = package(options)
        assert call.startswith(f"--build {tree} --target acclaunch_program acc_runtime "), (options, call)
        assert ("train_gpt" in call) == (options == {}), (options, call)  # cmake --install copies it
        assert out.startswith(f"scripts/package: {'packing' if tree == 'build/release' else 'building'} {tree}"), out
        assert "building: 50 % of 2 steps\nbuilding: 100 % of 2 steps\n" in out, out
        assert "an error of the compiler" in err, err
        print(f"{options}: {tree}")


if __name__ == "__main__":
    main()
