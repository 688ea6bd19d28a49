# SPDX-License-Identifier: Apache-2.0
"""The process behind --preload: imports modules once, then forks the workers (fork_server.hpp).

Command line: PYTHON FLAGS -c BOOT THIS_FILE CONTROL FLAGS+1 MODULES COMMAND..., where CONTROL is a SEQPACKET socket
to the launcher and COMMAND is that of a worker. It runs outside __main__, which is the program's.

    launcher                server                           forker, for each set of workers
    (starts it)             imports MODULES; R times, or F reason
    B [cgroup]              forks the forker, waits for it   joins the control group; B
    W socket                                                 forks a worker with this socket; W, or F reason
    E                                                        exits, which gives the workers to the launcher
                            D, or F reason

A worker waits until it is a child of the launcher, which is the nearest subreaper. Then it sends a byte to its own socket,
to which the kernel adds its pid, and waits there for

    W spec in out err ...

with which it becomes what PYTHON FLAGS COMMAND would be, and runs the program as the innermost frame of this file.

CMake puts generator_watch.py, which defines Generators, before this file: both are one program.
"""
import array
import ctypes
import gc
import importlib
import importlib.machinery
import importlib.util
import io
import mmap
import os
import signal
import socket
import struct
import sys
import threading
import time
import traceback

PR_SET_PDEATHSIG, PR_SET_MM, PR_SET_MM_MAP = 1, 35, 14
MPOL_PREFERRED = 1
MOST_DESCRIPTORS = 5  # of one message: spec, stdin, stdout, stderr, reports
WAKE_UP = signal.SIGRTMAX
libc = ctypes.CDLL(None, use_errno=True)
libc.sbrk.restype = ctypes.c_void_p
shown = None  # the memory that /proc/PID/cmdline and environ show


class Refused(Exception):
    """A reason to end the job with status 2."""


def receive(control):
    """Returns the kind of the next message and its descriptors; b"" at the end."""
    room = socket.CMSG_SPACE(MOST_DESCRIPTORS * array.array("i").itemsize)
    kind, ancillary, _, _ = control.recvmsg(16, room)
    descriptors = array.array("i")
    for _, _, data in ancillary:
        descriptors.frombytes(data[:len(data) - len(data) % descriptors.itemsize])
    return kind, list(descriptors)


def close_all(descriptors):
    for descriptor in descriptors:
        os.close(descriptor)


def thread_names():
    """Returns the names of the other threads: Python's, or the kernel's."""
    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    for thread in os.listdir("/proc/self/task"):
        if thread not in names:
            with open(f"/proc/self/task/{thread}/comm", encoding="utf-8", errors="replace") as file:
                names[thread] = file.read().strip()
    names.pop(str(os.getpid()), None)
    return sorted(names.values())


def check_can_fork(module):
    """Refuses what a forked process would lack. A library that ends its threads before a fork (OpenBLAS) is fine, so
    the threads are counted after a fork."""
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    names = thread_names()
    if names:
        count = "a thread" if len(names) == 1 else f"{len(names)} threads"
        raise Refused(f"importing {module} starts {count} ({', '.join(names)}), which a forked worker would lack; "
                      f"leave it out of --preload")
    torch = sys.modules.get("torch")
    uses_cuda = torch is not None and hasattr(torch, "cuda") and torch.cuda.is_initialized()
    opened = []
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            opened.append(os.readlink(f"/proc/self/fd/{descriptor}"))
        except OSError:
            pass  # the listing's own
    if uses_cuda or any(name.startswith(("/dev/nvidia", "/dev/kfd")) for name in opened):
        raise Refused(f"importing {module} initialises the GPU, which a forked worker could not use; leave it out of "
                      "--preload")


def import_all(modules):
    """Imports the modules, and takes their objects out of the garbage collector, as its documentation advises before a
    fork: a worker then neither copies their pages nor walks through them when it ends. Returns the times."""
    generators.watch()
    times = []
    thresholds = gc.get_threshold()
    gc.set_threshold(0, *thresholds[1:])
    for module in modules:
        began = time.monotonic()
        import_module(module)
        times.append(f"{module} in {time.monotonic() - began:.2f} s")
    if gc.get_threshold()[0] == 0:  # else a module has set its own
        gc.set_threshold(*thresholds)
    gc.collect()
    generators.find()
    gc.freeze()
    return ", ".join(times)


def import_module(module):
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not (module + ".").startswith(error.name + "."):
            traceback.print_exc()
        raise Refused(f"{error}; {sys.executable} looks for it in the folder of PROGRAM, in PYTHONPATH and among its own "
                      "packages") from None
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        raise Refused(f"importing {module} failed: {type(error).__name__}: {error}") from None
    check_can_fork(module)


