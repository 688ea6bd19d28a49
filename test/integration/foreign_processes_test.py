#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What root's status, stacks, dump and top do with the files that the processes of another user name.

    foreign_processes_test.py ACCLAUNCH

Exits with 77 unless it runs as root.
"""
import json
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from failures import exit_with

ACCLAUNCH = sys.argv[1]
NOBODY = 65534
DEADLINE = 240
ANSWERS = (".torch.json", ".torch", ".stacks")
SECRET = "the secret of root"
# torch's record as acclaunch/_flight.py writes it.
RECORD = json.dumps({"pg_config": {"0": {"ranks": "[0, 1]"}}, "entries": [
    {"process_group": ["0", "default_pg"], "collective_seq_id": 7, "profiling_name": "gloo:all_reduce", "state": "started",
     "time_created_ns": 1, "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"]}]})
# Workers are shell scripts, because another user may not be able to read the Python of this test.
WAITING = "echo ready; read line"
ANSWERING = f"""
record=$ACC_FLIGHT_RECORD
mkfifo -m 600 "$record.request" && exec 3<>"$record.request" && echo ready  # open from now on
answer() {{ printf '%s\\n' "$2" > "$record.new" && mv "$record.new" "$record$1"; }}
while :; do
  wanted=$(dd bs=16 count=1 <&3 2>/dev/null)
  case $wanted in *j*) answer .torch.json '{RECORD}';; esac
  case $wanted in *s*) answer .stacks 'frame of the worker';; esac
  case $wanted in *p*) answer .torch 'a pickle';; esac
