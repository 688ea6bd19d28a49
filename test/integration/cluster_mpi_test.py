# SPDX-License-Identifier: Apache-2.0
"""acclaunch started by mpirun of Open MPI and by mpiexec of MPICH, on two virtual hosts with sshd.

    python cluster_mpi_test.py BIN    BIN holds acclaunch and train_gpt

Exits with 77 without virtual hosts, without sshd, or without both MPI launchers.
"""
import pathlib
import shutil
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "cluster"))
import hosts  # noqa: E402
import sshd  # noqa: E402
from cluster_jobs import CONFIG, GOLDEN, check_losses, report  # noqa: E402
from hosts import wait_until  # noqa: E402

SKIPPED = 77
NODES = ["node0", "node1"]


def open_mpi(tasks_a_node):
    slots = ",".join(f"{name}:{tasks_a_node}" for name in NODES)
    return ["mpirun.openmpi", "--allow-run-as-root", "--host", slots,
            "-np", 2 * tasks_a_node, "--map-by", "slot", "--bind-to", "none"]


def mpich(tasks_a_node):
    slots = ",".join(f"{name}:{tasks_a_node}" for name in NODES)
    return ["mpiexec.hydra", "-hosts", slots, "-np", 2 * tasks_a_node]


def run(cluster, programs, folder, name, command):
    """A training in both ways gives the losses of one machine."""
    for tasks, what in ((1, "one task per machine"), (2, "one task per rank")):
        begin = time.monotonic()
        metrics = folder / f"{name}_{tasks}.jsonl"
        line = [programs / "acclaunch", "--config_file", CONFIG, programs / "train_gpt", *GOLDEN,
                "--metrics", metrics]
        before = {node: set(cluster[node].processes()) for node in NODES}
        cluster["node0"].start([*command(tasks), *line]).expect_status(0)
        check_losses(metrics, 4, f"{name}, {what}")
        report(f"{name}, {what}", begin)
        for node in NODES:
            wait_until(lambda: not set(cluster[node].processes()) - before[node],
                       f"{name}: nothing is left on {node}")


def main():
    known = (("Open MPI", "mpirun.openmpi", open_mpi), ("MPICH", "mpiexec.hydra", mpich))
    found = [each for each in known if shutil.which(each[1])]
    why = hosts.why_impossible() or sshd.why_impossible()
    if not found:
        why = why or "neither mpirun.openmpi nor mpiexec.hydra here"
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    programs = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-mpi-"))
    try:
        with hosts.Cluster(NODES) as cluster:
            sshd.start(cluster)
            for name, _, command in found:
                run(cluster, programs, folder, name, command)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
