# SPDX-License-Identifier: Apache-2.0
"""ctypes_test.py LIBRARY ACCLAUNCH: trains a linear model from Python through the C ABI, on two ranks,
and compares it with the closed form. Also tests how errors are reported to Python."""

import ctypes as c
import os
import subprocess
import sys
import tempfile

POINTS, INPUTS, STEPS, LR = 8, 3, 5, 0.1
OK, INVALID_ARGUMENT, CONFIG = 0, 1, 2


class SgdConfig(c.Structure):
    _fields_ = [("size", c.c_size_t), ("lr", c.c_double), ("momentum", c.c_double),
                ("weight_decay", c.c_double), ("nesterov", c.c_int32)]


class ParameterConfig(c.Structure):
    _fields_ = [("size", c.c_size_t), ("trainable", c.c_int32), ("weight_decay", c.c_int32),
                ("initializer", c.c_int32), ("a", c.c_float), ("b", c.c_float),
                ("fill", c.c_void_p), ("context", c.c_void_p)]


class ProgramValue(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("kind", c.c_int32),
                ("of_rank", c.c_int32), ("integer", c.c_int64), ("real", c.c_double),
                ("bytes", c.c_char_p), ("num_bytes", c.c_size_t)]


class FullTensor(c.Structure):
    _fields_ = [("size", c.c_size_t), ("name", c.c_char_p), ("shape", c.POINTER(c.c_int64)),
                ("num_dims", c.c_size_t), ("dtype", c.c_int32), ("data", c.POINTER(c.c_float))]


VisitFunction = c.CFUNCTYPE(None, c.POINTER(FullTensor), c.c_void_p)


class Parameter(c.Structure):
    _fields_ = [("index", c.c_int32), ("unit", c.c_int32)]


class Library:
    """The functions of the library; errors become exceptions."""

    def __init__(self, path):
        self.c = c.CDLL(path)
        self.c.acc_last_error.restype = c.c_char_p
        self.c.acc_status_name.restype = c.c_char_p
        self.c.acc_runtime_mean.argtypes = [c.c_void_p, c.c_double, c.POINTER(c.c_double)]
        self.c.acc_model_create.argtypes = [c.c_void_p, c.c_uint64, c.POINTER(c.c_void_p)]

    def call(self, name, *arguments):
        status = getattr(self.c, name)(*arguments)
        assert status == OK, f"{name}: {status} {self.c.acc_last_error().decode()}"

    def make(self, name, *arguments):
        """Calls a function and returns the value of its last, output argument."""
        made = c.c_void_p()
        self.call(name, *arguments, c.byref(made))
        return made

    def failure(self, name, *arguments):
        status = getattr(self.c, name)(*arguments)
        return status, self.c.acc_last_error().decode()


def features(point):
    return [1.0, (point * 5 % 7) / 7.0, (point * 3 % 8) / 8.0 - 0.5]


def target(point):
    return 0.5 - 2.0 * features(point)[1] + features(point)[2]


def gradient(weight, points):
    """Gradient of the mean squared error."""
    total = [0.0] * INPUTS
    for point in points:
        x = features(point)
        difference = sum(a * b for a, b in zip(x, weight)) - target(point)
        total = [t + 2.0 * difference * a / len(points) for t, a in zip(total, x)]
    return total


def closed_form():
    """Weights after gradient descent over all points."""
    weight = [0.25] * INPUTS
    for _ in range(STEPS):
        weight = [w - LR * g for w, g in zip(weight, gradient(weight, range(POINTS)))]
    return weight


def expect_errors(library, model, rank):
    unit = c.c_void_p()
    status, message = library.failure("acc_model_unit", model, None, b"Linear", c.byref(unit))
    assert status == INVALID_ARGUMENT and "name is NULL" in message, message
    status, message = library.failure("acc_model_load_weights", model, b"/no/such/file")
    # Possibly only rank 0 reads the file.
    assert status == CONFIG and ("/no/such/file" in message or rank > 0), message
    assert library.c.acc_status_name(status) == b"config"
    assert library.c.acc_exit_status(status) == 2
    config = SgdConfig(size=4096)
    status, message = library.failure("acc_optimizer_sgd", model, c.byref(config), c.byref(unit))
    assert status == INVALID_ARGUMENT and "4096" in message, message


