# SPDX-License-Identifier: Apache-2.0
"""What acc-rendezvous shows by HTTP of jobs whose machines are played by this test: answers have the form of
docs/api.schema.json, promtool and a real Prometheus read the metrics, and the log says what happens.

    api_daemon_test.py ACC_RENDEZVOUS SOURCE_FOLDER
"""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

DAEMON, SOURCE = os.path.abspath(sys.argv[1]), Path(sys.argv[2]).absolute()
sys.path.insert(0, str(SOURCE / "test/support"))
from agent_bytes import HELLO, enter, frame, i32, text  # noqa: E402
from api_client import LIMIT, Client, promtool  # noqa: E402
from ports import reserved_port  # noqa: E402


def status(rank, loss, tokens):
    """A Status message with one rank."""
    metrics = (b"\1" + struct.pack("<q", 7) + b"\1" + struct.pack("<d", loss) + b"\0\0" + b"\1" + struct.pack("<d", tokens)
               + b"\0" * 5 + struct.pack("<I", 1) + text("activations") + struct.pack("<q", 4096)
               + struct.pack("<I", 1) + text("accuracy") + struct.pack("<d", 0.5))
    return frame(8, struct.pack("<I", 1), i32(rank, rank, 4711), b"\1", metrics, b"\1" + struct.pack("<q", 20),
                 b"\1" + struct.pack("<q", 1 << 20), b"\1" + struct.pack("<d", 99.5), b"\0\0", text(""), b"\0", struct.pack("<I", 0))


def scrape(folder, address, query, value):
    """A real Prometheus reads the metrics."""
    if not shutil.which("prometheus"):
        print("not checked: prometheus is not installed")
        return
    own = f"127.0.0.1:{reserved_port()}"
    (folder / "prometheus.yml").write_text(
        "scrape_configs: [{job_name: a, scrape_interval: 1s, scrape_timeout: 1s, "
        f'static_configs: [{{targets: ["{address}"]}}]}}]\n')
    server = subprocess.Popen(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/tsdb",
                               f"--web.listen-address={own}"], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + LIMIT
        while True:
            try:
                with urllib.request.urlopen(f"http://{own}/api/v1/query?query={query}", timeout=LIMIT) as answer:
                    result = json.loads(answer.read())["data"]["result"]
                if result and result[0]["value"][1] == value:
                    return
            except urllib.error.URLError:
                pass
            assert time.monotonic() < end, "Prometheus has no value"
            time.sleep(0.1)
    finally:
        server.kill()
        server.wait()


def main(folder):
    daemon = subprocess.Popen([DAEMON, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = re.search(r"listening on (\S+)", daemon.stdout.readline())[1]
    host, port = address.split(":")
    client = Client(address)
    assert client.get("/healthz") == "ok\n" and client.get("/readyz") == "ready\n"
    assert client.get("/").startswith("<!DOCTYPE html>")
    assert client.get("/api/v1/jobs", "jobs")["jobs"] == []
    path = "/api/v1/jobs/a%20job"
    client.get(path, "error", status=404)

    agent = socket.create_connection((host, int(port)))
    agent.sendall(HELLO + enter(run_id="a job", machines=(1, 1), local_world_size=2, host="node1", heartbeat=600_000))
    client.wait("/api/v1/jobs", "jobs", lambda all: all["jobs"] and all["jobs"][0]["state"] == "running")
    agent.sendall(status(0, 2.5, 100) + status(1, float("nan"), 300))
    job = client.wait(path, "job", lambda each: each["num_reporting"] == 2)
    assert (job["step"], job["loss"], job["tokens_per_s"], job["world_size"]) == (7, 2.5, 400, 2), job
    assert job["machines"][0]["host"] == "node1" and job["machines"][0]["state"] == "running", job
    ranks = client.get(f"{path}/ranks", "ranks")["ranks"]
    assert [(rank["loss"], rank["not_finite"]) for rank in ranks] == [(2.5, []), (None, ["loss"])], ranks
    assert ranks[0]["memory"] == {"activations": 4096} and ranks[0]["values"] == {"accuracy": 0.5}, ranks
    assert len(client.get(f"{path}/ranks?from=1&limit=9", "ranks")["ranks"]) == 1
    assert client.get(f"{path}/history", "history")["points"][0]["step"] == 7
    client.get(f"{path}/report", "error", status=404)

    metrics = client.get("/metrics")
    assert 'acc_rank_loss{job="a job",rank="1",host="node1"} NaN\n' in metrics, metrics
    promtool(metrics)
    assert client.get("/metrics", accept="application/openmetrics-text").endswith("# EOF\n")
    scrape(folder, address, "sum(acc_rank_tokens_per_second)", "400")

    agent.sendall(frame(5, b"\0", text("{}")) + frame(9, text('{"format": 1}')))
    job = client.wait(path, "job", lambda each: each["has_report"])
    assert (job["state"], job["exit_status"]) == ("finished", 0), job
    assert client.get(f"{path}/report") == '{"format": 1}'
    assert len(client.get(f"{path}/rounds", "rounds")["rounds"]) == 1
    kinds = [each["kind"] for each in client.get("/api/v1/events", "events")["events"]]
    assert kinds == ["created", "joined", "round_formed", "job_over", "report"], kinds

    daemon.send_signal(signal.SIGTERM)
    agent.close()
    log = daemon.communicate(timeout=LIMIT)[1]
    assert daemon.returncode == 0, log
    for line in [r"node1 joined \(pid 4711, 2 workers\)", "round 0 is formed: 1 machine, 2 workers, restart 0",
                 "the job is over: every worker succeeded"]:
        assert re.search(r"\d{4}-\d\d-\d\d job 'a job': " + line, log), (line, log)


with tempfile.TemporaryDirectory() as top:
    main(Path(top))
