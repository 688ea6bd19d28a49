# SPDX-License-Identifier: Apache-2.0
"""Workers that --preload forks do the same as workers that are started: preload_test.py ACCLAUNCH. Exits with 77
without torch or numpy."""
import importlib.util
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import zipfile

WORKERS = pathlib.Path(__file__).resolve().parent / "workers"
ACCLAUNCH = sys.argv[1]
DEADLINE = 240

# Everything that a program can see of its process. Paths and values that differ between any two jobs are left out.
SEES = """
    import ctypes, os, sys
    main = {name: str(value) for name, value in sorted(globals().items()) if name not in ("ctypes", "os", "sys")}
    print(main)
    print(sys.argv, sys.orig_argv, sys.path, sys.flags, sys.stdin, sys.stdout, sys.stderr, sep="\\n")
    print(sys.stdout.write_through, sys.stdout.line_buffering, sys.stdin.readline())
    print(os.getcwd(), os.getpgrp() == os.getpid(), os.readlink("/proc/self/exe"), sorted(os.listdir("/proc/self/fd")))
    print(os.sched_getaffinity(0), os.umask(0o22))
    differ = ("MASTER_PORT", "ACC_FLIGHT_RECORD", "ACC_JOB_SECRET", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RUN_ID")
    print(sorted(entry for entry in os.environ.items() if entry[0] not in differ))
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_char_p
    print([name for name in os.environb if getenv(name) != os.environb[name]])
    shown = dict(entry.split(b"=", 1) for entry in open("/proc/self/environ", "rb").read().split(b"\\0") if entry)
    print(shown == dict(os.environb), open("/proc/self/cmdline").read().split("\\0"), open("/proc/self/comm").read())
    print([line for line in open("/proc/self/status") if line.startswith(("SigB", "SigI", "SigC", "Shd", "NoNew"))])
    print(open("/proc/self/limits").read())
    print(open("/proc/self/cgroup").read().replace(str(os.getppid()), "").split("acclaunch")[1:] != [])
"""

