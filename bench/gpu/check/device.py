# SPDX-License-Identifier: Apache-2.0
"""Facts about the machine's GPU, from the driver's libraries."""
import ctypes
import os
import platform


class Device:
    """One GPU as NVML and the driver report it. Unknown fields are None."""

    def __init__(self):
        self.name = self.uuid = self.driver = self.cuda = self.capability = None
        self.memory_gib = self.multiprocessors = None
        self.count = 0
        self.problem = ""

    def as_table(self):
        return {"name": self.name, "uuid": self.uuid, "driver": self.driver, "cuda": self.cuda,
                "compute_capability": ".".join(map(str, self.capability or ())) or None,
                "memory_gib": self.memory_gib, "multiprocessors": self.multiprocessors,
                "gpus": self.count, "machine": platform.machine(), "kernel": platform.release(),
                "cores": len(os.sched_getaffinity(0))}


def load(name):
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def works(library, function, *arguments):
    """Calls a function that may be missing. True if it exists and returns 0."""
    call = getattr(library, function, None)
    return call is not None and call(*arguments) == 0


def text_of(library, function, *arguments, size=96):
    """Text that a function writes to its last two parameters (buffer, size), or None."""
    buffer = ctypes.create_string_buffer(size)
    if not works(library, function, *arguments, buffer, ctypes.c_uint(size)):
        return None
    return buffer.value.decode(errors="replace")


def ask_nvml(device):
    nvml = load("libnvidia-ml.so.1")
    if nvml is None or not works(nvml, "nvmlInit_v2"):
        return
    device.driver = text_of(nvml, "nvmlSystemGetDriverVersion")
    handle = ctypes.c_void_p()
    if works(nvml, "nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(0), ctypes.byref(handle)):
        device.name = text_of(nvml, "nvmlDeviceGetName", handle)
        device.uuid = text_of(nvml, "nvmlDeviceGetUUID", handle)
    nvml.nvmlShutdown()


def ask_driver(device):
    cuda = load("libcuda.so.1")
    if cuda is None:
        device.problem = "there is no NVIDIA driver here: libcuda.so.1 cannot be loaded"
        return
    status = cuda.cuInit(ctypes.c_uint(0))
    if status != 0:
        device.problem = f"the NVIDIA driver shows no GPU: cuInit gives error {status}"
        return
    value = ctypes.c_int()
    if works(cuda, "cuDriverGetVersion", ctypes.byref(value)):
        device.cuda = f"{value.value // 1000}.{value.value % 1000 // 10}"
    if not works(cuda, "cuDeviceGetCount", ctypes.byref(value)) or value.value == 0:
        device.problem = "the NVIDIA driver shows no GPU"
        return
    device.count = value.value
    handle = ctypes.c_int()
    works(cuda, "cuDeviceGet", ctypes.byref(handle), ctypes.c_int(0))
    name = ctypes.create_string_buffer(96)
    if works(cuda, "cuDeviceGetName", name, ctypes.c_int(96), handle):
        device.name = name.value.decode(errors="replace")
    size = ctypes.c_size_t()
    if works(cuda, "cuDeviceTotalMem_v2", ctypes.byref(size), handle):
        device.memory_gib = round(size.value / 2**30, 1)

    def attribute(number):
        known = works(cuda, "cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(number),
                      handle)
        return value.value if known else None
    device.multiprocessors = attribute(16)
    major, minor = attribute(75), attribute(76)
    device.capability = (major, minor) if major is not None and minor is not None else None


def detect():
    device = Device()
    ask_nvml(device)
    ask_driver(device)
    return device


def nccl_version(path):
    """Version of a libnccl as 10000 * major + 100 * minor + patch, or None."""
    library = load(path) if path else None
    value = ctypes.c_int()
    if library is None or not works(library, "ncclGetVersion", ctypes.byref(value)):
        return None
    return value.value
