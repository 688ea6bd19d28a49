# SPDX-License-Identifier: Apache-2.0
"""Ranks that are forked from one process that has imported torch, for all jobs of all tests: the import takes longer
than most trainings here. ctest starts the server before the first test that needs it; without it ranks are forked by
--preload.

    warm_torch.py --serve SOCKET                starts the server, which ends with the process that called it, ctest
    PYTHON_EXEC=warm_torch.sh acclaunch ...     a worker of the launcher gives its program to the server, passes signals
                                                on, and ends as the program does

Only for tests of trainings: the rank is no child of the launcher."""
import array
import contextlib
import ctypes
import fcntl
import os
import pathlib
import select
import signal
import socket
import struct
import sys

SOCKET = "ACC_TEST_WARM_TORCH"
PR_SET_PDEATHSIG = 1
MODULES = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.checkpoint.state_dict",
           "torch.distributed.checkpoint.format_utils", "torch.distributed.tensor", "numpy", "safetensors.torch")
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)


def is_there():
    with contextlib.suppress(KeyError, OSError), socket.socket(socket.AF_UNIX) as server:
        server.connect(os.environ[SOCKET])
        return True
    return False


def forked(modules, warm=True):
    """Flags and variables of a job whose ranks are forked from a process that has imported these modules; not warm:
    from one of the launcher."""
    if warm and is_there():
        return [], {"PYTHON_EXEC": str(pathlib.Path(__file__).with_suffix(".sh"))}
    return ["--preload", modules], {"PYTHON_EXEC": sys.executable}


# ---- a worker of the launcher ---------------------------------------------------------------------

def open_descriptors():
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            os.fstat(int(name))
            yield int(name)


def work(words):
    """Has the server run `python words`, without buffers."""
    words = words[words[0] == "-u":]
    assert not words[0].startswith("-"), words
    descriptors = sorted(open_descriptors())
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.environ[SOCKET])
    entries = [b"%s=%s" % entry for entry in os.environb.items()]
    text = b"\0".join([os.fsencode(os.getcwd()), b"%d" % len(words), *map(os.fsencode, words), *entries])
    numbers = array.array("i", descriptors)
    server.sendmsg([struct.pack("=II", len(text), len(numbers))], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, numbers)])
    server.sendall(numbers.tobytes() + text)
    pid, = struct.unpack("=i", server.recv(4, socket.MSG_WAITALL))

    def pass_on(number, _):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)

    for each in PASSED_ON:
        signal.signal(each, pass_on)
    status, = struct.unpack("=i", server.recv(4, socket.MSG_WAITALL))
    if status < 0:
        signal.signal(-status, signal.SIG_DFL) if -status != signal.SIGKILL else None
        os.kill(os.getpid(), -status)
    os._exit(status)


# ---- the server -----------------------------------------------------------------------------------

def receive(client):
    """Returns the folder, the command and the variables of a worker, and its descriptors by number."""
    head, ancillary, _, _ = client.recvmsg(8, socket.CMSG_SPACE(253 * 4))
    length, count = struct.unpack("=II", head)
    given = array.array("i")
    for _, _, data in ancillary:
        given.frombytes(data)
    numbers = array.array("i")
    numbers.frombytes(client.recv(4 * count, socket.MSG_WAITALL))
    folder, words, *rest = client.recv(length, socket.MSG_WAITALL).split(b"\0")
    return folder, rest[:int(words)], rest[int(words):], dict(zip(numbers, given))


def become_worker(server, folder, words, entries, descriptors):
    from run_script import run

    for each in PASSED_ON:
        signal.signal(each, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != server:
        os._exit(128 + signal.SIGKILL)
    os.setpgid(0, 0)
    # Above all numbers first, so that none is overwritten before it is moved.
    high = {number: fcntl.fcntl(given, fcntl.F_DUPFD_CLOEXEC, 1024) for number, given in descriptors.items()}
    for given in descriptors.values():
        os.close(given)
    for number, given in high.items():
        os.dup2(given, number, inheritable=True)
        os.close(given)
    os.environb.clear()
    for entry in entries:
        name, _, value = entry.partition(b"=")
        os.environb[name] = value
    os.chdir(folder)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)
    sys.path[1:1] = [each for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each not in sys.path]
    sys.modules["acclaunch._autoload"].follow_environment()
    run(*map(os.fsdecode, words))


def serve(listener, parent):
    poll = select.poll()
    own, parent = os.getpid(), os.pidfd_open(parent)
    clients, children = {}, {}  # sockets and processes, by descriptor
    poll.register(listener, select.POLLIN)
    poll.register(parent, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == parent:
                for child, _ in children.values():
                    os.killpg(child, signal.SIGKILL)
                return
            if descriptor == listener.fileno():
                client, _ = listener.accept()
                try:
                    *program, descriptors = receive(client)
                except (OSError, ValueError, struct.error):  # it has ended, or only looked
                    client.close()
                    continue
                pid = os.fork()
                if pid == 0:
                    for each in (listener, client, *clients.values()):
                        each.close()
                    for each in (parent, *children):
                        os.close(each)
                    become_worker(own, *program, descriptors)
                for each in descriptors.values():
                    os.close(each)
                with contextlib.suppress(OSError):
                    client.sendall(struct.pack("=i", pid))
                    os.setpgid(pid, pid)
                process = os.pidfd_open(pid)
                clients[client.fileno()], children[process] = client, (pid, client)
                poll.register(client, select.POLLIN)
                poll.register(process, select.POLLIN)
            elif descriptor in children:
                pid, client = children.pop(descriptor)
                poll.unregister(descriptor)
                os.close(descriptor)
                status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                if clients.pop(client.fileno(), None):
                    poll.unregister(client)
                    with contextlib.suppress(OSError):
                        client.sendall(struct.pack("=i", status))
                    client.close()
            elif descriptor in clients:  # the worker of the launcher was killed
                client = clients.pop(descriptor)
                poll.unregister(client)
                for pid, other in children.values():
                    if other is client:
                        with contextlib.suppress(ProcessLookupError):
                            os.killpg(pid, signal.SIGKILL)


def start(path):
    """Returns when the server has imported torch."""
    parent = os.getppid()
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(path)
    except OSError as error:
        print(f"{path}: {error}; each job imports torch")
        return 0
    ready, begin = os.pipe()
    if os.fork() > 0:
        os.close(begin)
        return 0 if os.read(ready, 1) else 1
    os.close(ready)
    os.setpgid(0, 0)  # no session of its own, which the kernel may give a share of the CPUs of its own
    import gc
    import importlib

    gc.disable()
    for module in MODULES:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    gc.enable()
    gc.collect()
    gc.freeze()
    listener.listen(100)
    os.write(begin, b"!")
    unread = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(unread, descriptor)
    os.close(begin)
    serve(listener, parent)
    os._exit(0)


if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parent)
    if len(sys.argv) == 3 and sys.argv[1] == "--serve":
        sys.exit(start(sys.argv[2]))
    work(sys.argv[1:])
