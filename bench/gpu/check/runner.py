# SPDX-License-Identifier: Apache-2.0
"""Steps with time limits, and the programs that they run."""
import json
import os
import pathlib
import signal
import subprocess
import tempfile
import threading
import time

TAIL = 1500  # characters of a program's output that an error shows


class StepFailed(Exception):
    """The reason why a step failed. The other steps still run."""


class Skipped(Exception):
    """The reason why a step does not apply to this machine."""


class Ran:
    def __init__(self, status, out, err, seconds):
        self.status, self.out, self.err, self.seconds = status, out, err, seconds

    def tail(self):
        return (self.out[-TAIL:] + "\n" + self.err[-TAIL:]).strip()


class Clock:
    """Remaining time of a step."""

    def __init__(self, limit):
        self.deadline = time.monotonic() + limit

    def left(self):
        return self.deadline - time.monotonic()


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


def wait(process, seconds):
    """Waits for a process. False if the time is over or gpu_check is told to end."""
    deadline = time.monotonic() + seconds
    while not ENDED.is_set():
        try:
            process.wait(max(0.0, min(0.2, deadline - time.monotonic())))
            return True
        except subprocess.TimeoutExpired:
            if time.monotonic() >= deadline:
                return False
    return False


def run(argv, clock, environment=None, limit=None):
    """Runs a program and returns its result. Raises StepFailed after a timeout."""
    begin = time.monotonic()
    seconds = min(clock.left(), limit or clock.left())
    if seconds <= 0:
        raise StepFailed("no time left for " + os.path.basename(str(argv[0])))
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen([str(word) for word in argv], stdin=subprocess.DEVNULL,
                                   stdout=out, stderr=err, start_new_session=True,
                                   env={name: str(value) for name, value in
                                        {**os.environ, **(environment or {})}.items()})
        in_time = wait(process, seconds)
        if not in_time:
            stop(process)
        text = []
        for stream in (out, err):
            stream.seek(0)
            text.append(stream.read().decode(errors="replace"))
    ran = Ran(process.returncode, text[0], text[1], time.monotonic() - begin)
    if ENDED.is_set():
        raise StepFailed("gpu_check was ended from outside")
    if not in_time:
        raise StepFailed(f"{os.path.basename(str(argv[0]))} did not end within {seconds:.0f} s\n"
                         + ran.tail())
    return ran


def succeed(argv, clock, environment=None, limit=None):
    """Like `run`. Raises StepFailed with the end of the output if the status is not 0."""
    ran = run(argv, clock, environment, limit)
    if ran.status != 0:
        raise StepFailed(f"{os.path.basename(str(argv[0]))} ended with status {ran.status}\n"
                         + ran.tail())
    return ran


def last_json(text):
    """The last line of the text that is a JSON object, decoded."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            try:
                return json.loads(line)
            except ValueError:
                continue
    raise StepFailed("no line of JSON in the output\n" + text[-TAIL:])


class Results:
    """Results of all steps, saved as JSON. Without `keeps_figures`, as on stand-in libraries,
    measurements are dropped and only the outcomes of checks are kept."""

    def __init__(self, folder, name, keeps_figures):
        self.path = pathlib.Path(folder) / f"{name}.json"
        self.keeps_figures = keeps_figures
        self.data = {"schema": 1, "has_figures": keeps_figures, "steps": []}

    def begin(self, name, title):
        step = {"name": name, "title": title, "status": "running", "figures": {}, "checks": []}
        self.data["steps"].append(step)
        return step

    def save(self):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.data, indent=1, sort_keys=True) + "\n"
        temporary = self.path.with_suffix(".json.new")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(self.path)


class Recorder:
    """Records the findings of one step."""

    def __init__(self, step, keeps_figures):
        self.step, self.keeps_figures = step, keeps_figures

    def figure(self, name, value):
        """Records a measurement: a number, or a flat dict of numbers."""
        if self.keeps_figures:
            self.step["figures"][name] = value

    def check(self, what, good, detail=""):
        """Records a check that must hold on every machine."""
        self.step["checks"].append({"what": what, "good": bool(good),
                                    "detail": detail if self.keeps_figures or not good else ""})
        mark = "ok  " if good else "FAIL"
        print(f"   {mark} {what}" + (f": {detail}" if detail else ""), flush=True)

    def note(self, text):
        self.step.setdefault("notes", []).append(text)
        print("   " + text, flush=True)


def run_step(results, name, title, limit, function):
    """Runs one step within its limit. Records every outcome, so that the next step can run."""
    step = results.begin(name, title)
    results.save()
    print(f"== {name}: {title} (at most {limit:.0f} s)", flush=True)
    begin = time.monotonic()
    try:
        if limit <= 0:
            raise StepFailed("no time was left for it")
        function(Recorder(step, results.keeps_figures), Clock(limit))
        bad = [check for check in step["checks"] if not check["good"]]
        step["status"] = "failed" if bad else "passed"
    except Skipped as reason:
        step["status"], step["error"] = "skipped", str(reason)
    except StepFailed as reason:
        step["status"], step["error"] = "failed", str(reason)
    except Exception as error:  # pylint: disable=broad-except
        step["status"], step["error"] = "failed", f"{type(error).__name__}: {error}"
    step["seconds"] = round(time.monotonic() - begin, 1)
    print(f"   {step['status']} after {step['seconds']} s" +
          (f": {step['error']}" if "error" in step else ""), flush=True)
    results.save()
    return step
