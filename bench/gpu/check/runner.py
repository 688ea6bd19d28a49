# SPDX-License-Identifier: Apache-2.0
"""Steps with time limits, the programs that they run, and the record of both.

Time-outs are never failures: on a borrowed machine they say that the visit was short, not that the
program is wrong. Everything is written as soon as it is known, so that a run that is killed at any
moment leaves a complete record of the time before.
"""
import json
import os
import pathlib
import select
import shlex
import signal
import subprocess
import threading
import time

TAIL = 1500  # characters of a program's output that an error shows
OURS = ("ACC_", "CUDA_", "NCCL_", "TRAIN_GPT_", "LD_", "PYTHONPATH")  # variables that logs show


class StepFailed(Exception):
    """The reason why a step failed. The other steps still run."""


class Skipped(Exception):
    """The reason why a step does not apply to this machine."""


class TimedOut(Exception):
    """What was not finished in time."""


class Ran:
    """A program that has ended. out: standard output and errors as they were written."""

    def __init__(self, status, out, seconds):
        self.status, self.out, self.seconds = status, out, seconds

    def tail(self):
        return self.out[-TAIL:].strip()


ENDED = threading.Event()  # set when gpu_check is told to end: stops programs, starts no more


def send(process, number):
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass


def stop(process):
    """Ends a program and all processes of its group: SIGTERM, then SIGKILL after 3 s."""
    send(process, signal.SIGTERM)
    try:
        process.wait(3)
    except subprocess.TimeoutExpired:
        pass
    send(process, signal.SIGKILL)  # also processes that outlived the program
    process.wait(10)


def read(process, seconds):
    """Reads what the program has written within the next seconds. None if it has closed its end."""
    readable, _, _ = select.select([process.stdout], [], [], max(0.0, seconds))
    if not readable:
        return b""
    return os.read(process.stdout.fileno(), 1 << 16) or None


def output_of(process, deadline):
    """Yields pieces of the output until the program ends, its time is over, or gpu_check is told
    to end. Processes that the program leaves behind may keep the pipe open."""
    while not ENDED.is_set() and time.monotonic() < deadline:
        ended = process.poll() is not None  # asked first: then the pipe contains all of its output
        piece = read(process, 0 if ended else min(0.1, deadline - time.monotonic()))
        if piece:
            yield piece
        elif ended:
            return
        elif piece is None:
            try:
                process.wait(0.05)
            except subprocess.TimeoutExpired:
                pass


def last_json(text):
    """The last line of the text that is a JSON object, decoded."""
    for line in reversed(text.splitlines()):
        values = json_of(line)
        if values is not None:
            return values
    raise StepFailed("no line of JSON in the output\n" + text[-TAIL:])


def json_of(line):
    """The JSON object that is the end of a line, or None."""
    begin = line.find("{")
    try:
        return json.loads(line[begin:]) if begin >= 0 else None
    except ValueError:
        return None


class Results:
    """The record of a run: NAME.json, NAME.md, and a log per step in the folder NAME. Without
    `keeps_figures`, as on stand-in libraries, measurements are dropped and only the outcomes of
    checks are kept. page: makes the text of NAME.md from the data."""

    def __init__(self, folder, name, keeps_figures, page):
        self.path = pathlib.Path(folder) / f"{name}.json"
        self.page_path = self.path.with_suffix(".md")
        self.logs = pathlib.Path(folder) / name
        self.keeps_figures, self.page = keeps_figures, page
        self.data = {"schema": 2, "has_figures": keeps_figures, "steps": []}

    def add(self, name, title):
        """Lists a step before it runs, so that a run that is cut shows what is missing."""
        step = {"name": name, "title": title, "status": "not run", "figures": {}, "checks": []}
        self.data["steps"].append(step)
        return step

    def save(self):
        self.logs.mkdir(parents=True, exist_ok=True)
        for path, text in ((self.path, json.dumps(self.data, indent=1, sort_keys=True) + "\n"),
                           (self.page_path, self.page(self.data))):
            temporary = path.with_suffix(path.suffix + ".new")
            temporary.write_text(text, encoding="utf-8")
            temporary.replace(path)


