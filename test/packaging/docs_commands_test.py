# SPDX-License-Identifier: Apache-2.0
"""Every command in the documentation is run, or checked by `acclaunch explain`, or listed here with the reason why not.

    docs_commands_test.py ROOT PREFIX WALKED_PAGE...

Blocks ```console``` are run by walk_test.py, which compares their output; their pages must be among WALKED_PAGEs. In
blocks ```sh``` every line is a command, in blocks without a language those lines that begin with a program of acclaunch.
A launch is checked with `acclaunch explain`, on a machine that seems to have 16 GPUs: its flags and files must be
accepted. Prints each command with what was done about it, and the counts.
"""
import collections
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

from walk_test import FENCE, commands_in

# Commands that are run as they are; their exit status must be 0.
RUN = (r"acclaunch (expand-hosts|completion|help|env\b|test --cpu)", r"acclaunch --version", r"HWLOC_SYNTHETIC=")
# Commands that are not run, with the reason.
NOT_RUN = (
    (r"(\./)?scripts/(quickstart|test|deps|lint)\b", "CI itself is scripts/test --all, which calls the others"),
    (r"scripts/package|pip install|apt-get install|python3 -m (venv|pip)|\S*/pip install|dpkg ",
     "installs; the tests `wheel` and scripts/try_debian do it in new environments"),
    (r"cmake |c\+\+ |cc ", "compiles; the walks and the test `consumer` do it"),
    (r"scripts/gpu_|\S*/gpu_check|debootstrap |chroot |umount |cp -r |tar |build/cuda", "needs a GPU, or root; gpu_check_standin"),
    (r"sbatch |srun |flux |bsub |scancel |scontrol |cp \S+/scripts/slurm/", "needs Slurm or another manager; the tests cluster_slurm and job environments"),
    (r"systemctl |chown |echo ACC_RENDEZVOUS_|kubectl |docker |podman |buildah ", "needs systemd, a cluster or a container engine"),
    (r"acc-rendezvous (init-tls|tunnel|ctl|job-token|reader-token|rotate-token)", "the tests secure_rendezvous, administration and monitoring"),
    (r"acclaunch doctor", "measures several machines; the test cluster_doctor"),
    (r"acclaunch (stacks \d|status( \d|$)|dump \d|top( |$))|torchfrtrace ", "needs a running job; the tests status_test, top and flight_dump"),
    (r"acclaunch (data|trace|plot|merge-weights|reshard|convert|inspect|verify)\b", "needs the files of a run; "
     "trace_test, checkpoint_commands_test, data_record_test"),
    (r"(ACC_RECORD=\S+ )?acclaunch compare\b|ACC_RECORD=", "trains twice; the test compare"),
    (r"acclaunch(-\w+)? config\b", "asks on a terminal; config_test"),
    (r"export |\. |source |cd ", "changes the shell only"),
    (r"python3? (-m )?bench|scripts/(container|site|fuzz|try_debian|slurm)", "takes minutes"),
    (r"acclaunch … ", "abbreviates the line above it"),
)
LAUNCH = re.compile(r"^((?:\w+=\S+ )*)(?:mpirun .*?|mpiexec .*?|srun .*?|flux run .*?|exec )?"
                    r"(?:\S*/)?acclaunch (?!doctor|status|stacks|trace|plot|top|dump|compare|data check)(.*)$")
OURS = re.compile(r"^(\w+=\S+ )*(\./)?(\S*bin/)?((acclaunch|acc-rendezvous|mpirun|mpiexec|srun|sbatch) |scripts/)")


def pages(root):
    found = [root / "README.md", root / "CONTRIBUTING.md", root / "configs/README.md"]
    docs = [page for page in root.glob("docs/**/*.md")  # without gpu_check's records, which quote output
            if page.parent.name != "gpu" or page.name == "README.md"]
    return found + sorted(docs) + sorted(root.glob("examples/**/README.md"))


def logical_lines(block):
    for line in re.sub(r"\\\n\s*", "", block).splitlines():
        line = re.sub(r"(^|\s+)#.*", "", line).strip()
        if line:
            yield line


def commands_of(text):
    """Yields (is_walked, command) for the commands of a page."""
    for language, title, block in FENCE.findall(text):
        if language == "console":
            for command, _ in commands_in(block):
                yield True, command
        elif not title and language in ("", "sh", "bash"):
            for line in logical_lines(block):
                line = line.removeprefix("$ ")
                # A synopsis has brackets and capitals instead of values.
                if (language or OURS.match(line)) and not re.search(r"\[-|\[[A-Z]|\b(PATH|SOURCE|DIR) OUT|^#", line):
                    yield False, line


class Checker:
    def __init__(self, folder, prefix):
        self.folder, self.prefix = folder, prefix
        self.environment = {
            "PATH": f"{prefix}/bin:{folder}:{os.environ['PATH']}", "HOME": str(folder), "LC_ALL": "C.UTF-8", "TMPDIR": str(folder),
            "ACC_SIMULATE_GPUS": "16", "SLURM_JOB_NUM_NODES": "1"}
        (folder / "configs").symlink_to(prefix / "share/acclaunch/configs")
        (folder / "fsdp.yaml").symlink_to(prefix / "share/acclaunch/configs/fsdp_full_shard.yaml")
        (folder / "build/release/bin").mkdir(parents=True)
        for name in ("train.py", "train", "mlp", "build/release/bin/train_torch"):
            (folder / name).write_text("#!/bin/sh\n")
            (folder / name).chmod(0o755)
        (folder / "hosts").write_text("node0 slots=4\nnode1 slots=4\n")

    def run(self, command):
        return subprocess.run(["bash", "-c", command], cwd=self.folder, env=self.environment, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def check(self, command):
        """Returns what was done, and the output if that failed."""
        if wrapped := re.match(r"sbatch .*--wrap '(.*)'$", command):
            command = wrapped[1]
        for pattern in RUN:
            if re.match(pattern, command):
                done = self.run(command)
                return "run", done.stdout if done.returncode else None
        for pattern, reason in NOT_RUN:
            if re.match(pattern, command):
                return f"not run: {reason}", None
        launch = LAUNCH.match(command)
        if not launch:
            return "not listed", "a command that is neither a launch nor listed in docs_commands_test.py"
        flags = re.sub(r"\s+…|…\s+|&$", " ", launch[2]).removeprefix("explain ")
        flags = re.sub(r"\b(PREFIX|DIR)/", f"{shlex.quote(str(self.prefix))}/", flags).replace("FIRST", "node0")
        done = self.run(f"{launch[1]}acclaunch explain {flags}")
        return "checked by explain", done.stdout if done.returncode else None


def main():
    root, prefix = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).absolute()
    walked = {pathlib.Path(page).resolve() for page in sys.argv[3:]}
    counts, wrong = collections.Counter(), 0
    with tempfile.TemporaryDirectory() as name:
        checker = Checker(pathlib.Path(name), prefix)
        for page in pages(root):
            for is_console, command in commands_of(page.read_text()):
                if is_console:
                    what, failure = "run, output compared", None if page.resolve() in walked else \
                        "a block ```console``` in a page that no walk runs: see test/packaging/CMakeLists.txt"
                else:
                    what, failure = checker.check(command)
                counts[what.split(":")[0]] += 1
                print(f"{page.relative_to(root)}: {what}: {command}")
                if failure is not None:
                    wrong += 1
                    print(f"  WRONG: {failure}")
    print(", ".join(f"{count} {what}" for what, count in counts.most_common()), f"({sum(counts.values())} commands)")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
