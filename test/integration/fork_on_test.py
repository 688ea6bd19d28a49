# SPDX-License-Identifier: Apache-2.0
"""A job ends although its workers leave processes that fork on, without a control group:
fork_on_test.py ACCLAUNCH FORK_ON. In pid and mount namespaces of its own; exits with 77 without."""
import os
import pathlib
import subprocess
import sys

ACCLAUNCH, FORK_ON = sys.argv[1:3]
MOST = 300  # processes at a time
INSIDE = "ACC_OWN_PROCESSES"


def enter_namespaces():
    # The control groups are hidden; --kill-child ends what a failed test leaves.
    for flags in ("-mpf", "-rmpf"):
        words = ["unshare", flags, "--kill-child", "--mount-proc", "sh", "-c",
                 'mount -t tmpfs none /sys/fs/cgroup && exec "$@"', "sh"]
        try:
            if subprocess.run([*words, "true"], capture_output=True).returncode == 0:
                os.environ[INSIDE] = "1"
                os.execvp(words[0], [*words, sys.executable, *sys.argv])
        except FileNotFoundError:
            break
    print("skipped: no namespaces")
    sys.exit(77)


def processes():
    """Returns the other processes of the namespace, also those that have ended and are not reaped."""
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid())


def check(kind):
    before = processes()
    done = subprocess.run([ACCLAUNCH, "--cpu", "--num_processes", "2", "--no_python", FORK_ON, kind, str(MOST)],
                          capture_output=True, text=True)
    print(kind, done.returncode, done.stderr, flush=True)
    if done.returncode == 77:
        sys.exit(77)
    assert done.returncode == 1, done.returncode
    assert "killed:" not in done.stderr and "could not be killed" not in done.stderr
    left = [(pid, pathlib.Path(f"/proc/{pid}/stat").read_text()) for pid in processes() if pid not in before]
    assert not left, left


def main():
    if INSIDE not in os.environ:
        enter_namespaces()
    for kind in ("chain", "hop", "bomb", "hop-bomb"):
        check(kind)


main()
