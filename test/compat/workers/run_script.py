# SPDX-License-Identifier: Apache-2.0
"""run_script.py [--import MODULE,...] SCRIPT ARGUMENT... [-- SCRIPT ARGUMENT...]: does what `python SCRIPT ARGUMENT...`
does, but ends the process as soon as the script, its threads and its exit handlers have ended. After `import torch` the
interpreter's exit takes more than a second of CPU time, in which it takes apart all modules; so does the garbage
collector in imports of torch, torch._dynamo and FSDP if it runs as often as by default.

Several scripts run one after the other, each in a fork of a process that has imported the modules. The exit status is
1 if one fails, 77 if all are skipped."""
import atexit
import builtins
import gc
import importlib
import itertools
import os
import runpy
import sys
import threading
import traceback

SKIPPED = 77


def run(script, *arguments):
    """Runs a script and ends the process."""
    sys.argv[:] = [script, *arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    status = 0
    try:
        runpy.run_path(script, {"__builtins__": builtins}, "__main__")  # the module, as in a program
    except SystemExit as end:
        if not isinstance(end.code, (int, type(None))):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        status = 1
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)


def run_all(modules, scripts):
    """Returns the exit status."""
    for module in modules.split(","):
        try:
            importlib.import_module(module)
        except ImportError as error:
            print(f"run_script.py: {error}", flush=True)  # each script says what it lacks
    statuses = []
    for words in scripts:
        print(f"== {os.path.basename(words[0])} {' '.join(words[1:])}", flush=True)
        child = os.fork()
        if child == 0:
            run(*words)
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        if statuses[-1] != 0:
            print(f"== {os.path.basename(words[0])} ended with status {statuses[-1]}", flush=True)
    failed = [status for status in statuses if status not in (0, SKIPPED)]
    return 1 if failed else min(statuses)


if __name__ == "__main__":
    gc.set_threshold(100_000)
    if sys.argv[1] != "--import":
        run(*sys.argv[1:])
    groups = itertools.groupby(sys.argv[3:], lambda word: word == "--")
    os._exit(run_all(sys.argv[2], [list(words) for is_between, words in groups if not is_between]))
