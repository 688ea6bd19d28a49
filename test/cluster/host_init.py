# SPDX-License-Identifier: Apache-2.0
"""The first process of a virtual host. Mounts the private file systems of the host, then reaps orphans.

    host_init.py NAME FOLDER    FOLDER contains "hosts", which becomes /etc/hosts, and "NAME.boot_id"
"""
import os
import random
import signal
import subprocess
import sys


def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)


def main(name, folder):
    mount("-t", "tmpfs", "-o", "mode=1777", "tmpfs", "/dev/shm")
    mount("--bind", f"{folder}/hosts", "/etc/hosts")
    mount("--bind", f"{folder}/{name}.boot_id", "/proc/sys/kernel/random/boot_id")
    with open("/proc/sys/kernel/hostname", "w") as hostname:
        hostname.write(name)
    # Pids start at a random number, so that a rebooted host does not reuse those of its earlier run.
    with open("/proc/sys/kernel/ns_last_pid", "w") as last_pid:
        last_pid.write(str(random.randrange(100, 20000)))
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    print("ok", flush=True)
    while True:
        signal.sigwait([signal.SIGCHLD])
        try:
            while os.waitpid(-1, os.WNOHANG)[0] != 0:
                pass
        except ChildProcessError:
            pass


main(*sys.argv[1:])
