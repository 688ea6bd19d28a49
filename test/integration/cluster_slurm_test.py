# SPDX-License-Identifier: Apache-2.0
"""acclaunch in jobs of a real Slurm, on virtual hosts.

    python cluster_slurm_test.py BIN [SCENARIO...]    BIN holds acclaunch and train_gpt

Prints how long each scenario took, without checking it. Exits with 77 without Slurm or virtual hosts.
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time

sys.path[:0] = [str(pathlib.Path(__file__).resolve().parents[1] / name) for name in ("cluster", "packaging")]
import slurm  # noqa: E402
from cluster_jobs import (CONFIG, ENDLESS, GOLDEN, ROOT, check_losses, report,  # noqa: E402
                          steps_in)
from hosts import check, wait_until  # noqa: E402
from walk_test import FENCE  # noqa: E402

SKIPPED = 77
TEMPLATES = ROOT / "scripts" / "slurm"
PYTHON = os.environ.get("ACC_TEST_PYTHON", sys.executable)


class Site:
    """The Slurm cluster, and the folders of the programs and their files."""

    def __init__(self, cluster, programs, folder):
        self.slurm, self.folder = cluster, folder
        self.acclaunch, self.train_gpt = programs / "acclaunch", programs / "train_gpt"
        self.variables = {"ACCLAUNCH": str(self.acclaunch)}  # variables of the templates
        cluster.variables["OMP_NUM_THREADS"] = "1"  # all nodes share this machine's cores

    def line(self, *training, flags=()):
        """The command line of acclaunch, which is the same for every site."""
        words = [self.acclaunch, "--config_file", CONFIG, *flags, self.train_gpt, *training]
        return list(map(str, words))

    def batch(self, options, line):
        """Submits a batch script that contains only this command line."""
        return self.slurm.sbatch([*options, "--wrap", "exec " + shlex.join(line)])

    def template(self, name, options, training, program=None, **variables):
        """Submits a template. Its arguments are acclaunch's: a flag, the program and the program's arguments."""
        line = ["--config_file", CONFIG, program or self.train_gpt, *training]
        return self.slurm.sbatch([*options, TEMPLATES / name, *line], {**self.variables, **variables})

    def metrics(self, name):
        return self.folder / f"{name}.jsonl"

    def expect_nothing_left(self, what):
        for name in self.slurm.nodes:
            wait_until(lambda: not self.slurm.left(name),
                       f"{what}: nothing is left on {name}: {self.slurm.left(name)}")


def same_line(site):
    """HYBRID_SHARD on 2 and 4 machines: in a batch script, with srun (two ways), with salloc."""
    for nodes in (2, 4):
        def run(name, start):
            what = f"{name}, {nodes} nodes"
            begin = time.monotonic()
            metrics = site.metrics(f"same_{name.replace(' ', '_')}_{nodes}")
            start(site.line(*GOLDEN, "--metrics", metrics))
            report(what, begin)
            check_losses(metrics, 4, what)

        count = f"--nodes={nodes}"
        run("sbatch", lambda line: check(site.batch([count], line).wait() == (0, 0), "status"))
        run("srun, one task per node", lambda line: site.slurm.srun(
            [count, "--ntasks-per-node=1", *line]).expect_status(0))
        run("srun, one task per rank", lambda line: site.slurm.srun(
            [count, f"--ntasks-per-node={4 // nodes}", *line]).expect_status(0))
        run("salloc", lambda line: site.slurm.run(["salloc", count, *line]).expect_status(0))


def templates(site):
    """The unchanged templates, concurrently on the same machines unless they request whole ones."""
    begin = time.monotonic()
    one, several = site.metrics("one_node"), site.metrics("several_nodes")
    own = site.folder / "own.py"  # a user's program
    own.write_text("import os, sys\nprint('rank', os.environ['RANK'], 'has', sys.argv[1:])\n")
    jobs = [site.template("one_node.sbatch", ["--nodelist=node0"], [*GOLDEN, "--metrics", one]),
            site.template("several_nodes.sbatch", ["--nodelist=node[1-2]"],
                          [*GOLDEN, "--metrics", several], WORKERS="2"),
            site.template("one_node.sbatch", ["--nodelist=node3"], ["--epochs", "3"], own, WORKERS="2")]
    for job in jobs:
        check(job.wait() == (0, 0), "a template's status")
    check_losses(one, 4, "one_node.sbatch")
    check_losses(several, 4, "several_nodes.sbatch")
    for rank in (0, 1):
        check(f"rank {rank} has ['--epochs', '3']" in jobs[2].text(), jobs[2].text())
    report("one_node.sbatch and several_nodes.sbatch", begin)

    begin = time.monotonic()
    runs = site.folder / "runs"
    golden = site.folder / "golden"  # writes its losses into the folder of the run, which is the last argument
    golden.write_text(f'#!/bin/sh\nfor run; do :; done\nexec {site.train_gpt} "$@" --metrics "$run/metrics.jsonl"\n')
    golden.chmod(0o755)
    array = site.template("array.sbatch", ["--array=1-3", "--nodelist=node0"], GOLDEN, golden, RUNS=str(runs))
    wait_until(lambda: not site.slurm.ask(["squeue", "--noheader", f"--job={array.id}"]), "the array")
    for seed in (1, 2, 3):
        check_losses(runs / f"seed_{seed}" / "metrics.jsonl", 2, f"array.sbatch, seed {seed}")
    report("array.sbatch, three runs on a machine", begin)


def page(site):
    """The lines of docs/start/hpc.md as printed, from an empty folder, with the files that the wheel has."""
    begin = time.monotonic()
    if subprocess.run([PYTHON, "-c", "import torch"], capture_output=True).returncode:
        return  # its program needs torch
    home = site.folder / "home"
    prefix, work = home / "train", home / "work"
    work.mkdir(parents=True)
    subprocess.run(["cmake", "--install", site.acclaunch.parents[1], "--prefix", prefix], check=True, capture_output=True)
    (prefix / "bin" / "train_gpt").unlink()  # not in the wheel
    (prefix / "bin" / "activate").write_text(f"export PATH={prefix}/bin:{pathlib.Path(PYTHON).parent}:$PATH\n"
                                             f"export PYTHONPATH={prefix}/share/acclaunch/python\n")
    text = (ROOT / "docs" / "start" / "hpc.md").read_text()
    blocks = FENCE.findall(text[text.index("## 3."):text.index("## 4.")])
    for _, title, block in blocks:
        if title:
            (work / title).write_text(block)
    lines = next(block for _, _, block in blocks if "sbatch " in block)
    running = site.slurm.run(["bash", "-euc", f"cd {work}\n{lines}"], {"HOME": str(home), "WORKERS": "1"})
    running.expect_status(0)
    jobs = re.findall(r"Submitted batch job (\d+)", running.text())
    check(len(jobs) == lines.count("\nsbatch "), running.text())
    wait_until(lambda: not site.slurm.ask(["squeue", "--noheader", "--job=" + ",".join(jobs)]), "the page's jobs",
               failure=lambda what: AssertionError(f"{what}\n{site.slurm.ask(['squeue'])}"))
    outputs = {path.name: path.read_text() for path in work.glob("*.out")}
    check(len(outputs) == len(jobs) + 3, f"one output per run, four of the array: {list(outputs)}")
    for name, output in outputs.items():
        check("saved step " in output, f"{name}:\n{output}")
    report(f"{len(jobs)} lines of docs/start/hpc.md", begin)


def two_jobs(site):
    """Two jobs train concurrently on the same machines, and then get a stop signal."""
    begin = time.monotonic()
    jobs = [site.batch(["--nodes=2", "--nodelist=node[0-1]"],
                       site.line(*ENDLESS, "--checkpoint", site.folder / f"two_{number}"))
            for number in (1, 2)]
    for job in jobs:
        job.wait_for("step 1/")
    for job in jobs:
        check(job.facts()["JobState"] == "RUNNING", f"job {job.id} has ended")
        site.slurm.scancel("--batch", "--signal=USR1", job.id)
    for job in jobs:
        check(job.wait() == (0, 0), "status")
        check("received SIGUSR1: saved a checkpoint" in job.text(), job.text())
    report("two jobs on two machines, until SIGUSR1", begin)
    site.expect_nothing_left("two jobs")


def cancelled(site):
    """scancel: all ranks save a checkpoint, and no process is left."""
    begin = time.monotonic()
    job = site.template("several_nodes.sbatch", ["--nodes=4"],
                        [*ENDLESS, "--checkpoint", site.folder / "cancelled"], WORKERS="1")
    job.wait_for("step 1/")
    site.slurm.scancel(job.id)
    job.wait("CANCELLED")
    site.expect_nothing_left("scancel")
    check("received SIGTERM: saved a checkpoint" in job.text(), job.text())
    check(any((site.folder / "cancelled").glob("checkpoint_*")), "no checkpoint")
    report("scancel of four machines, with a checkpoint", begin)


def looked_into(site):
    """status and stacks with the job's ID: from the head node the line that asks all machines; on each machine the ranks
    there, and nothing wrong about those on the others."""
    begin = time.monotonic()
    probe = site.acclaunch.parent / "root_cause_probe"
    job = site.batch(["--nodes=2", "--nodelist=node[0-1]"],
                     [str(site.acclaunch), "--cpu", "--num_processes", "4", "--shutdown_timeout", "0", str(probe), "2", "hangs"])
    job.wait_for("rank 2 hangs")
    for command in ("status", "stacks"):
        asked = site.slurm.run([site.acclaunch, command, str(job.id)])
        check(asked.wait() == 2, asked.text())
        line = f"it runs on node[0-1]: srun --jobid={job.id} --overlap --nodes=2 --ntasks-per-node=1 acclaunch {command} {job.id}"
        check(line in asked.text(), asked.text())
    path = {"PATH": f"{site.acclaunch.parent}:{os.environ['PATH']}"}
    said = ""

    def everyone_waits():
        nonlocal said
        words = line.split("runs on node[0-1]: ")[1].replace("stacks", "status").split()
        running = site.slurm.run([words[0], "--label", *words[1:]], path)
        running.expect_status(0)
        said = running.text()
        return (re.search("^0: +late +no record of ranks 2-3; ranks 0-1 waited in ", said, re.MULTILINE)
                and re.search("^1: +late +rank 2 did not enter .*, in which rank 3 waited for .*; no record of ranks 0-1$", said, re.MULTILINE))
    wait_until(everyone_waits, "node0 waits for the other", failure=lambda what: AssertionError(f"{what}\n{said}"))
    for node, ranks in ((0, "0-1"), (1, "2-3")):
        check(f"ranks {ranks} of 4 on this machine, node{node}\n" in said, said)
    check(not re.search("^0: .*did not enter", said, re.MULTILINE), said)
    site.slurm.scancel(job.id)
    job.wait("CANCELLED")
    report("status and stacks by the job's ID", begin)


def crash(site):
    """A machine loses power: the others name it and end."""
    begin = time.monotonic()
    job = site.batch(["--nodes=2", "--nodelist=node[2-3]", "--no-requeue"], site.line(*ENDLESS))
    job.wait_for("step 1/")
    crashed = time.monotonic()
    site.slurm.cluster["node3"].crash()
    job.wait_for("node3")
    report("crash: until the others name it", crashed)
    job.wait_until(lambda: job.facts()["JobState"] in slurm.ENDED, "the end after a crash")
    check(job.facts()["JobState"] in ("FAILED", "NODE_FAIL"), job.facts()["JobState"])
    report("crash: from it to the job's end", crashed)
    wait_until(lambda: not site.slurm.left("node2"), f"left on node2: {site.slurm.left('node2')}")
    site.slurm.cluster["node3"].boot()
    site.slurm.start_daemon("node3")
    site.slurm.srun(["--nodelist=node3", "true"]).expect_status(0)
    report("crash and boot", begin)


def crash_unnoticed(site):
    """The launcher ends when the other machines have, long before Slurm notices the lost machine."""
    with slurm.Slurm(nodes=2, more="SlurmdTimeout=300\n") as patient:
        there = Site(patient, site.acclaunch.parent, site.folder)
        script = shlex.join(there.line(*ENDLESS)) + "; echo acclaunch has ended with $?"
        job = patient.sbatch(["--nodes=2", "--no-requeue", "--wrap", script])
        job.wait_for("step 1/")
        crashed = time.monotonic()
        patient.cluster["node1"].crash()
        job.wait_for("acclaunch has ended with 1")
        report("crash that Slurm does not notice: until acclaunch has ended", crashed)
        check("the lost ones (node1) have ended: not waiting for srun any longer" in job.text(), job.text())


def requeued(site):
    """requeue.sbatch: on a signal the job is requeued and resumes from its checkpoint."""
    begin = time.monotonic()
    nodes = ("node0", "node1")
    for name in nodes:
        site.slurm.cluster.delay(name, 5)  # steps that take long enough to be interrupted
    metrics = site.metrics("requeue")
    job = site.template("requeue.sbatch", ["--nodelist=node[0-1]"], [*GOLDEN, "--metrics", metrics],
                        WORKERS="2", CHECKPOINTS=str(site.folder / "requeue"))
    wait_until(lambda: len(steps_in(metrics)) >= 3, "three steps")

    def to_workers(number):
        for name in nodes:
            for pid in site.slurm.cluster[name].matching(str(site.train_gpt)):
                os.kill(pid, number)

    to_workers(signal.SIGSTOP)  # so that they do not finish before the request
    site.slurm.scancel("--batch", "--signal=USR1", job.id)
    to_workers(signal.SIGCONT)
    job.wait_for("received SIGUSR1: saved a checkpoint")
    job.wait_until(lambda: job.facts()["Restarts"] == "1", "a restart")
    check(job.wait() == (0, 0), "status")
    site.slurm.cluster.heal()
    check("resuming from step" in job.text(), job.text())
    check_losses(metrics, 4, "requeue.sbatch")
    report("requeue.sbatch", begin)


def contradictions(site):
    """Each machine names the contradiction and ends with status 2."""
    begin = time.monotonic()
    step = ["--nodelist=node[0-1]", "--nodes=2", "--ntasks-per-node=1"]
    for what, options, environment, words in (
            ("wrong number of machines", [*step, *site.line(*GOLDEN, flags=["--num_machines", "3"])],
             {}, "--num_machines 3"),
            ("a step on other hosts", [*step, "env", "SLURM_JOB_NODELIST=node[2-3]",
                                       *site.line(*GOLDEN)], {}, "SLURM_JOB_NODELIST")):
        # In files: srun may end before it has forwarded the output of a task that ends at once.
        running = site.slurm.srun([f"--output={site.folder}/said-%t", *options], environment)
        check(running.wait() == 2, f"{what}: status {running.process.returncode}\n{running.text()}")
        for task in (0, 1):
            said = (site.folder / f"said-{task}").read_text()
            check(words in said, f"{what}: machine {task} says {said}\n{running.text()}")
    job = site.batch(["--nodes=2"], site.line(*GOLDEN, flags=["--num_machines", "3"]))
    check(job.wait("FAILED") == (2, 0), "status")
    check("--num_machines 3" in job.text(), job.text())
    site.expect_nothing_left("contradictions")
    report("contradictions", begin)


SCENARIOS = (same_line, templates, page, two_jobs, looked_into, cancelled, contradictions, requeued, crash,
             crash_unnoticed)


def main():
    why = slurm.why_impossible()
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    programs, wanted = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-slurm-"))
    try:
        begin = time.monotonic()
        with slurm.Slurm(nodes=4) as cluster:
            report("Slurm with 4 nodes is up", begin)
            site = Site(cluster, programs, folder)
            for scenario in SCENARIOS:
                if not wanted or scenario.__name__ in wanted:
                    scenario(site)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