FILES = {
    "sees.py": SEES,
    "package/__init__.py": "",
    "package/__main__.py": SEES,
    "error.py": """
        import os, signal, sys
        def fail(): raise ValueError("no")
        kind = sys.argv[1]
        if kind == "error": fail()
        if kind == "interrupt": raise KeyboardInterrupt
        if kind == "status": sys.exit(7)
        if kind == "message": sys.exit("message")
        if kind == "signal": os.kill(os.getpid(), signal.SIGSEGV)
        if kind == "hook":
            sys.excepthook = lambda kind, value, trace: print(kind, trace.tb_lineno, value.__traceback__ is trace)
            fail()
        try: fail()
        except ValueError as cause: raise RuntimeError("chained") from cause
    """,
    "syntax.py": "def f(:",
    "spawns.py": """
        import multiprocessing, os
        def ask(queue): queue.put((os.getppid(), os.environ["RANK"], __name__))
        if __name__ == "__main__":
            context = multiprocessing.get_context("spawn")
            queue = context.Queue()
            child = context.Process(target=ask, args=(queue,))
            child.start()
            parent, rank, name = queue.get()
            child.join()
            print(parent == os.getpid(), rank, name, child.exitcode)
    """,
    "streams.py": """
        import os, sys
        print("out", flush=True); print("err", file=sys.stderr); os.write(1, b"raw\\n")
    """,
    # Programs for what only a forked worker could get wrong.
    "draws.py": """
        import multiprocessing, random, numpy
        print("drawn", random.random(), numpy.random.rand(), multiprocessing.current_process().authkey.hex())
    """,
    "seeded.py": "import numpy; print('drawn', numpy.random.rand())",
    "isolation.py": """
        import os, rank_reader
        print("seen", rank_reader.seen, rank_reader.threads, os.environ["RANK"], os.environ.get("LEFT_BY_MODULE"))
    """,
    "restarts.py": """
        import os, sys, torch
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        print("attempt", attempt, "rank", os.environ["RANK"], "sum", torch.ones(3).sum().item(), flush=True)
        sys.exit(attempt == "0" and os.environ["RANK"] == "1")
    """,
    "kills_server.py": """
        import os, signal, sys
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            for pid in open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split():
                if open(f"/proc/{pid}/cmdline").read().startswith("acc-preload"): os.kill(int(pid), signal.SIGKILL)
            sys.exit(1)
        print("started again")
    """,
    # Modules to preload.
    "plain.py": "import os; open(os.environ['IMPORTS'], 'a').write('x')",
    "seeds.py": "import numpy; numpy.random.seed(5)",
    "rank_reader.py": """
        import os
        seen = [os.environ.get(name) for name in ("RANK", "MASTER_PORT", "LOCAL_RANK")]
        threads = os.environ["OMP_NUM_THREADS"]
        os.environ["LEFT_BY_MODULE"] = "x"
    """,
    "starts_thread.py": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True, name="poller").start()
    """,
    "opens_gpu.py": """
        import types, sys
        sys.modules["torch"] = types.SimpleNamespace(cuda=types.SimpleNamespace(is_initialized=lambda: True))
    """,
    "raises.py": "raise ValueError('broken')",
    "needs_other.py": "import not_there",
    "exits.py": "import os; os._exit(3)",
    "dies.py": "import os; os.abort()",
    "prints.py": "print('hello')",
    "waits.py": """
        import os, time
        held = open(os.environ["FIFO"], "w")
        held.write("importing\\n"); held.flush()
        time.sleep(60)
    """,
}

# Flags and program: its output and exit status are the same with --preload and without.
SAME = [
    (["torchrun", "--nproc-per-node", "1"], ["sees.py", "a", ""]),
    (["torchrun", "--nproc-per-node", "1"], ["./package/../sees.py"]),
    (["torchrun", "--nproc-per-node", "1"], ["-m", "package", "a b"]),
    (["torchrun", "--nproc-per-node", "1"], ["package.zip", "a"]),
    (["torchrun", "--nproc-per-node", "1", "-t", "3"], ["sees.py"]),
    (["deepspeed", "--num_gpus", "1"], ["sees.py"]),
    (["launch", "--cpu"], ["sees.py"]),
    (["launch", "--cpu", "--numa_binding", "exclusive"], ["-m", "sees"]),
    (["launch", "--cpu", "--num_processes", "1"], ["-m", "not_there"]),
    (["launch", "--cpu"], ["syntax.py"]),
    *[(["launch", "--cpu"], ["error.py", kind])
      for kind in ("error", "chained", "interrupt", "status", "message", "signal", "hook")],
    (["torchrun", "--nproc-per-node", "2"], ["spawns.py"]),
    (["torchrun", "--nproc-per-node", "2"], ["streams.py"]),
]

# Modules, program, exit status, text in the output.
REFUSED = [
    ("nowhere", ["sees.py"], 2, r"--preload nowhere: No module named 'nowhere'; .*python\S* looks for it"),
    ("plain,nowhere.at_all", ["sees.py"], 2, "No module named 'nowhere'"),
    ("raises", ["sees.py"], 2, r"(?s)\[preload\] ValueError: broken.*importing raises failed: ValueError: broken"),
    ("needs_other", ["sees.py"], 2, r"(?s)needs_other.py.*No module named 'not_there'"),
    ("plain,starts_thread", ["sees.py"], 2, r"importing starts_thread starts a thread \(poller\)"),
    ("opens_gpu", ["sees.py"], 2, "importing opens_gpu initialises the GPU"),
    ("exits", ["sees.py"], 1, "exited with code 3"),
    ("dies", ["sees.py"], 1, "killed by SIGABRT"),
    ("plain, raises", ["sees.py"], 2, 'names of Python modules joined by commas, without spaces, got "plain, raises"'),
    ("plain,", ["sees.py"], 2, "names of Python modules"),
    ("plain", ["--no-python", "/bin/true"], 2, "/bin/true does not run under Python because of --no_python"),
    ("plain", ["/bin/true"], 2, "/bin/true does not run under Python"),
]


def environment(folder):
    own = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "OMP_NUM_THREADS")}
    return own | {"PYTHON_EXEC": sys.executable, "HF_HOME": str(folder), "IMPORTS": str(folder / "imports"),
                  "FIFO": str(folder / "fifo")}


def run(folder, *words):
    done = subprocess.run([ACCLAUNCH, *words], cwd=folder, env=environment(folder), input="line of stdin\n",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=DEADLINE)
    print(f"$ {' '.join(words)}\n{done.stdout}", flush=True)
    return done.returncode, done.stdout


def comparable(output):
    """Returns the lines without what differs between any two jobs, in an order that does not depend on timing."""
    output = re.sub(r"(?m)^  (pid|time) .*\n|^.*(files are in|port 29500) .*\n|0x[0-9a-f]+|\(pid \d+|acclaunch_\w+", "", output)
    return sorted(output.replace("ms after the start", "").splitlines())


def check_same(folder, flags, program):
    started, forked = (run(folder, *flags, *preload, *program) for preload in ([], ["--preload", "plain,json"]))
    assert started[0] == forked[0], (program, started[0], forked[0])
    assert comparable(started[1]) == comparable(forked[1]), program


def drawn(output):
    return re.findall(r"drawn (.*)", output)


def check_values(folder):
    two = ["torchrun", "--nproc-per-node", "2"]
    status, output = run(folder, *two, "--preload", "random,numpy,multiprocessing", "draws.py")
    assert status == 0
    first, second = (line.split() for line in drawn(output))
    assert all(one != other for one, other in zip(first, second)), output
    assert len(set(drawn(run(folder, *two, "--preload", "seeds", "seeded.py")[1]))) == 1
    _, output = run(folder, *two, "--preload", "rank_reader", "isolation.py")
    assert {f"seen [None, None, None] 1 {rank} None" in output for rank in (0, 1)} == {True}, output
    # A library that ends its threads before the fork is allowed: OpenBLAS in numpy.
    assert run(folder, "--cpu", "--num_cpu_threads_per_process", "4", "--preload", "numpy", "streams.py")[0] == 0
    _, output = run(folder, "--cpu", "--log_level", "debug", "--preload", "prints,json", "streams.py")
    assert "[preload] hello" in output and "raw" in output, output
    assert re.search(r"has imported prints in \d+\.\d\d s, json in \d+\.\d\d s", output), output
    (folder / "config.yaml").write_text("distributed_type: 'NO'\nuse_cpu: true\nnum_processes: 1\npreload: prints\n")
    assert "[preload] hello" in run(folder, "--config_file", "config.yaml", "streams.py")[1]


def check_restarts(folder):
    imports = folder / "imports"
    imports.unlink(missing_ok=True)
    status, output = run(folder, "torchrun", "--nproc-per-node", "2", "--max-restarts", "1", "--preload", "plain,torch",
                         "restarts.py")
    assert status == 0 and imports.read_text() == "x", (status, imports.read_text())
    assert len(re.findall(r"attempt 1 rank \d sum 3.0", output)) == 2, output
    status, output = run(folder, "torchrun", "--max-restarts", "1", "--preload", "plain", "kills_server.py")
    assert status == 0 and "started again" in output and imports.read_text() == "xxx", output


def check_stop(folder):
    """SIGTERM while a module is imported ends the job, and nothing is left."""
    os.mkfifo(folder / "fifo")
    job = subprocess.Popen([ACCLAUNCH, "torchrun", "--preload", "waits", "sees.py"], cwd=folder,
                           env=environment(folder))
    with open(folder / "fifo", encoding="utf-8") as held:
        assert held.readline() == "importing\n"
        job.send_signal(signal.SIGTERM)
        assert job.wait(timeout=DEADLINE) == 128 + signal.SIGTERM
        assert held.read() == ""  # the end: no process holds it


def check_training(folder):
    program = ["--cpu", "--num_processes", "4", "--num_cpu_threads_per_process", "1", str(WORKERS / "torch_gloo.py")]
    (status, plain), (forked_status, forked) = run(folder, *program), run(folder, "--preload", "torch", *program)
    assert status == forked_status == 0
    losses = [sorted(re.findall(r"rank \d of 4.*", output)) for output in (plain, forked)]
    assert len(losses[0]) == 4 and losses[0] == losses[1], losses


def main():
    for package in ("torch", "numpy"):
        if importlib.util.find_spec(package) is None:
            print(f"skipped: {package} is not installed")
            sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for path, text in FILES.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(textwrap.dedent(text))
        with zipfile.ZipFile(folder / "package.zip", "w") as archive:
            archive.write(folder / "sees.py", "__main__.py")
        for flags, program in SAME:
            check_same(folder, flags, program)
        for modules, program, expected, text in REFUSED:
            status, output = run(folder, "torchrun", "--preload", modules, *program)
            assert status == expected and re.search(text, output), (modules, status)
        check_values(folder)
        check_restarts(folder)
        check_stop(folder)
        check_training(folder)


main()
