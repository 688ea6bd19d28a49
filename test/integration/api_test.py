# SPDX-License-Identifier: Apache-2.0
"""The HTTP API of real jobs: answers have the form of docs/api.schema.json and the values that the workers report.

    api_test.py ACCLAUNCH ACC_RENDEZVOUS TRAIN_GPT SOURCE_FOLDER [FOLDER_FOR_SCREENSHOTS]

The status page is looked at where a
Chromium is installed.
"""
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

ACCLAUNCH, DAEMON, TRAIN_GPT, SOURCE = (Path(word).absolute() for word in sys.argv[1:5])
SHOTS = Path(sys.argv[5]) if len(sys.argv) > 5 else None
sys.path.insert(0, str(SOURCE / "test/support"))
from api_client import LIMIT, Client, check, promtool  # noqa: E402
from browser import Browser, find_browser  # noqa: E402
from ports import reserved_port  # noqa: E402

# Reports until a file exists, so that a test need not wait for it.
WORKER = textwrap.dedent("""
    import json, os, sys, time
    folder, mode = sys.argv[1:]
    rank = int(os.environ.get("RANK", 0))
    fd = int(os.environ["ACC_REPORT_FD"])
    line = {"step": 7 + rank, "loss": 2.5 - rank, "lr": 0.25, "grad_norm": float("nan") if rank else 1.5,
            "tokens_per_s": 100, "memory": {"activations": 4096}, "accuracy": 0.5, "note": "no number"}

    def write(data):
        try:
            os.write(fd, data)
        except BlockingIOError:
            pass

    if mode == "garbage":  # a flood of anything; it must neither block nor matter
        for piece in [b"x" * 5000 + b"\\n", b"[1]\\n{\\n\\xff\\n", b"{}" * 9000, b"\\n"] * 300:
            write(piece)
    while not os.path.exists(f"{folder}/end"):
        write(b"\\n" + json.dumps(line).encode() + b"\\n")
        time.sleep(0.1)
    sys.exit(3 if mode == "fails" and rank == 1 else 0)
""")


def start(*words, folder, **variables):
    return subprocess.Popen(words, cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **variables})


def line_with(stream, pattern):
    for line in stream:
        if found := re.search(pattern, line):
            return found.group(1)
    raise AssertionError(f"no line with {pattern}")


def worker_command(folder, mode):
    (folder / "worker.py").write_text(WORKER)
    return [str(folder / "worker.py"), str(folder), mode]


def runs(thread):
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0] != "T"
    except OSError:  # it has ended
        return False


def kill_rank(ranks, number):
    """Kills one rank. The others are stopped, so that acclaunch ends them: they do not notice the loss and fail."""
    for rank in ranks[:number] + ranks[number + 1:]:
        os.kill(rank["pid"], signal.SIGSTOP)
        while any(map(runs, Path(f"/proc/{rank['pid']}/task").iterdir())):
            time.sleep(0.01)
    os.kill(ranks[number]["pid"], signal.SIGKILL)


def finish(job, status):
    out, err = job.communicate(timeout=LIMIT)
    assert job.returncode == status, (job.returncode, out, err)
    return err


def check_rank(rank, number, mode):
    assert rank["rank"] == rank["local_rank"] == number and rank["state"] == "running", rank
    assert rank["step"] == 7 + number and rank["loss"] == 2.5 - number and rank["learning_rate"] == 0.25, rank
    assert rank["tokens_per_s"] == 100 and rank["memory"] == {"activations": 4096}, rank
    assert rank["values"] == {"accuracy": 0.5}, rank
    assert (rank["gradient_norm"], rank["not_finite"]) == ((None, ["gradient_norm"]) if number else (1.5, [])), rank
    assert rank["resident_bytes"] > 0 and rank["pid"] > 0 and rank["gpu"] is None, rank


