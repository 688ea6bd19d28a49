# SPDX-License-Identifier: Apache-2.0
"""Types command lines with tabs into interactive shells, which load the installed completion scripts.

    completion_test.py SHELL PAGES BIN     SHELL: bash, zsh or fish; PAGES: folder with the scripts
"""
import os
import pathlib
import pty
import re
import select
import shutil
import sys
import tempfile

SHELL, PAGES, BIN = sys.argv[1], *(pathlib.Path(name).absolute() for name in sys.argv[2:])
DEADLINE = 240

# Words typed after the program's name, and the arguments that the program then gets.
CASES = (
    ("acclaunch", "torchr\t", "torchrun"),
    ("acclaunch", "--mixed_prec\t bf\t train.py", "--mixed_precision bf16 train.py"),
    ("acclaunch", "--mixed-prec\t", "--mixed-precision"),
    ("acclaunch", "--mixed_precision=bf\t", "--mixed_precision=bf16"),
    ("acclaunch", "torchrun --nproc-p\t 2", "torchrun --nproc-per-node 2"),
    ("acclaunch", "torchrun --rdzv-endpoint host:29500 --start-m\t sp\t",
     "torchrun --rdzv-endpoint host:29500 --start-method spawn"),
    ("acclaunch", "--config_file conf/ze\t", "--config_file conf/zero2.yaml"),
    ("acclaunch", "--config_file=conf/ze\t", "--config_file=conf/zero2.yaml"),
    ("acclaunch", "explain deepspeed --includ\t", "explain deepspeed --include"),
    ("acclaunch", "convert in out --to safe\t", "convert in out --to safetensors"),
    ("acclaunch", "help estim\t", "help estimate-memory"),
    ("acclaunch", "prog --mixed_prec\t", "prog --mixed_prec"),  # an argument of the program
    ("acc-rendezvous", "--log_l\t de\t", "--log_level debug"),
)
START = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOAD = {
    "bash": "source PAGES/bash-completion/completions/PROGRAM",
    "zsh": "source PAGES/zsh/site-functions/_PROGRAM",
    "fish": "source PAGES/fish/vendor_completions.d/PROGRAM.fish",
}


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, folder):
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.environ.update(PATH=f"{folder}/bin:{os.environ['PATH']}", HOME=str(folder),
                              TERM="xterm", LC_ALL="C.UTF-8")
            os.execvp(START[SHELL][0], START[SHELL])
        self.seen = ""

    def enter(self, line, expected):
        """Types a line; returns the first match of `expected` in the output that follows."""
        os.write(self.file, (line + "\r").encode())
        begin = len(self.seen)
        while not (found := re.search(expected, self.seen[begin:])):
            if not select.select([self.file], [], [], DEADLINE)[0]:
                sys.exit(f"{SHELL}: no answer to {line!r}: {self.seen[begin:]!r}")
            try:
                data = os.read(self.file, 65536)
            except OSError:
                sys.exit(f"{SHELL} has ended: {self.seen!r}")
            self.seen += data.decode(errors="replace")
        return found

    def close(self):
        os.write(self.file, b"\x03\rexit\r")
        os.close(self.file)
        os.waitpid(self.pid, 0)


def main():
    if not shutil.which(SHELL):
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "bin").mkdir()
        (folder / "conf").mkdir()
        (folder / "conf/zero2.yaml").touch()
        for program in ("acclaunch", "acc-rendezvous"):  # prints its arguments, except for the script
            path = folder / "bin" / program
            path.write_text(f'#!/bin/sh\n[ "$1" != complete-words ] || exec {BIN}/{program} "$@"\n'
                            'printf "GOT""<%s>\\n" "$*"\n')
            path.chmod(0o755)
        terminal = Terminal(folder)
        if SHELL == "zsh":
            terminal.enter("PS1=; unsetopt list_beep; autoload -U compinit; compinit -D; echo REA''DY", "READY")
        for program in ("acclaunch", "acc-rendezvous"):
            load = LOAD[SHELL].replace("PAGES", str(PAGES)).replace("PROGRAM", program)
            terminal.enter(load + "; echo LOA''DED", "LOADED")
        for program, typed, expected in CASES:
            got = terminal.enter(f"{program} {typed}", r"GOT<(.*?) *>").group(1)
            assert got == expected, (SHELL, typed, got)
            print(f"{SHELL}: {program} {typed!r} gives {got!r}")
        terminal.close()


if __name__ == "__main__":
    main()