class Spec:
    """What the launcher says about one worker; see spec_of() in fork_server.cpp."""

    def __init__(self, descriptor):
        size = os.fstat(descriptor).st_size
        fields = iter(os.pread(descriptor, size, 0).split(b"\0"))

        def several():
            return [next(fields) for _ in range(int(next(fields)))]

        self.process_group = int(next(fields))
        self.numa_node = int(next(fields))
        self.set_mempolicy = int(next(fields))  # number of the system call
        self.reports_variable = next(fields)
        self.working_directory = next(fields)
        self.cores = {int(core) for core in several()}
        self.command = several()
        self.environment = several()


def join_group(group):
    try:
        os.setpgid(0, group)
    except OSError:  # that group has no process any more
        os.setpgid(0, 0)


def become_child_of(launcher, forker):
    """Waits until the forker has exited, and asks for SIGKILL when the launcher dies."""
    join_signal = ctypes.c_ulong(WAKE_UP)
    libc.prctl(PR_SET_PDEATHSIG, join_signal, 0, 0, 0)
    while os.getppid() == forker:
        signal.sigwait({WAKE_UP})
    signal.sigtimedwait({WAKE_UP}, 0)
    libc.prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != launcher:
        os._exit(128 + signal.SIGKILL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {WAKE_UP})


def bind(spec):
    """As ChildSetup::bind: a worker without binding is only slower."""
    try:
        if spec.cores:
            os.sched_setaffinity(0, spec.cores)
    except OSError:
        pass
    if 0 <= spec.numa_node < 64:
        node = ctypes.c_ulong(1 << spec.numa_node)
        libc.syscall(spec.set_mempolicy, MPOL_PREFERRED, ctypes.byref(node), 65)