def one_machine(folder, mode):
    """--status_port: values, events and the report of a job without a daemon; also after a flood of garbage."""
    job = start(ACCLAUNCH, "--cpu", "--status_port", "0", "--max_restarts", "1", "--restart_backoff", "0", "--num_processes", "2",
                *worker_command(folder, mode), folder=folder)
    client = Client(line_with(job.stderr, r"watched at http://(127\.0\.0\.1:\d+)"))
    assert client.get("/healthz") == "ok\n" and client.get("/readyz") == "ready\n"
    job_id = client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])["jobs"][0]["id"]
    path = f"/api/v1/jobs/{job_id}"
    client.get(f"{path}/report", "error", status=404)
    reporting = client.wait(path, "job", lambda each: each["num_reporting"] == 2)
    assert reporting["state"] == "running" and reporting["step"] == 7 and reporting["tokens_per_s"] == 200, reporting
    assert reporting["world_size"] == 2, reporting
    client.wait(path, "job", lambda each: each["slowest_rank"] == 0)  # one step behind, all the time
    for number, rank in enumerate(client.wait(f"{path}/ranks", "ranks", lambda answer: answer["ranks"][1]["cpu_percent"] is not None)["ranks"]):
        check_rank(rank, number, mode)
    part = client.get(f"{path}/ranks?from=1&limit=5", "ranks")
    assert part["total"] == 2 and [rank["rank"] for rank in part["ranks"]] == [1], part
    assert client.get(f"{path}/history", "history")["points"][-1]["step"] == 7
    metrics = client.get("/metrics")
    assert f'acc_rank_loss{{job="{job_id}",rank="1",host="{socket.gethostname()}"}} 1.5' in metrics, metrics
    assert 'rank="1"' in metrics and "acc_rank_gradient_norm" in metrics and " NaN\n" in metrics, metrics
    assert client.get("/metrics", accept="application/openmetrics-text").endswith("# EOF\n")
    promtool(metrics)
    if mode != "fails":
        stop(folder, job, 0)
        return
    watched = client.stream(f"{path}/events")
    kinds = [next(watched)[1]["kind"] for _ in range(3)]
    assert kinds == ["created", "joined", "round_formed"], kinds
    (folder / "end").touch()
    seen = []
    for kind, data in watched:  # until the job is over and the server ends the stream
        seen.append((kind, data))
    texts = [data["kind"] for kind, data in seen if kind == "event"]
    assert texts[:2] == ["round_ended", "report"] and "round_formed" in texts and "job_over" in texts, texts
    finish(job, 3)
    last = [data for kind, data in seen if kind == "job"][-1]
    assert last["restarts"] in (0, 1), last


