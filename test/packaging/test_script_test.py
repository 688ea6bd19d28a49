# SPDX-License-Identifier: Apache-2.0
"""What `scripts/test` builds and runs, alone, with --all and in CI; it ends with the seconds of each step.

    test_script_test.py SOURCE_FOLDER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(sys.argv[1]).absolute()
# Stand-ins note their calls. Configuring writes a log of ninja; there are 100 tests, 30 of them for scripts/test alone.
NOTE = '#!/bin/sh\necho "$(basename "$0") $*" >>"$CALLS"\n'
STANDINS = {
    "bin/cmake": NOTE + """case $1 in
  -P) echo 'nvcc is missing' ;;
  --preset) mkdir -p "build/$2" && printf '# ninja log v5\\n0\\t4000\\t1\\tp/CMakeFiles/one.dir/a.o\\t1\\n' >"build/$2/.ninja_log" ;;
esac
""",
    "bin/ctest": NOTE + "case $* in *-N*-L*) echo 'Total Tests: 30' ;; *-N*) echo 'Total Tests: 100' ;; esac\n",
    "bin/python3": NOTE + """[ "$1" != -m ] || mkdir -p build/venv/bin
[ "$1" != -m ] || for name in pip python; do cp "$0" build/venv/bin/$name; done
""",
    "scripts/deps": NOTE, "scripts/lint": NOTE + '[ "lint $*" != "$BADLY" ]\n',
    "scripts/fuzz": NOTE + '[ "$1" != --compiler ] || echo clang++\n',
}


def run(*words, status=0, **variables):
    """Runs scripts/test in a folder of stand-ins. Returns its output and the calls of the stand-ins."""
    with tempfile.TemporaryDirectory() as name:
        clone = pathlib.Path(name)
        for path, text in STANDINS.items():
            (clone / path).parent.mkdir(exist_ok=True)
            (clone / path).write_text(text)
            (clone / path).chmod(0o755)
        for script in ("test", "build_seconds"):
            shutil.copy(SOURCE / "scripts" / script, clone / "scripts")
        environment = {key: value for key, value in os.environ.items() if key not in ("CI", "ACC_TEST_PYTHON")}
        done = subprocess.run([clone / "scripts/test", *words], text=True, capture_output=True, env={
            **environment, "PATH": f"{clone}/bin:{os.environ['PATH']}", "CALLS": str(clone / "calls"), "BADLY": "nothing",
            **variables})
        assert done.returncode == status, done
        return done.stdout, (clone / "calls").read_text().splitlines()


def place(calls, begin):
    found = [number for number, call in enumerate(calls) if call.startswith(begin)]
    assert found, (begin, calls)
    return found[0]


def main():
    out, calls = run("-R", "name")
    assert calls[:4] == ["deps --tests", "cmake --preset release", "cmake --build --preset release --target acc_main_tests",
                         calls[3]] and calls[3].endswith(" -L ^(unit|main)$ -R name"), calls
    assert "       4 one\n" in out and re.search(r"^ +\d+ +\d+ tests of release$", out, re.M), out
    assert "scripts/test --all runs 70 more tests" in out.splitlines()[-1], out

    out, calls = run("--all", CI="true")
    assert calls[:2] == ["deps --tests --all-tests --fuzz --lint", "lint --format"], calls
    sanitized = calls[place(calls, "cmake --build --preset asan --target ")].split()[5:]
    assert calls[place(calls, "cmake --preset asan ")].endswith(" -DCMAKE_CXX_COMPILER=clang++ -DACC_FUZZ=ON"), calls
    configured = place(calls, "cmake --preset ci ")
    assert f"-DACC_TESTS_ELSEWHERE={';'.join([*sanitized, 'fuzz'])}" in calls[configured].split(), calls
    assert place(calls, "pip install --quiet --disable-pip-version-check --no-compile torch") < configured, calls
    assert calls.count("cmake --build --preset ci") == 1, calls
    assert f"-R ^({'|'.join(sanitized)}):" in calls[place(calls, "ctest --preset asan ")], calls
    for begin in ("ctest --preset ci ", "cmake --build --preset asan --target fuzzers", "fuzz --check build/asan",
                  "lint --tidy"):
        place(calls, begin)
    for step in ("build of asan", "environment, beside other steps", "tests of ci", "fuzzing"):
        assert re.search(rf"^ +\d+ +\d+ {step}$", out, re.M), (step, out)

    # Findings in the format end the run at once, those of clang-tidy before the preset ci is configured.
    assert run("--all", CI="true", BADLY="lint --format", status=1)[1] == calls[:2]
    early = run("--all", CI="true", BADLY="lint --tidy", status=1)[1]
    assert not any("preset ci" in call for call in early), early
    assert place(calls, "pip install") < place(calls, "lint --tidy") < configured, calls

    assert "cmake --build --preset tsan" in run("--preset", "tsan")[1]


if __name__ == "__main__":
    main()