class Step:
    """A step that runs: its remaining time, its log and its findings."""

    def __init__(self, results, data, limit):
        self.results, self.data = results, data
        self.deadline = time.monotonic() + limit
        self.begin = time.monotonic()
        self.lock = threading.Lock()
        self.at_once = False  # several programs run at the same time: log each when it has ended
        self.log_path = results.logs / f"{data['name']}.log"
        self.log_path.write_bytes(b"")

    def left(self):
        return self.deadline - time.monotonic()

    def log(self, text):
        with self.lock, open(self.log_path, "ab") as file:
            file.write(text if isinstance(text, bytes) else text.encode())

    def figure(self, name, value):
        """Records a measurement: a number, a text, or a flat dict of them."""
        if self.results.keeps_figures:
            self.data["figures"][name] = value
            self.results.save()

    def check(self, what, good, detail=""):
        """Records a check that must hold on every machine. good: None if time ran out before."""
        keeps = self.results.keeps_figures or not good
        self.data["checks"].append({"what": what, "good": None if good is None else bool(good),
                                    "detail": detail if keeps else ""})
        mark = {True: "ok  ", False: "FAIL", None: "skip"}[None if good is None else bool(good)]
        print(f"   {mark} {what}" + (f": {detail}" if detail else ""), flush=True)
        self.results.save()

    def note(self, text):
        self.data.setdefault("notes", []).append(text)
        print("   " + text, flush=True)
        self.results.save()

    def attempt(self, what, function, *arguments):
        """Runs a part of the step that may fail or time out without ending the step. Returns what
        the function returns, or None."""
        try:
            return function(*arguments)
        except TimedOut as reason:
            self.check(what, None, str(reason))
        except StepFailed as reason:
            self.check(what, False, str(reason))
        return None

    def run(self, argv, environment=None, limit=None, on_line=None):
        """Runs a program. on_line is called with each line of its output at once. Raises TimedOut
        if the program does not end in time."""
        name = os.path.basename(str(argv[0]))
        seconds = min(self.left(), limit or self.left())
        if seconds <= 0:
            raise TimedOut("no time left for " + name)
        begin = time.monotonic()
        variables = {key: str(value) for key, value in (environment or {}).items()}
        shown = [f"{key}={value}" for key, value in variables.items() if key.startswith(OURS)]
        command = f"[{begin - self.begin:.1f} s] $ {shlex.join([*shown, *map(str, argv)])}\n"
        if not self.at_once:
            self.log(command)
        process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
                                   start_new_session=True, env={**os.environ, **variables})
        out = rest = b""
        with process.stdout:
            try:
                for piece in output_of(process, begin + seconds):
                    if not self.at_once:
                        self.log(piece)
                    out += piece
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in lines if on_line else ():
                        on_line(line.decode(errors="replace"))
            finally:
                in_time = process.poll() is not None
                if not in_time:  # or on_line has failed
                    stop(process)
            if not in_time:
                out += (last_words := read(process, 0) or b"")
                self.log(b"" if self.at_once else last_words)
        ran = Ran(process.returncode, out.decode(errors="replace"), time.monotonic() - begin)
        end = (f"[{time.monotonic() - self.begin:.1f} s] {name}: " +
               (f"status {ran.status}\n\n" if in_time else "ended by gpu_check\n\n"))
        self.log((command + ran.out if self.at_once else "") + end)
        if ENDED.is_set():
            raise TimedOut("gpu_check was ended from outside")
        if not in_time:
            raise TimedOut(f"{name} did not end within {seconds:.0f} s\n" + ran.tail())
        return ran

    def succeed(self, argv, environment=None, limit=None, on_line=None):
        """Like `run`. Raises StepFailed with the end of the output if the status is not 0."""
        ran = self.run(argv, environment, limit, on_line)
        if ran.status != 0:
            raise StepFailed(f"{os.path.basename(str(argv[0]))} ended with status {ran.status}\n"
                             + ran.tail())
        return ran


def outcome(checks):
    """Status of a step by its checks: time-outs alone neither pass nor fail it."""
    seen = {check["good"] for check in checks}
    if False in seen:
        return "failed"
    return "skipped" if seen == {None} else "passed"


def run_step(results, data, limit, function):
    """Runs one step within its limit. Records every outcome, so that the next step can run."""
    data["status"] = "running"
    results.save()
    print(f"== {data['name']}: {data['title']} (at most {limit:.0f} s)", flush=True)
    begin = time.monotonic()
    try:
        if limit <= 0:
            raise TimedOut("no time was left for it")
        function(Step(results, data, limit))
        data["status"] = outcome(data["checks"])
    except Skipped as reason:
        data["status"], data["error"] = "skipped", str(reason)
    except TimedOut as reason:
        bad = outcome(data["checks"]) == "failed"
        data["status"], data["error"] = "failed" if bad else "skipped", f"time-out: {reason}"
    except StepFailed as reason:
        data["status"], data["error"] = "failed", str(reason)
    except Exception as error:  # pylint: disable=broad-except
        data["status"], data["error"] = "failed", f"{type(error).__name__}: {error}"
    data["seconds"] = round(time.monotonic() - begin, 1)
    print(f"   {data['status']} after {data['seconds']} s" +
          (f": {data['error']}" if "error" in data else ""), flush=True)
    results.save()