def training(folder):
    """Four ranks of train_gpt at a daemon and with --status_port: the runtime reports without a call of the program, in all that
    shows a job."""
    daemon = start(DAEMON, "--port", "0", folder=folder)
    address = line_with(daemon.stdout, r"listening on (\S+)")
    program = [TRAIN_GPT, "--data", SOURCE / "docs", "--layers", "2", "--dim", "32", "--seq_len", "16", "--steps", "1000000"]
    words = ["--nproc_per_node", "4", "--no_python", *program]
    at_daemon = start(ACCLAUNCH, "torchrun", "--status_port", "0", "--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                      address, "--rdzv_id", "gpt", "--rdzv_conf", "last_call_timeout=1", *words, folder=folder)
    client = Client(address)
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    assert line_with(at_daemon.stderr, "--status_port has no effect on this machine: .*(port of the rendezvous)")
    # The first line leaves out groups and their back end, which Runtime::describe() has.
    assert line_with(at_daemon.stdout, r"(parameters, \w+, 4 ranks on one machine, cpu, precision fp32)$")
    check_training(client, at_daemon.pid)
    end_training(at_daemon)
    state = client.wait("/api/v1/jobs/gpt", "job", lambda each: each["ended_at"])["state"]
    assert state == "stopped", state
    killed(client, address, words, folder)
    daemon.kill()
    daemon.communicate()
    alone = start(ACCLAUNCH, "torchrun", "--status_port", "127.0.0.1:0", "--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0",
                  "--rdzv_id", "gpt", *words, folder=folder)
    check_training(Client(line_with(alone.stderr, r"watched at http://(127\.0\.0\.1:\d+)")), alone.pid)
    end_training(alone)
    single = start(ACCLAUNCH, "--cpu", "--status_port", "0", "--num_processes", "1", "--no_python", *program, folder=folder)
    client = Client(line_with(single.stderr, r"watched at http://(127\.0\.0\.1:\d+)"))
    job = client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"] and answer["jobs"][0]["step"])["jobs"][0]
    assert job["loss"] > 0 and job["tokens_per_s"] > 0 and job["num_reporting"] == 1, job
    end_training(single)


def killed(client, address, words, folder):
    """The report of a rank that was killed arrives whole, with the last collectives of all ranks: more than 64 KiB."""
    job = start(ACCLAUNCH, "torchrun", "--nnodes", "1:2", "--rdzv_backend", "c10d", "--rdzv_endpoint", address, "--rdzv_id", "killed",
                "--rdzv_conf", "last_call_timeout=1", *words, folder=folder)
    client.wait("/api/v1/jobs", "jobs", lambda answer: any(each["id"] == "killed" for each in answer["jobs"]))
    path = "/api/v1/jobs/killed"
    ranks = client.wait(f"{path}/ranks", "ranks", lambda answer: len(answer["ranks"]) == 4 and all(
        (each["step"] or 0) > 50 for each in answer["ranks"]))["ranks"]
    kill_rank(ranks, 2)
    job.communicate(timeout=LIMIT)
    client.wait(path, "job", lambda each: each["has_report"])
    report = client.get(f"{path}/report", "report")
    size = len(json.dumps(report, indent=2))
    assert report["first_failure"] == 2 and size > 1 << 16, size
    states = [rank["state"] for rank in client.get(f"{path}/ranks", "ranks")["ranks"]]
    assert states == ["stopped", "stopped", "failed", "stopped"], states


def end_training(job):
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=LIMIT)


def check_training(client, launcher):
    path = "/api/v1/jobs/gpt"
    scalars = ("step", "loss", "tokens_per_s", "learning_rate", "gradient_norm", "step_s", "compute_s", "gather_s", "reduce_s", "wait_s",
               "resident_bytes", "cpu_percent")
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    ranks = client.wait(f"{path}/ranks", "ranks", lambda answer: len(answer["ranks"]) == 4 and all(
        each[name] is not None for each in answer["ranks"] for name in scalars))["ranks"]
    for number, rank in enumerate(ranks):
        assert rank["rank"] == number and rank["state"] == "running" and rank["last_report"], rank
        assert rank["step"] > 0 and rank["loss"] > 0 and rank["tokens_per_s"] > 0 and rank["memory"]["parameters"] > 0, rank
        parts = rank["compute_s"] + rank["gather_s"] + rank["reduce_s"] + rank["wait_s"]
        assert abs(parts - rank["step_s"]) <= 0.01 * rank["step_s"], rank
    later = client.wait(path, "job", lambda each: each["step"] > ranks[0]["step"])
    assert later["num_reporting"] == 4 and later["tokens_per_s"] > 0, later
    metrics = client.get("/metrics")
    for name in ("acc_rank_step{", "acc_rank_loss{", "acc_rank_tokens_per_second{", "acc_rank_step_part_seconds{", "acc_rank_memory_bytes{"):
        assert len(re.findall(f"^{name}", metrics, re.M)) >= 4, (name, metrics)
    promtool(metrics)
    for words in (["--rdzv_endpoint", client.address, "gpt"], [str(launcher)]):  # of a server, and by the ranks' flight records
        (shown,) = json.loads(top(*words, "--json"))
        check(shown["job"], "job")
        for rank in shown["ranks"]:
            check(rank, "rank")
            assert rank["step"] > 0 and rank["loss"] > 0, rank
        assert len(shown["ranks"]) == 4 and shown["job"]["num_reporting"] == 4, shown
        text = top(*words, "--once")
        assert re.search(r"^gpt +running +1/\d +4 +\d+ +\d+\.\d+ ", text, re.M), text
    check_page(client, "gpt", 4, ["running", "4 of 4 ranks report", "Slowest rank"])