done
"""

failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


def acclaunch(*words, **variables):
    return subprocess.run([ACCLAUNCH, *map(str, words)], capture_output=True, text=True, timeout=DEADLINE,
                          env={**os.environ, **variables})


class Worker:
    """A process with the variables of a worker. `root`: its root folder."""

    def __init__(self, record, program=WAITING, uid=NOBODY, root=None, **variables):
        shell = ["/bin/sh"] if root is None else ["chroot", root, "/bin/sh"]
        self.process = subprocess.Popen(
            [*shell, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, user=uid, group=uid, extra_groups=[], cwd="/", start_new_session=True,
            env={"PATH": os.environ["PATH"], "ACC_FLIGHT_RECORD": str(record), "RANK": "0", "WORLD_SIZE": "2", **variables})

    def __enter__(self):
        assert self.process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *_):
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def job(self):
        """What status says of the job; its launcher is the parent of this process."""
        done = acclaunch("status", "--json")
        if done.returncode != 0:
            return None
        return next((job for job in json.loads(done.stdout) if [rank["pid"] for rank in job["ranks"]] == [self.process.pid]), None)


def write(path, text=SECRET, mode=0o600, owner=0):
    path.write_text(text)
    path.chmod(mode)
    os.chown(path, owner, owner)
    return path


def victims(folder):
    """Files of root in a folder that all can search."""
    folder.mkdir()
    folder.chmod(0o755)
    return [write(folder / ("victim" + suffix)) for suffix in ("", *ANSWERS)]


def state(files):
    return [(file.read_text(), file.stat().st_mode, file.stat().st_ino) if file.exists() else None for file in files]


def look(folder, worker):
    """Runs every command that looks at the worker. Returns all that they print and write."""
    parent = str(os.getpid())
    output = folder / f"dump_{worker.process.pid}"
    done = [acclaunch("status", parent), acclaunch("status", "--json", parent), acclaunch("stacks", parent),
            acclaunch("top", "--once"), acclaunch("dump", parent, "-o", output)]
    written = [file.read_bytes().decode(errors="replace") for file in output.glob("*")] if output.exists() else []
    return "".join([text for each in done for text in (each.stdout, each.stderr)] + written)


def names_of_root_are_safe(folder):
    files = victims(folder / "of_root")
    before = state(files)
    with Worker(files[0]) as worker:
        check(worker.job() is not None, "root sees the job of another user")
        shown = look(folder, worker)
    check(state(files) == before, "a process of another user makes root change or remove files of root")
    check(SECRET not in shown, "a process of another user makes root show a file of root")


def own_folder(folder, name):
    made = folder / name
    made.mkdir()
    os.chown(made, NOBODY, NOBODY)
    return made


def traps(folder):
    """Names in the user's own folder that stand for something else."""
    secret = write(folder / "secret")
    for kind in ("link", "hard link", "fifo", "device", "huge", "folder"):
        made = own_folder(folder, kind.replace(" ", "_"))
        record = made / "record"
        for path in (record, *(Path(str(record) + suffix) for suffix in ANSWERS)):
            if kind == "link":
                path.symlink_to(secret)
            elif kind == "hard link":
                os.link(secret, path)
            elif kind == "fifo":
                os.mkfifo(path, 0o666)
            elif kind == "device":
                os.mknod(path, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
            elif kind == "huge":
                write(path, "", owner=NOBODY)
                os.truncate(path, 1 << 40)
            else:
                path.mkdir()
        with Worker(record) as worker:
            job = worker.job()
            check(job is not None and job["ranks"][0]["flight"] is None, f"{kind}: it is no record, found {job}")
            shown = look(folder, worker)
        check(SECRET not in shown, f"{kind}: root shows a file of root")
        check(secret.read_text() == SECRET, f"{kind}: root's file is as it was")


def worker_that_answers(folder):
    made = own_folder(folder, "answers")
    for suffix in ANSWERS:
        write(Path(f"{made}/record{suffix}"), "an old answer", owner=NOBODY)
    with Worker(made / "record", ANSWERING) as worker:
        job = worker.job()
        check(job["ranks"][0]["flight"] is not None and "all_reduce" in json.dumps(job),
              f"the worker of another user answers root, found {job}")
        stacks = acclaunch("stacks", os.getpid(), PATH="/nonexistent")
        check("frame of the worker" in stacks.stdout, f"it tells where it is, found {stacks}")
        output = folder / "dump"
        dump = acclaunch("dump", os.getpid(), "-o", output)
        check(dump.returncode == 0, f"its collectives can be dumped, found {dump}")
        check(b"all_reduce" in (output / "rank_0").read_bytes() and b"a pickle" not in (output / "rank_0").read_bytes(),
              "root gets no pickle that another user has written")
        check(stat.S_IMODE(output.stat().st_mode) == 0o700, f"the folder is private, found {oct(output.stat().st_mode)}")
        check(stat.S_IMODE((output / "rank_0").stat().st_mode) == 0o600, "the file is private")


def debuggers_run_as_the_user(folder):
    tools = folder / "tools"
    tools.mkdir()
    tools.chmod(0o755)
    reader = tools / "eu-stack"
    reader.write_text('#!/bin/sh\necho "user $(/usr/bin/id -u) groups $(/usr/bin/id -G) folder $PWD token <$ACC_TOKEN> process $2"\n')
    reader.chmod(0o755)
    with Worker(own_folder(folder, "stacks") / "record") as worker:
        stacks = acclaunch("stacks", os.getpid(), PATH=str(tools), ACC_TOKEN="hidden")
        expected = f"user {NOBODY} groups {NOBODY} folder / token <> process {worker.process.pid}"
        check(expected in stacks.stdout, f"expected {expected!r}, found {stacks}")


def other_root_folder(folder):
    """A process with another root folder means the files there, also by absolute links."""
    inside = folder / "inside"
    (inside / "logs").mkdir(parents=True)
    outside = victims(folder / "outside")
    before = state(outside)
    (inside / "logs" / "outside").symlink_to(folder / "outside")
    (inside / "logs" / "up").symlink_to("../../../../../.." + str(folder / "outside"))
    libraries = re.findall(r"/\S+", subprocess.run(["ldd", "/bin/sh"], capture_output=True, text=True, check=True).stdout)
    for file in ("/bin/sh", *libraries):
        (inside / file[1:]).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, inside / file[1:])
    for record in (folder / "outside" / "victim", "/logs/outside/victim", "/logs/up/victim"):
        with Worker(record, uid=0, root=inside) as worker:
            look(folder, worker)
        check(state(outside) == before, f"{record}: root changes files outside the root folder of the process")


def words_of_another_user(folder):
    made = own_folder(folder, "words")
    run = f"run-{os.getpid()}"
    with Worker(made / "record", SLURM_JOB_ID="1; touch /tmp/x", WORLD_SIZE="4", GROUP_WORLD_SIZE="2") as worker:
        shown = look(folder, worker)
        check("touch" not in shown, "a proposed command has words of another user")
    with Worker(made / "record", MASTER_ADDR="host", MASTER_PORT="1", TORCHELASTIC_RUN_ID=run) as other:
        with Worker(made / "none", MASTER_ADDR="host", MASTER_PORT="1", TORCHELASTIC_RUN_ID=run, uid=0) as own:
            jobs = json.loads(acclaunch("status", "--json", run).stdout)
            check(sorted(len(job["ranks"]) for job in jobs) == [1, 1],
                  f"processes of two users are no job, found {jobs} for {own.process.pid}, {other.process.pid}")


def main():
    if os.geteuid() != 0:
        print("needs root, to start processes of another user")
        sys.exit(77)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())).resolve()
        folder.chmod(0o755)
        for case in (names_of_root_are_safe, traps, worker_that_answers, debuggers_run_as_the_user, other_root_folder,
                     words_of_another_user):
            case(folder)
    exit_with(failures)


main()
