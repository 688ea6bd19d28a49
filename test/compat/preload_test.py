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
DEADLINE = 900

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
    "generators.py": """
        import importlib, sys
        importlib.import_module(sys.argv[1])
        import makes_generators
        for name, draw in makes_generators.draws.items(): print(f"drawn {name} {draw()}")
    """,
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
    "signals_server.py": """
        import os, signal, sys
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            for pid in open(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read().split():
                if open(f"/proc/{pid}/cmdline").read().startswith("acc-preload"): os.kill(int(pid), int(sys.argv[1]))
            sys.exit(1)
        print("started again")
    """,
    # Modules to preload.
    "plain.py": "import os; open(os.environ['IMPORTS'], 'a').write('x')",
    "seeds.py": "import numpy; numpy.random.seed(5)",
    # Generators whose names begin with "own" differ between processes, and the others are the same.
    "makes_generators.py": """
        import random, secrets, numpy, numpy.random as nr, torch
        class Holder: pass
        holder = Holder()
        holder.generator = nr.default_rng()
        bits = nr.Philox(); sequence = nr.SeedSequence(); legacy = nr.RandomState(); legacy.normal()
        spawned = nr.default_rng().spawn(1)[0]
        drawn = nr.default_rng([secrets.randbits(128), 1])
        python, chosen = random.Random(), random.Random(secrets.randbits(64))
        state = random.getstate(); random.seed(3); random.setstate(state)
        seeded, python_seeded = nr.default_rng(5), random.Random(5)
        restored = random.Random(7); restored.setstate(python_seeded.getstate())
        bits_seeded, legacy_seeded = nr.PCG64(6), nr.RandomState(6)
        advanced = nr.default_rng(7); advanced.random()
        of_torch = torch.Generator()
        torch.rand(1)
        with torch.random.fork_rng(devices=[]): torch.manual_seed(4)
        draws = {
            "own-global": random.random, "own-numpy": nr.rand, "own-attribute": holder.generator.random,
            "own-bits": nr.Generator(bits).random, "own-sequence": lambda: sequence.spawn(1)[0].generate_state(1),
            "own-spawns": lambda: holder.generator.spawn(1)[0].random(),
            "own-legacy": legacy.normal, "own-spawned": spawned.random, "own-drawn": drawn.random,
            "own-python": python.random, "own-chosen": chosen.random,
            "seeded": seeded.random, "python_seeded": python_seeded.random, "restored": restored.random,
            "bits_seeded": nr.Generator(bits_seeded).random, "legacy_seeded": legacy_seeded.normal,
            "advanced": advanced.random, "own-torch": lambda: torch.rand(1).item(), "own-torch_seed": torch.initial_seed,
            "of_torch": lambda: torch.rand(1, generator=of_torch).item(),
        }
    """,
    "seeds_all.py": "import makes_generators, numpy, random, torch; random.seed(8); torch.manual_seed(1 << 40); numpy.random.seed(8)",
    "seeds_torch.py": "import torch; chosen = torch.Generator(); chosen.seed()",
    "rank_reader.py": """
        import os
        seen = [os.environ.get(name) for name in ("RANK", "MASTER_PORT", "LOCAL_RANK")]
        threads = os.environ["OMP_NUM_THREADS"]
        os.environ["LEFT_BY_MODULE"] = "x"
    """,
    "starts_thread.py": """
        import threading, time
        threading.Thread(target=threading.Event().wait, daemon=True, name="poller").start()
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
        time.sleep(600)
    """,
    # The second fork is the first one for workers.
    "forks_once.py": """
        import os, time
        held = open(os.environ["FIFO"], "w")
        forks = []
        def before():
            forks.append(1)
            if len(forks) == 2:
                held.write("forking\\n"); held.flush()
                time.sleep(600)
        os.register_at_fork(before=before)
    """,
    "says_pid.py": """
        import os
        for name in os.listdir("/proc/self/fd"):
            link = f"/proc/self/fd/{name}"
            if os.path.islink(link) and os.readlink(link).startswith("socket:"):
                os.write(int(name), b"1")
    """,
    "closes.py": """
        import os, time
        os.closerange(3, 100000)
        time.sleep(600)
    """,
    "says_pid_later.py": """
        import os
        forks = []
        def before():
            forks.append(1)
            if len(forks) == 2: import says_pid
        os.register_at_fork(before=before)
    """,
    "claims_init.py": """
        import os, socket, struct
        def claim():
            links = {int(name): f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")}
            own = min(fd for fd, link in links.items() if os.path.islink(link) and os.readlink(link).startswith("socket:"))
            claimed = [(socket.SOL_SOCKET, socket.SCM_CREDENTIALS, struct.pack("3i", 1, 0, 0))]
            try: socket.socket(fileno=os.dup(own)).sendmsg([b"H"], claimed)
            except OSError: os._exit(0)  # only root may claim
        forks = []
        def after():
            if len(forks) == 3: claim()
        os.register_at_fork(before=lambda: forks.append(1), after_in_child=after)
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
    ("closes", ["sees.py"], 1, r"the process that imports the modules \(pid \d+\) has closed the socket to the launcher"),
    ("says_pid", ["sees.py"], 1, "a module has written to the socket of the launcher"),
    ("says_pid_later", ["sees.py"], 1, "a module has written to the socket of the launcher"),
    ("claims_init", ["sees.py"], 1, "process 1 answers for a worker, but is none|a forked worker has ended before it began"),
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


def check_generators(folder, flags, module, seeded):
    """Workers have generators that differ where those of started workers do, and the same ones otherwise."""
    drawings = []
    for preload in ([], ["--preload", module]):
        status, output = run(folder, *flags, *preload, "generators.py", module)
        assert status == 0 and "[preload]" not in output, output
        ranks = [dict(re.findall(rf"(?m)^\[{rank}\] drawn (\S+) (.*)", output)) for rank in (0, 1)]
        assert set(ranks[0]) == set(ranks[1]) and len(ranks[0]) == 20, ranks
        drawings.append(ranks)
    started, forked = drawings
    differ = [{name for name in ranks[0] if ranks[0][name] != ranks[1][name]} for ranks in drawings]
    own = {name for name in started[0] if name.startswith("own-")} - seeded
    assert differ == [own, own], differ
    assert all(started[0][name] == forked[0][name] for name in set(started[0]) - own), drawings


def check_values(folder):
    two = ["torchrun", "--nproc-per-node", "2"]
    status, output = run(folder, *two, "--preload", "random,numpy,multiprocessing", "draws.py")
    assert status == 0
    first, second = (line.split() for line in drawn(output))
    assert all(one != other for one, other in zip(first, second)), output
    assert len(set(drawn(run(folder, *two, "--preload", "seeds", "seeded.py")[1]))) == 1
    check_generators(folder, two, "makes_generators", set())
    check_generators(folder, two, "seeds_all", {"own-global", "own-numpy", "own-torch", "own-torch_seed"})
    _, output = run(folder, *two, "--preload", "seeds_torch", "seeded.py")
    assert "[preload] seeds_torch.chosen has the seed " in output, output
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
    for number, count in ((signal.SIGKILL, 3), (signal.SIGSTOP, 4)):  # a stopped server is continued
        status, output = run(folder, "torchrun", "--max-restarts", "1", "--preload", "plain", "signals_server.py",
                             str(int(number)))
        assert status == 0 and "started again" in output and imports.read_text() == "x" * count, output


def stop_servers(folder):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        process = pathlib.Path("/proc") / pid
        try:
            if f"FIFO={folder}/fifo".encode() in (process / "environ").read_bytes() and \
               (process / "cmdline").read_bytes().startswith(b"acc-preload"):
                os.kill(int(pid), signal.SIGSTOP)
        except OSError:
            pass  # it has ended


def check_stop(folder, module, number, stops_server):
    """A signal while a module is imported or a worker is forked ends the job, and nothing is left."""
    print(f"check_stop {module} {number} {stops_server}", flush=True)
    job = subprocess.Popen([ACCLAUNCH, "torchrun", "--preload", module, "sees.py"], cwd=folder,
                           env=environment(folder))
    with open(folder / "fifo", encoding="utf-8") as held:
        assert held.readline() in ("importing\n", "forking\n")
        if stops_server:
            stop_servers(folder)
        job.send_signal(number)
        expected = 128 + signal.SIGTERM if number == signal.SIGTERM else -number
        assert job.wait(timeout=DEADLINE) == expected, job.returncode
        assert held.read() == ""  # the end: no process holds it


def check_training(folder):
    program = ["--cpu", "--num_processes", "2", "--num_cpu_threads_per_process", "1", str(WORKERS / "torch_gloo.py")]
    (status, plain), (forked_status, forked) = run(folder, *program), run(folder, "--preload", "torch", *program)
    assert status == forked_status == 0
    losses = [sorted(re.findall(r"rank \d of 2.*", output)) for output in (plain, forked)]
    assert len(losses[0]) == 2 and losses[0] == losses[1], losses


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
        os.mkfifo(folder / "fifo")
        for module in ("waits", "forks_once"):
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL):
                for stops_server in (False, True):
                    check_stop(folder, module, number, stops_server)
        check_training(folder)


main()