def top(*words):
    return subprocess.run([ACCLAUNCH, "top", *words], check=True, capture_output=True, text=True, timeout=LIMIT).stdout


def check_page(client, job, num_ranks, words):
    """The status page shows these words, and the rows of the ranks."""
    if not BROWSER:
        return
    BROWSER.open(f"{client.base}/#/job/{job}")
    BROWSER.await_true(f"document.querySelectorAll('#ranks tbody tr[aria-rowindex]').length === {num_ranks}")
    for word in words:
        BROWSER.await_true(f"document.body.innerText.includes({json.dumps(word)})")
    if SHOTS:
        BROWSER.screenshot(SHOTS / f"{words[0]}_{job.replace('%20', '_')}.png")
    assert BROWSER.errors == [], (BROWSER.errors, BROWSER.text())
    BROWSER.call("Page.navigate", {"url": "about:blank"})  # before the server ends


def hanging(folder):
    """One rank hangs: it is the one that is waited for, in all that shows a job. A rank that is killed has failed, and the others,
    which acclaunch ends, have not."""
    daemon = start(DAEMON, "--port", "0", folder=folder)
    address = line_with(daemon.stdout, r"listening on (\S+)")
    client = Client(address)
    job = start(ACCLAUNCH, "torchrun", "--nnodes", "1:2", "--nproc_per_node", "3", "--rdzv_backend", "c10d", "--rdzv_endpoint", address,
                "--rdzv_id", "hangs", "--rdzv_conf", "last_call_timeout=1", "--no_python", ACCLAUNCH.parent / "root_cause_probe", "1", "hangs",
                folder=folder)
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    path = "/api/v1/jobs/hangs"
    client.wait(path, "job", lambda each: each["slowest_rank"] == 1)
    ranks = client.get(f"{path}/ranks", "ranks")["ranks"]
    assert [rank["waits_since"] is None for rank in ranks] == [False, True, False], ranks
    assert all(rank["collective"].endswith(", waiting") for rank in ranks[::2]), ranks
    assert "rank 1 hangs" in " ".join(ranks[1]["last_stderr_lines"]), ranks
    assert 'acc_job_slowest_rank{job="hangs"} 1' in client.get("/metrics")
    (shown,) = json.loads(top(str(job.pid), "--json"))
    assert shown["job"]["slowest_rank"] == 1, shown
    check_page(client, "hangs", 3, ["running", "ranks 0, 2: "])
    kill_rank(ranks, 1)
    client.wait(path, "job", lambda each: each["state"] == "failed")
    ranks = client.get(f"{path}/ranks", "ranks")["ranks"]
    assert [rank["state"] for rank in ranks] == ["stopped", "failed", "stopped"], ranks
    job.communicate(timeout=LIMIT)
    daemon.kill()
    daemon.communicate()


def restarting(folder):
    """A machine is lost, and the other one waits for it to come back."""
    daemon = start(DAEMON, "--port", "0", folder=folder)
    address = line_with(daemon.stdout, r"listening on (\S+)")
    client = Client(address)
    launchers = [start(ACCLAUNCH, "torchrun", "--nnodes", "2", "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--rdzv_endpoint",
                       address, "--rdzv_id", "r", "--max_restarts", "1", *worker_command(folder, "ends"), folder=folder)
                 for _ in range(2)]
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    job = client.wait("/api/v1/jobs/r", "job", lambda each: each["num_reporting"] == 2)
    os.kill(job["machines"][1]["pid"], signal.SIGKILL)
    job = client.wait("/api/v1/jobs/r", "job", lambda each: each["state"] == "restarting" and each["waiting_for"])
    check_page(client, "r", 2, ["restarting", "0 of 1", job["waiting_for"]])
    machine = job["machines"][0]  # it waits, and is alive
    client.wait("/api/v1/jobs/r", "job", lambda each: each["machines"][0]["last_heartbeat"] > machine["last_heartbeat"] + 0.5)
    for launcher in launchers:
        launcher.send_signal(signal.SIGTERM)
        launcher.communicate(timeout=LIMIT)
    client.wait("/api/v1/jobs/r", "job", lambda each: each["state"] == "stopped")
    daemon.kill()
    daemon.communicate()