def show(words, environment):
    """Sets what /proc/PID/cmdline and /proc/PID/environ show. Does nothing on a kernel that cannot."""
    global shown
    command = b"".join(word + b"\0" for word in words)
    variables = b"".join(entry + b"\0" for entry in environment)
    memory = mmap.mmap(-1, len(command) + len(variables) + 1, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.write(command + variables)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    middle = start + len(command)
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()  # from the third on

    def field(number):
        return int(fields[number - 3])

    layout = struct.pack("=12QII", field(26), field(27), field(45), field(46), field(47), libc.sbrk(0), field(28),
                         start, middle, middle, middle + len(variables), 0, 0, 0xFFFFFFFF)
    if libc.prctl(PR_SET_MM, ctypes.c_ulong(PR_SET_MM_MAP), layout, ctypes.c_ulong(len(layout)), 0) == 0:
        shown = memory


def set_environment(entries):
    """Replaces all variables, also those that getenv() reads."""
    os.environb.clear()
    for entry in entries:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value


def open_streams(stdin, stdout, stderr):
    """Gives the worker its streams. Handlers of log messages may hold sys.stdout and sys.stderr, which therefore stay
    the same objects; sys.stdin must not keep what it knows of /dev/null."""
    for target, descriptor in enumerate((stdin, stdout, stderr)):
        os.dup2(descriptor, target)
    is_buffered = not getattr(sys.stdout, "write_through", True)  # without -u
    old = sys.stdin
    if old is not None:
        raw = open(0, "rb", closefd=False)
        raw.raw.name = "<stdin>"
        sys.stdin = sys.__stdin__ = io.TextIOWrapper(raw, encoding=old.encoding, errors=old.errors, newline="\n",
                                                     line_buffering=is_buffered and os.isatty(0))
        sys.stdin.mode = "r"
    if is_buffered:
        sys.stdout.reconfigure(line_buffering=os.isatty(1))


def reseed():
    """Gives the worker its own random numbers, as every new process has."""
    generators.renew()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def follow_environment():
    """Lets acclaunch's package, which torch imports, read the variables of the worker instead of the server's."""
    package = sys.modules.get("acclaunch._autoload")
    if package is not None:
        package.follow_environment()


def become_worker(own, launcher, forker):
    """Returns the command."""
    become_child_of(launcher, forker)
    own.send(b"H")
    kind, descriptors = receive(own)
    if kind != b"W":  # the launcher has given up
        os._exit(1)
    own.close()
    spec = Spec(descriptors[0])
    os.close(descriptors.pop(0))
    join_group(spec.process_group)
    bind(spec)
    open_streams(*descriptors[:3])
    close_all(descriptors[:3])
    if len(descriptors) > 3:
        os.set_inheritable(descriptors[3], True)
        spec.environment.append(spec.reports_variable + b"=%d" % descriptors[3])
    os.chdir(spec.working_directory)
    set_environment(spec.environment)
    show(spec.command, spec.environment)
    reseed()
    follow_environment()
    return spec.command


def prepare_main(command, interpreter_words):
    """Sets what a program finds in sys and __main__. Returns the call that runs it."""
    command = [os.fsdecode(word) for word in command]
    words = command[interpreter_words:]
    if hasattr(sys, "orig_argv"):
        sys.orig_argv[:] = command
    folder = None
    if words[0] == "-m":
        sys.argv[:] = words[1:]
        sys.argv[0] = "-m"
        folder = os.getcwd()
    else:
        sys.argv[:] = words
        folder = os.path.dirname(os.path.realpath(words[0]))
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = folder
    return words


def load_program(words):
    """Returns the code of a program and its variables, or None for what runpy runs."""
    if words[0] == "-m" or os.path.isdir(words[0]) or is_zip(words[0]):
        return None
    path = os.path.join(os.getcwd(), words[0])
    main = vars(sys.modules["__main__"])
    main["__file__"] = path
    main["__cached__"] = None
    if path.endswith(".pyc"):
        loader = importlib.machinery.SourcelessFileLoader("__main__", path)
        code = loader.get_code("__main__")
    else:
        loader = importlib.machinery.SourceFileLoader("__main__", path)
        with open(path, "rb") as file:
            source = file.read()
        code = compile(source, path, "exec", dont_inherit=True)
    main["__loader__"] = loader
    return code


def is_zip(path):
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04"


def hide_own_frames(error):
    """Takes the frames below the program out of what sys.excepthook gets: this file's, and that of -c."""
    if isinstance(error, SystemExit):
        return
    hook = sys.excepthook

    def without_own_frames(kind, value, trace):
        trace = trace.tb_next
        while trace is not None and trace.tb_frame.f_globals is globals():
            trace = trace.tb_next
        hook(kind, value.with_traceback(trace), trace)

    sys.excepthook = without_own_frames


def fork_workers(control, launcher, group):
    """Runs in the forker. Returns the command in each worker, and only there."""
    if group:
        try:
            procs = os.open("cgroup.procs", os.O_WRONLY, dir_fd=group[0])
            os.write(procs, b"0")
            os.close(procs)
        except OSError:
            pass  # the launcher finds the workers without it
        close_all(group)
    signal.pthread_sigmask(signal.SIG_BLOCK, {WAKE_UP})
    forker = os.getpid()
    workers = []
    control.send(b"B")
    while True:
        kind, descriptors = receive(control)
        if kind == b"E":
            os._exit(0)
        if kind != b"W":  # the launcher has given up
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            os._exit(1)
        try:
            worker = os.fork()
        except OSError as error:
            control.send(b"F" + os.fsencode(error.strerror))
            os._exit(1)
        if worker == 0:
            control.close()
            return become_worker(socket.socket(fileno=descriptors[0]), launcher, forker)
        close_all(descriptors)
        workers.append(worker)
        control.send(b"W")


def serve(control, launcher):
    """Runs in the server. Returns the command in each worker, and only there."""
    while True:
        kind, descriptors = receive(control)
        if not kind:
            os._exit(0)
        forker = os.fork()
        if forker == 0:
            return fork_workers(control, launcher, descriptors)
        close_all(descriptors)
        _, status = os.waitpid(forker, 0)
        control.send(b"D" if status == 0 else b"Fthe process that forks them ended with wait status %d" % status)


def start():
    """Imports the modules, and returns in each worker with its program."""
    launcher = os.getppid()
    control = socket.socket(fileno=int(sys.argv[2]))
    control.set_inheritable(False)
    interpreter_words = int(sys.argv[3])
    modules = sys.argv[4].split(",")
    prepare_main([os.fsencode(word) for word in sys.argv[5:]], interpreter_words)
    show([b"acc-preload", ",".join(modules).encode()], [b"%s=%s" % entry for entry in os.environb.items()])
    try:
        times = import_all(modules)
    except Refused as reason:
        sys.stdout.flush()
        control.send(b"F" + str(reason).encode(errors="backslashreplace")[:60000])
        os._exit(2)
    sys.stdout.flush()
    control.send(b"R" + times.encode()[:60000])
    return prepare_main(serve(control, launcher), interpreter_words)


generators = Generators()
program = start()
try:
    code = load_program(program)
    if code is not None:
        exec(code, vars(sys.modules["__main__"]))
    elif program[0] == "-m":
        import runpy
        runpy._run_module_as_main(program[1])
    else:
        import runpy
        sys.path[0] = os.path.join(os.getcwd(), program[0])
        runpy._run_module_as_main("__main__", False)
except BaseException as raised:
    hide_own_frames(raised)
    raise
