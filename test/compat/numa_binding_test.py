# SPDX-License-Identifier: Apache-2.0
"""acclaunch binds workers by the same rules as torchrun (torch/numa/binding.py), on simulated machines
with many topologies: torch reads them from a generated sysfs, acclaunch from hwloc.

    numa_binding_test.py ACCLAUNCH
"""
import builtins
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

try:
    import torch
    from torch.numa import binding
except ImportError:
    sys.exit(77)

ACCLAUNCH = os.path.abspath(sys.argv[1])
MODES = ["node", "socket", "exclusive", "core-complex"]


class Machine:
    """A machine of `sockets` of `nodes` of `caches` of `cores` of `threads`. CPU n and CPU n + number of
    cores are hardware threads of one core."""

    def __init__(self, sockets, nodes, caches, cores, threads, gpus):
        self.shape = (sockets, nodes, caches, cores, threads)
        self.gpus = gpus
        self.cores = sockets * nodes * caches * cores
        self.cpus = range(self.cores * threads)
        self.node_of_gpu = [i * sockets * nodes // gpus for i in range(gpus)]  # as acclaunch simulates them

    def __repr__(self):
        return "x".join(map(str, self.shape)) + f" with {self.gpus} GPUs"

    def synthetic(self):
        sockets, nodes, caches, cores, threads = self.shape
        return (f"pack:{sockets} group:{nodes} [numa] l3:{caches} core:{cores} "
                f"pu:{threads}(indexes={threads}*{self.cores}:{self.cores}*1)")

    def peers(self, cpu, cores):
        """Returns the CPUs of the group of this many cores that contains `cpu`."""
        first = cpu % self.cores // cores * cores
        return [c for c in self.cpus if first <= c % self.cores < first + cores]

    def write_sysfs(self, root):
        sockets, nodes, caches, cores, _ = self.shape
        files = {"devices/system/node/possible": range(sockets * nodes)}
        for cpu in self.cpus:
            at = f"devices/system/cpu/cpu{cpu}"
            files[f"{at}/topology/thread_siblings_list"] = self.peers(cpu, 1)
            files[f"{at}/topology/physical_package_id"] = [cpu % self.cores // (nodes * caches * cores)]
            for index, (level, kind, sharers) in enumerate([(1, "Instruction", 1), (1, "Data", 1),
                                                            (3, "Unified", cores)]):
                files[f"{at}/cache/index{index}/level"] = [level]
                files[f"{at}/cache/index{index}/type"] = kind
                files[f"{at}/cache/index{index}/shared_cpu_list"] = self.peers(cpu, sharers)
            node = cpu % self.cores // (caches * cores)
            files[f"devices/system/node/node{node}/cpulist"] = self.peers(cpu, caches * cores)
        for gpu, node in enumerate(self.node_of_gpu):
            files[f"bus/pci/devices/0000:{gpu:02x}:00.0/numa_node"] = [node]
        for path, value in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            text = value if isinstance(value, str) else ",".join(map(str, value))
            (root / path).write_text(text + "\n")


def torch_binding(machine, mode):
    """Returns the CPUs that torch assigns to each worker, or its error."""
    with tempfile.TemporaryDirectory() as name:
        machine.write_sysfs(Path(name))

        def there(path):
            path = str(path)
            return name + path[len("/sys"):] if path.startswith("/sys/") else path

        def properties(gpu):
            return SimpleNamespace(pci_domain_id=0, pci_bus_id=gpu, pci_device_id=0)

        real_open, real_listdir = builtins.open, os.listdir
        options = binding.NumaOptions(affinity_mode=binding.AffinityMode(mode))
        with mock.patch.object(builtins, "open", lambda p, *a, **k: real_open(there(p), *a, **k)), \
             mock.patch.object(os, "listdir", lambda p: real_listdir(there(p))), \
             mock.patch.object(os, "sched_getaffinity", lambda _: set(machine.cpus)), \
             mock.patch.object(torch.cuda, "device_count", lambda: machine.gpus), \
             mock.patch.object(torch.cuda, "get_device_properties", properties), \
             mock.patch.object(shutil, "which", lambda _: "numactl"):
            try:
                return [sorted(binding._get_validated_logical_cpus_to_bind_to(
                    gpu_index=gpu, numa_options=options)) for gpu in range(machine.gpus)]
            except RuntimeError as error:
                return str(error)


def our_binding(machine, mode):
    words = ["torchrun", "--nproc-per-node", "gpu", "--numa-binding", mode]
    ran = subprocess.run([ACCLAUNCH, "explain", "--json", *words], capture_output=True, text=True,
                         env={"PATH": os.environ["PATH"], "HWLOC_SYNTHETIC": machine.synthetic(),
                              "ACC_SIMULATE_GPUS": str(machine.gpus)})
    plan = json.loads(ran.stdout)
    if ran.returncode != 0:
        return "; ".join(plan["faults"])
    assert [g["numa_node"] for g in plan["gpus"]] == machine.node_of_gpu
    return [cpus_of(worker["cpus"]) for worker in plan["workers"]]


def cpus_of(text):
    cpus = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        cpus += range(int(first), int(last or first) + 1)
    return cpus


def main():
    machines = [Machine(*shape) for shape in [
        (2, 2, 1, 4, 2, 8), (2, 2, 2, 2, 2, 8), (2, 2, 2, 3, 2, 5), (1, 1, 1, 1, 1, 1),
        (1, 1, 1, 4, 1, 3), (1, 4, 2, 2, 1, 4), (2, 1, 4, 2, 2, 6), (2, 1, 1, 2, 2, 8),
        (1, 1, 1, 1, 2, 2)]]
    refused = 0
    for machine in machines:
        for mode in MODES:
            theirs, ours = torch_binding(machine, mode), our_binding(machine, mode)
            if isinstance(theirs, str):
                refused += 1
                assert "physical core" in theirs and "physical core" in ours, (machine, mode, ours)
            else:
                assert ours == theirs, (machine, mode, ours, theirs)
    assert refused == 2, refused
    print(f"{len(machines) * len(MODES)} bindings are the same as in torch")


main()