def bad_input(folder):
    """Ports that cannot be used; no descriptor where nobody can watch; a port that shows a job is no store and no rendezvous."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        for port, message in (("x", 'PORT or HOST:PORT, with a port of 0 to 65535, got "x"'), ("65536", 'got "65536"'), (":80", 'got ":80"'),
                              ("no.such.host.invalid:0", "cannot listen on no.such.host.invalid:0"),
                              (str(taken.getsockname()[1]), "listens there. Choose another port")):
            job = start(ACCLAUNCH, "--cpu", "--status_port", port, "--num_processes", "1", "--no_python", "true", folder=folder)
            assert message in finish(job, 2), message
    job = start(ACCLAUNCH, "--cpu", "--num_processes", "1", "--no_python", "sh", "-c", "! env | grep ACC_REPORT_FD", folder=folder)
    finish(job, 0)
    job = start(ACCLAUNCH, "--cpu", "--status_port", "0", "--num_processes", "1", *worker_command(folder, "ends"), folder=folder)
    address = line_with(job.stderr, r"watched at http://(127\.0\.0\.1:\d+)")
    for first in (b"\0", b"A"):  # of a client of stores, of an agent
        with socket.create_connection(address.split(":"), timeout=LIMIT) as client:
            client.sendall(first + b"\1\2\3\r\n\r\n")
            answer = client.recv(1 << 16)
            assert answer == b"" or answer.startswith(b"HTTP/1.1 400 "), answer
    assert Client(address).get("/healthz") == "ok\n"
    stop(folder, job, 0)


def with_token(folder):
    """Who shows no token sees nothing."""
    token = folder / "token"
    token.write_text("0123456789abcdef" * 2 + "\n")
    token.chmod(0o600)
    port = str(reserved_port())
    launchers = [start(ACCLAUNCH, "torchrun", "--nnodes", "2", "--node_rank", rank, "--master_addr", "127.0.0.1", "--master_port", port,
                       "--nproc_per_node", "1", "--status_port", "0", *worker_command(folder, "ends"), folder=folder,
                       ACC_RENDEZVOUS_TOKEN_FILE=str(token)) for rank in ("0", "1")]
    url = line_with(launchers[0].stderr, r"watched at (https://\S+), with a token") + "/api/v1/jobs"
    tls = ssl._create_unverified_context()
    for words, status in (("", 401), ("Bearer " + token.read_text().strip(), 200)):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, headers={"Authorization": words}), context=tls, timeout=LIMIT) as answer:
                found = answer.status
        except urllib.error.HTTPError as error:
            found = error.code
        assert found == status, (words, found)
    (folder / "end").touch()
    for launcher in launchers:
        finish(launcher, 0)


def stop(folder, job, status):
    (folder / "end").touch()
    finish(job, status)


def daemon_job(folder):
    """Two machines at a daemon: the daemon's answers, its log, and what stays after the job."""
    daemon = start(DAEMON, "--port", "0", folder=folder)
    address = line_with(daemon.stdout, r"listening on (\S+)")
    client = Client(address)
    assert client.get("/api/v1/jobs", "jobs")["jobs"] == []
    client.get("/api/v1/jobs/a%20job", "error", status=404)
    launchers = [start(ACCLAUNCH, "torchrun", "--nnodes", "2", "--nproc_per_node", "2", "--rdzv_backend", "c10d",
                       "--rdzv_endpoint", address, "--rdzv_id", "a job", *worker_command(folder, "fails"), folder=folder)
                 for _ in range(2)]
    path = "/api/v1/jobs/a%20job"
    events = client.stream("/api/v1/events")
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    job = client.wait(path, "job", lambda each: each["num_reporting"] == 4)
    assert job["state"] == "running" and len(job["machines"]) == 2 and job["tokens_per_s"] == 400, job
    ranks = client.get(f"{path}/ranks", "ranks")["ranks"]
    assert [rank["machine_rank"] for rank in ranks] == [0, 0, 1, 1], ranks
    (folder / "end").touch()
    for launcher in launchers:
        finish(launcher, 3 if launcher is None else launcher.wait(LIMIT))
    job = client.wait(path, "job", lambda each: each["has_report"])
    assert job["state"] == "failed" and job["exit_status"] == 3 and "rank 1" in job["reason"], job
    report = client.get(f"{path}/report", "report")
    assert report["run_id"] == "a job" and len(report["workers"]) == 4, report
    rounds = client.get(f"{path}/rounds", "rounds")["rounds"]
    assert [(each["round"], each["end"]["cause"]) for each in rounds] == [(0, "worker")], rounds
    states = [rank["state"] for rank in client.get(f"{path}/ranks", "ranks")["ranks"]]
    assert states[1] == "failed", states
    check_page(client, "a%20job", 4, ["failed", "rank 1: exited with code 3"])
    kinds = []
    for kind, data in events:
        kinds += [data["kind"]] if kind == "event" else []
        if "report" in kinds:
            break
    assert kinds == ["created", "joined", "joined", "round_formed", "round_ended", "job_over", "report"], kinds
    daemon.send_signal(signal.SIGTERM)
    log = finish(daemon, 0)
    date = r"\d{4}-\d\d-\d\d job 'a job': "
    for text in [r"\S+ joined \(pid \d+, 2 workers\)", r"round 0 is formed: 2 machines, 4 workers, restart 0",
                 r"the job is over, exit status 3: .*rank 1"]:
        assert re.search(date + text, log), (text, log)


