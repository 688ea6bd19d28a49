# SPDX-License-Identifier: Apache-2.0
"""Paths of programs, libraries, tools and a Python with PyTorch, in a bundle, build tree or system."""
from __future__ import annotations

import dataclasses
import glob
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
LIBRARIES = {"nccl": ("libnccl.so.2",), "cublas": ("libcublasLt.so.13", "libcublasLt.so.12"),
             "cudnn": ("libcudnn.so.9",)}
VARIABLES = {"nccl": "ACC_NCCL_LIBRARY", "cublas": "ACC_CUBLASLT_LIBRARY",
             "cudnn": "ACC_CUDNN_LIBRARY"}  # name the file to use

TOOLS = ("nvcc", "cuobjdump", "compute-sanitizer", "ncu")  # of NVIDIA's toolkit
NCCL_SHARING = 23000  # the first NCCL that lets ranks share a GPU
# NCCL's kernels of all ranks must fit on the GPU at the same time.
NCCL_VARIABLES = {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4"}
STANDINS = {"train_gpt": "standin/train_gpt_standin",
            "kernel_bench": "standin/kernel_bench_standin"}

# Run by another interpreter. Does not import torch, which takes seconds.
PROBE = """
import importlib.metadata, importlib.util, json, site, sys, sysconfig
version = None
if importlib.util.find_spec("torch"):
    version = importlib.metadata.version("torch")
folders = [sysconfig.get_paths()["purelib"], site.getusersitepackages(), *sys.path]
print(json.dumps({"torch": version, "folders": [each for each in folders if each]}))
"""


class Places:
    """Paths that the steps use. bin_folder, python, nccl: given by the user, or None. standin: true
    to use the train_gpt that was built against stand-in libraries."""

    def __init__(self, bin_folder=None, python=None, nccl=None, standin=False):
        self.standin = standin
        candidates = [bin_folder] if bin_folder else [ROOT / "bin", ROOT / "build/cuda/bin"]
        self.bin = next((pathlib.Path(c) for c in candidates
                         if (pathlib.Path(c) / "acclaunch").exists()), pathlib.Path(candidates[0]))
        self.configs = ROOT / "configs"
        self.data = ROOT / "test/data/parity_gpt"
        self.scripts = ROOT / "bench/gpu"
        self.modules = ROOT / "examples/python/train_gpt.py"
        self.python, self.torch, self.site_folders = find_python(python)
        self.nccl_folder = nccl

    def program(self, name):
        return self.bin / (STANDINS.get(name, name) if self.standin else name)

    def launcher(self, config, workers, *flags):
        """The command that starts workers with a file of configs/; their program follows."""
        return [self.program("acclaunch"), "--config_file", self.configs / config, *flags,
                "--main_process_port", 0, "--num_processes", workers]

    def package(self):
        """Folder of the Python package, next to the programs' folder."""
        return self.bin.parent / "python"

    def cuda_backend(self):
        return self.bin.parent / "lib/libacc_cuda.so"

    def gpu_tests(self):
        """Programs of the tests labelled gpu, as listed by the build. Those with their own kernels
        are called NAME_gpu_test and run on real GPUs only."""
        listed = self.bin / "gpu_tests.txt"
        names = listed.read_text().split() if listed.exists() else []
        return [self.bin / name for name in names
                if not (self.standin and name.endswith("_gpu_test"))]

    def library_folders(self):
        """Folders of NVIDIA's libraries in the Pythons found, newest CUDA first."""
        found = []
        for site in self.site_folders:
            found += sorted(glob.glob(os.path.join(site, "nvidia", "*", "lib")), reverse=True)
        toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
        found += glob.glob(os.path.join(toolkit, "lib64"))
        return list(dict.fromkeys(found))

    def library(self, name):
        """Path of a library; its bare name if only the system's search finds it; else None."""
        if name == "nccl" and self.nccl_folder:
            matches = sorted(pathlib.Path(self.nccl_folder).rglob(LIBRARIES[name][0]))
            return str(matches[0]) if matches else None
        if os.environ.get(VARIABLES[name]):
            return os.environ[VARIABLES[name]]
        packed = self.bin.parent / "lib" / LIBRARIES[name][0]
        if packed.exists():  # gpu_bundle --nccl
            return str(packed)
        for file in LIBRARIES[name]:
            for folder in self.library_folders():
                if os.path.exists(os.path.join(folder, file)):
                    return os.path.join(folder, file)
            if on_system(file):
                return file
        return None

    def all_nccl(self):
        """Paths of the NCCLs that can be tried: the one that runs use, and that of PyTorch."""
        paths = [self.library("nccl")]
        for folder in self.library_folders():
            path = os.path.join(folder, LIBRARIES["nccl"][0])
            if os.path.exists(path) and not self.standin:
                paths.append(path)
        return list(dict.fromkeys(filter(None, paths)))

    def environment(self):
        """Variables with which our programs find CUDA's libraries in a Python's site-packages."""
        variables = {}
        nccl, *others = [self.library(name) for name in LIBRARIES]
        if nccl and "/" in nccl:
            variables["ACC_NCCL_LIBRARY"] = nccl
        folders = [os.path.dirname(path) for path in (nccl, *others) if path and "/" in path]
        inherited = os.environ.get("LD_LIBRARY_PATH", "")
        if folders:
            variables["LD_LIBRARY_PATH"] = ":".join([*([inherited] if inherited else []), *folders])
        variables["PYTHONPATH"] = ":".join([str(self.package()),
                                            *filter(None, [os.environ.get("PYTHONPATH")])])
        return variables


def on_system(file):
    """True if the dynamic linker finds a library by its name."""
    listing = shutil.which("ldconfig") or "/sbin/ldconfig"
    try:
        text = subprocess.run([listing, "-p"], capture_output=True, text=True, check=False).stdout
    except OSError:
        text = ""
    return f"\t{file} " in text


def ask_python(python):
    try:
        ran = subprocess.run([python, "-c", PROBE], capture_output=True, text=True, timeout=20,
                             check=True)
        return json.loads(ran.stdout.splitlines()[-1])
    except (OSError, ValueError, IndexError, subprocess.SubprocessError):
        return None


def find_python(named):
    """(interpreter, version of its torch or None, library folders). `named`: the only candidate."""
    candidates = [named] if named else [sys.executable, *filter(None, map(shutil.which,
                                        ("python3", "python"))), "/opt/conda/bin/python",
                                        "/opt/venv/bin/python", "/usr/bin/python3"]
    folders = []
    for python in dict.fromkeys(candidates):
        answer = ask_python(python)
        if answer:
            folders += answer["folders"]
            if answer["torch"]:
                return python, answer["torch"], list(dict.fromkeys(folders))
    return candidates[0], None, list(dict.fromkeys(folders))


def find_tools():
    """{name: {"path", "version"}} of NVIDIA's tools on this machine."""
    toolkit = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    folders = [os.path.join(toolkit, "bin"), *sorted(glob.glob("/opt/nvidia/nsight-compute/*"),
                                                     reverse=True)]
    found = {}
    for name in TOOLS:
        path = shutil.which(name) or shutil.which(name, path=":".join(folders))
        if path:
            found[name] = {"path": path, "version": version_of(path)}
    return found


def version_of(program):
    """The last version number that a program prints with --version, or None."""
    try:
        ran = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=20,
                             check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    numbers = re.findall(r"\d+(?:\.\d+)+", ran.stdout)
    return numbers[-1] if numbers else None


@dataclasses.dataclass
class Setup:
    """What the steps run with. nccl: version of the NCCL in use as 10000 * major + 100 * minor +
    patch, or None; tiny: small models, for a trial without figures; peak_tflops: None until it is
    measured, if the GPU is not in the table."""
    places: Places
    gpu: object
    tools: dict
    nccl: int | None
    standin: bool
    tiny: bool
    peak_tflops: float | None
