#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cost of being watched: CPU time of a step's reports through the runtime, and of a line of JSON, in a worker with steps of
10 ms; and the CPU time of its launcher.

    bench/watching.py [--build FOLDER] [--steps 300]

The job runs below `acclaunch --status_port`; meanwhile a client reads /metrics ten times per second and another one the stream
of events. The aim is less than 0.5 % of a step.
"""
import json
import pathlib
import re
import resource
import subprocess
import threading
import time
import urllib.request

from names import Options


def read_forever(url, headers, pause, done):
    while not done.wait(pause):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=10) as answer:
                for _ in answer:
                    if done.is_set():
                        return
        except OSError:
            return


def main():
    options = Options(__doc__, build="build/release", steps=300).parse_args()
    programs = pathlib.Path(options.build).absolute() / "bin"
    begin = time.monotonic()
    job = subprocess.Popen([programs / "acclaunch", "--cpu", "--status_port", "0", "--num_processes", "1", "--no_python",
                            programs / "watching_bench", str(options.steps)],
                           stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    line = next(line for line in job.stderr if "watched at" in line)
    base = re.search(r"http://\S+", line)[0]
    done = threading.Event()
    for path, headers, pause in (("/metrics", {}, 0.1), ("/api/v1/events", {"Accept": "text/event-stream"}, 0)):
        threading.Thread(target=read_forever, args=(base + path, headers, pause, done), daemon=True).start()
    out, err = job.communicate()
    done.set()
    if job.returncode:
        raise SystemExit(err)
    found = json.loads(out.splitlines()[-1])
    print(json.dumps(found))
    for kind in ("runtime", "line"):
        cost = found[f"{kind}_us"]
        print(f"{kind:8} {cost:.1f} us per step of {found['work_us'] / 1000:.2f} ms: {100 * cost / found['work_us']:.3f} %")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    launcher = used.ru_utime + used.ru_stime - found["cpu_s"]
    print(f"launcher {100 * launcher / (time.monotonic() - begin):.1f} % of a core, with its start and end")


main()