def elastic(folder):
    """A machine that is lost appears in the events, and the round that follows is shown."""
    daemon = start(DAEMON, "--port", "0", folder=folder)
    address = line_with(daemon.stdout, r"listening on (\S+)")
    client = Client(address)
    launchers = [start(ACCLAUNCH, "torchrun", "--nnodes", "1:2", "--nproc_per_node", "1", "--rdzv_backend", "c10d", "--max_restarts", "1",
                       "--rdzv_endpoint", address, "--rdzv_id", "e", "--rdzv_conf", "last_call_timeout=1",
                       *worker_command(folder, "ends"), folder=folder) for _ in range(2)]
    client.wait("/api/v1/jobs", "jobs", lambda answer: answer["jobs"])
    job = client.wait("/api/v1/jobs/e", "job", lambda each: each["num_reporting"] == 2)
    supervisor = max(job["machines"], key=lambda each: each["machine_rank"])["pid"]
    os.kill(supervisor, signal.SIGKILL)
    job = client.wait("/api/v1/jobs/e", "job", lambda each: each["world_size"] == 1 and each["num_reporting"] == 1)
    events = client.get("/api/v1/jobs/e/events", "events")["events"]
    assert any(each["kind"] == "lost" for each in events), events
    (folder / "end").touch()
    for launcher in launchers:
        launcher.communicate(timeout=LIMIT)
    job = client.wait("/api/v1/jobs/e", "job", lambda each: each["state"] == "finished")
    daemon.kill()
    daemon.communicate()


BROWSER = Browser(find_browser()) if find_browser() else None
try:
    with tempfile.TemporaryDirectory() as parent:
        for number, (case, *arguments) in enumerate(
                [(one_machine, "garbage"), (one_machine, "fails"), (daemon_job,), (elastic,), (training,), (hanging,), (restarting,), (bad_input,), (with_token,)]):
            folder = Path(parent) / str(number)
            folder.mkdir()
            case(folder, *arguments)
            print("ok:", case.__name__, *arguments, flush=True)
finally:
    if BROWSER:
        BROWSER.close()
