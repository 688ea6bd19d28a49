# SPDX-License-Identifier: Apache-2.0
"""A server with the answers of the HTTP API (docs/api.md) about simulated jobs, and the status page.

    python3 simulated_api.py PAGE.html [PORT]

serves until it is killed, and prints its port. Jobs: `running` (4 ranks on 2 machines), `large` (4,096 ranks
on 512 machines), `restarting`, `failed`, `stopped`, and `<img src=x onerror=alert(1)>`, whose texts all contain markup."""

import json
import math
import sys
import threading
import time
import urllib.parse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

MARKUP = "<img src=x onerror=\"document.title='attacked'\">"
START = time.time() - 600


def rank_of(job, number, now):
    step = None if job["waits"] else int((now - START) * 2) - (3 if number == job["slowest"] else 0)
    loss = None if step is None else 10 / math.log(step + 3) + 0.01 * (number % 7)
    state = job["rank_states"].get(number, "running")
    return {"rank": number, "local_rank": number % job["per_machine"], "machine_rank": number // job["per_machine"],
            "host": job["host"].format(number // job["per_machine"]), "pid": 4000 + number, "state": state, "step": step,
            "loss": None if number == job["not_finite"] else loss, "tokens_per_s": 51200.0, "learning_rate": 3e-4,
            "gradient_norm": 0.8, "step_s": 0.5, "compute_s": 0.4, "gather_s": 0.04, "reduce_s": 0.03,
            "wait_s": 0.0 if number == job["slowest"] else 0.03, "memory": {"parameters": 1 << 32},
            "resident_bytes": 18253611008, "cpu_percent": 99.5 - number % 5, "collective": job["collective"],
            "waits_since": now - 12.5 if job["collective"] and number != job["slowest"] else None,
            "last_stderr_lines": [f"step {step}", job["name"]],
            "gpu": {"utilization_percent": 97.0 - number % 9, "memory_bytes": 68719476736} if job["gpu"] else None,
            "values": {"accuracy": 0.61}, "not_finite": ["loss"] if number == job["not_finite"] else [],
            "last_heartbeat": now - 0.4, "last_report": now - 0.5}


def make(name, machines, per_machine, state="running", host="node{}", **more):
    job = {"name": name, "machines": machines, "per_machine": per_machine, "state": state, "host": host, "reason": "",
           "exit_status": None, "restarts": 0, "slowest": 1 % (machines * per_machine), "not_finite": -1, "gpu": False,
           "rank_states": {}, "waits": state == "waiting", "report": None, "collective": "", "ended_at": None, "waiting_for": ""}
    return job | more


def report_of(name, markup=""):
    worker = {"rank": 0, "local_rank": 0, "machine_rank": 0, "host": "node0", "pid": 4000,
              "end": {"kind": "killed", "value": 15, "signal": "SIGTERM", "core_dumped": False, "exit_status": 143},
              "told_to_end": True, "stuck": False, "moment_us": 1, "ended_at_us": 1, "ran_for_ms": 12000, "cause": "",
              "error_message": "", "traceback": [], "last_stderr_lines": [], "collectives": None}
    first = worker | {"rank": 2, "pid": 4002, "told_to_end": False, "host": "node1", "machine_rank": 1,
                      "end": {"kind": "exited", "value": 1, "signal": None, "core_dumped": False, "exit_status": 1},
                      "error_message": "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x512 and 511x8)" + markup,
                      "traceback": ['  File "train.py", line 61, in <module>', "    loss = model(batch)"],
                      "last_stderr_lines": ["step 411, loss 2.31", "RuntimeError: mat1 and mat2 shapes" + markup]}
    late = {"ranks": [2], "group": "world", "number": 41, "kind": "reduce_scatter", "bytes": 4096, "phase": "backward",
            "unit": "transformer.h.3", "waiting_ranks": [0, 1, 3], "waited_ms": 3200, "called_instead": "",
            "without_record": []}
    return {"format": 1, "command": ["python3", "train.py"], "run_id": name, "attempt": 1, "max_restarts": 1,
            "restarts_after_ms": None, "exit_status": 1, "reason": "", "first_failure": 2, "late": [late],
            "workers": [worker, worker | {"rank": 1, "pid": 4001}, first, worker | {"rank": 3, "pid": 4003}],
            "silent_machines": [], "stacks": [], "log_folder": "/scratch/logs/run_1/attempt_0" + markup}


JOBS = {job["name"]: job for job in [
    make("running", 2, 2, not_finite=3, collective="all_gather 7 of unit transformer.h.3, forward, waiting"),
    make("large", 512, 8, gpu=True, slowest=2049, rank_states={17: "failed", 18: "lost", 4000: "starting"}),
    make("restarting", 2, 2, "restarting", restarts=1, reason="machine 1 (node1) is lost: no heartbeat for 30 s",
         waiting_for="1 more machine", rank_states={2: "lost", 3: "lost"}, exit_status=1),
    make("failed", 2, 2, "failed", restarts=1, exit_status=1, ended_at=START + 580, report=report_of("failed"),
         reason="rank 2 (pid 4002 on node1): exited with code 1", rank_states={0: "stopped", 1: "stopped", 2: "failed", 3: "stopped"}),
    make("stopped", 1, 2, "stopped", exit_status=130, ended_at=START + 500, reason="stopped by SIGINT", rank_states={0: "stopped", 1: "stopped"}),
    make(MARKUP, 1, 2, "failed", host=MARKUP, collective=MARKUP, reason=MARKUP, exit_status=1, report=report_of(MARKUP, MARKUP), waiting_for=MARKUP),
]}


def job_of(job, now):
    now = job["ended_at"] or now
    first = rank_of(job, 0, now)
    world = job["machines"] * job["per_machine"]
    over = job["ended_at"] is not None
    machine_state = "ended" if over else "running"
    machines = [{"machine_rank": m, "host": job["host"].format(m), "pid": 3000 + m, "local_world_size": job["per_machine"],
                 "state": "lost" if job["rank_states"].get(m * job["per_machine"]) == "lost" else machine_state,
                 "last_heartbeat": now - 0.2} for m in range(job["machines"])]
    return {"format": 1, "id": job["name"], "state": job["state"], "reason": job["reason"], "exit_status": job["exit_status"],
            "waiting_for": job["waiting_for"], "created_at": START, "ended_at": job["ended_at"], "round": job["restarts"],
            "restarts": job["restarts"], "max_restarts": 3, "min_machines": 1, "num_machines": job["machines"], "world_size": world,
            "machines": machines, "step": first["step"], "loss": first["loss"],
            "tokens_per_s": 51200.0 * world * (1 + 0.03 * math.sin(now)), "learning_rate": 3e-4,
            "gradient_norm": 0.8, "slowest_rank": job["slowest"], "num_reporting": world, "last_heartbeat": now - 0.2,
            "has_report": job["report"] is not None, "last_event": 3}


def rounds_of(job):
    machines = [{"machine_rank": m, "host": job["host"].format(m), "local_world_size": job["per_machine"]} for m in range(job["machines"])]
    end = {"cause": "other", "reason": job["reason"], "exit_status": 1, "machine_rank": 1, "host": "node1", "restarts": True}
    past = [{"round": r, "restarts": r, "formed_at": START + 60 * r, "ended_at": START + 60 * r + 50, "machines": machines,
             "world_size": job["machines"] * job["per_machine"], "end": end} for r in range(job["restarts"])]
    return past + [{"round": job["restarts"], "restarts": job["restarts"], "formed_at": START + 60 * job["restarts"], "ended_at": None,
                    "world_size": job["machines"] * job["per_machine"], "machines": machines, "end": None}]


def events_of(job):
    texts = [("created", f"job {job['name']} created"), ("joined", f"{job['host'].format(0)} joined (pid 3000, {job['per_machine']} workers)"),
             ("round_formed", f"round 0 formed: {job['machines']} machines, {job['machines'] * job['per_machine']} ranks")]
    return [{"number": i + 1, "time": START + i, "job": job["name"], "kind": kind, "host": job["host"].format(0),
             "machine_rank": None, "round": 0, "text": text} for i, (kind, text) in enumerate(texts)]


def history_of(job, now):
    points = []
    for i in range(590):
        at = (job["ended_at"] or now) - 600 + i
        gap = 200 < i < 230 and job["restarts"] > 0
        step = max(0, int((at - START) * 2))
        points.append({"time": at, "step": step, "loss": None if gap else 10 / math.log(step + 3) + 0.05 * math.sin(i * 1.7),
                       "tokens_per_s": None if gap else 51200.0 * job["machines"] * job["per_machine"] * (1 + 0.03 * math.sin(i / 5))})
    return points


def answer(path, query):
    """Returns the body of an answer, or None where there is none."""
    now = time.time()
    parts = [urllib.parse.unquote(part) for part in path.split("/")]
    if parts == ["jobs"]:
        return {"format": 1, "time": now, "jobs": [job_of(job, now) for job in JOBS.values()]}
    if parts[0] != "jobs" or parts[1] not in JOBS:
        return None
    job = JOBS[parts[1]]
    head = {"format": 1, "id": job["name"]}
    what = parts[2] if len(parts) > 2 else ""
    if what == "ranks":
        world = job["machines"] * job["per_machine"]
        first, limit = int(query.get("from", ["0"])[0]), int(query.get("limit", ["100000"])[0])
        return head | {"round": 0, "total": world,
                       "ranks": [rank_of(job, r, job["ended_at"] or now) for r in range(first, min(world, first + limit))]}
    return {"": lambda: job_of(job, now), "rounds": lambda: head | {"rounds": rounds_of(job)},
            "events": lambda: head | {"events": events_of(job)}, "history": lambda: head | {"points": history_of(job, now)},
            "report": lambda: job["report"]}[what]()


class Handler(BaseHTTPRequestHandler):
    page = ""

    def log_message(self, *_):
        pass

    def send(self, status, kind, body):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        try:
            while not stopped.is_set():
                for job in JOBS.values():
                    if job["ended_at"] is None:
                        self.wfile.write(f"event: job\ndata: {json.dumps(job_of(job, time.time()))}\n\n".encode())
                self.wfile.flush()
                stopped.wait(1)
        except OSError:
            pass

    def do_GET(self):
        url = urllib.parse.urlsplit(self.path)
        if url.path == "/":
            with open(self.page, "rb") as page:
                self.send(200, "text/html; charset=utf-8", page.read())
        elif url.path == "/api/v1/events":
            self.stream()
        else:
            body = answer(url.path.removeprefix("/api/v1/"), urllib.parse.parse_qs(url.query))
            status = 200 if body is not None else 404
            body = body if body is not None else {"format": 1, "error": {"status": 404, "message": "none"}}
            self.send(status, "application/json", json.dumps(body).encode())


stopped = threading.Event()
servers = []


def serve(page, port=0):
    """Serves in a thread and returns the port."""
    Handler.page = page
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    servers.append(server)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server.server_address[1]


def stop():
    """Ends all servers and their streams."""
    stopped.set()
    for server in servers:
        server.shutdown()
        server.server_close()


if __name__ == "__main__":
    print(serve(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0), flush=True)
    threading.Event().wait()