def parameters(library, unit, weight, kind):
    """Begins a use of the weights, and returns the weights and the use."""
    use = library.make(f"acc_{kind}_begin", unit)
    data = c.POINTER(c.c_float)()
    library.call(f"acc_{kind}_parameter", use, weight, c.byref(data))
    return data[:INPUTS], use


def expect_checkpoint(library, runtime, model, optimizer, rank):
    """The program's and the rank's own values are restored; the state dict has the full weight."""
    folder = os.path.join(os.environ["CHECKPOINTS"], "saved").encode()
    values = (ProgramValue * 2)(
        ProgramValue(c.sizeof(ProgramValue), b"seen", 0, 0, 7, 0.0, None, 0),
        ProgramValue(c.sizeof(ProgramValue), b"noise", 2, 1, 0, 0.0, b"rank %d" % rank, 6))
    library.call("acc_runtime_save", runtime, folder, model, optimizer, values, c.c_size_t(2))
    state = library.make("acc_runtime_load", runtime, folder, model, optimizer)
    value = ProgramValue(c.sizeof(ProgramValue))
    library.call("acc_program_state_get", state, b"seen", c.byref(value))
    assert value.integer == 7
    library.call("acc_program_state_get_of_rank", state, b"noise", c.byref(value))
    assert c.string_at(value.bytes, value.num_bytes) == b"rank %d" % rank
    library.c.acc_program_state_free(state)
    seen = {}

    def visit(tensor, _):
        full = tensor.contents
        seen[full.name.decode()] = full.data[:full.shape[0]]

    library.call("acc_model_state_dict", model, None, VisitFunction(visit), None)
    assert list(seen) == (["linear.weight"] if rank == 0 else []), seen


def worker(path):
    library = Library(path)
    runtime = library.make("acc_runtime_from_environment")
    rank = library.c.acc_runtime_rank(runtime)
    world = library.c.acc_runtime_world_size(runtime)
    assert world == 2
    points = range(rank * POINTS // world, (rank + 1) * POINTS // world)
    model = library.make("acc_model_create", runtime, 0)
    unit = library.make("acc_model_unit", model, b"linear", b"Linear")
    constant = ParameterConfig(c.sizeof(ParameterConfig), 1, 1, 0, 0.25, 0.0, None, None)
    weight = Parameter()
    library.call("acc_unit_parameter", unit, b"weight", (c.c_int64 * 1)(INPUTS), c.c_size_t(1),
                 c.byref(constant), c.byref(weight))
    config = SgdConfig(c.sizeof(SgdConfig), LR, 0.0, 0.0, 0)
    optimizer = library.make("acc_optimizer_sgd", model, c.byref(config))
    for _ in range(STEPS):
        _, use = parameters(library, unit, weight, "forward")
        library.call("acc_forward_end", use)
        values, use = parameters(library, unit, weight, "backward")
        place = c.POINTER(c.c_float)()
        library.call("acc_backward_grad_to_add", use, weight, c.byref(place))
        for i, each in enumerate(gradient(values, points)):
            place[i] += each
        library.call("acc_backward_end", use)
        library.call("acc_optimizer_step", optimizer, None)
    scope = library.make("acc_no_grad_begin", model)
    found, use = parameters(library, unit, weight, "forward")
    library.call("acc_forward_end", use)
    library.c.acc_no_grad_end(scope)
    mean = c.c_double()
    library.call("acc_runtime_mean", runtime, float(rank), c.byref(mean))
    assert mean.value == 0.5
    for a, b in zip(found, closed_form()):
        assert abs(a - b) < 1e-6, (found, closed_form())
    expect_checkpoint(library, runtime, model, optimizer, rank)
    expect_errors(library, model, rank)
    for name, handle in (("optimizer", optimizer), ("model", model), ("runtime", runtime)):
        getattr(library.c, f"acc_{name}_free")(handle)
    print("trained", flush=True)


def main():
    path, acclaunch = sys.argv[1:]
    for flags in (["--use_fsdp"], ["--use_deepspeed", "--zero_stage", "1"]):
        with tempfile.TemporaryDirectory() as folder:
            run = subprocess.run([acclaunch, "--cpu", "--num_processes", "2", *flags,
                                  sys.executable, os.path.abspath(__file__), path],
                                 env=os.environ | {"CHECKPOINTS": folder}, capture_output=True,
                                 text=True, timeout=240)
        assert run.returncode == 0, run.stderr
        assert run.stdout.count("trained") == 2, run.stdout


if __name__ == "__main__":
    worker(sys.argv[1]) if "RANK" in os.environ else main()
