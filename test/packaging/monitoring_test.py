#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""packaging/monitoring/ against a secure daemon: the scrape configuration reads its metrics with the reader's token, and
every metric that an alert rule or the dashboard names exists.

    monitoring_test.py BIN_FOLDER FOLDER"""
import base64
import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

try:
    import yaml
except ImportError:
    print("needs PyYAML")
    sys.exit(77)

BIN, FOLDER = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DAEMON = str(BIN / "acc-rendezvous")
LIMIT = 240
OTHERS = {"up"}  # of Prometheus itself


def run(*words, **variables):
    return subprocess.run(words, capture_output=True, text=True, timeout=LIMIT,
                          env={"PATH": os.environ["PATH"], **{name: str(value) for name, value in variables.items()}})


def expressions():
    """Every expression of the rules and of the dashboard, with its place."""
    for group in yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["summary"], rule
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) and dashboard["schemaVersion"] >= 36, dashboard["title"]
    for panel in panels:
        place = panel["gridPos"]
        assert 0 <= place["x"] and place["x"] + place["w"] <= 24, panel["title"]
        for target in panel["targets"]:
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["name"], variable["query"]["query"] if variable["type"] == "query" else ""
    names = {variable["name"] for variable in dashboard["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", json.dumps(panels)))
    assert used <= names, used - names


def get(address, path, context, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(f"https://{address}{path}", headers=headers), timeout=LIMIT,
                                    context=context) as answer:
            return answer.status, answer.read().decode(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(), error.headers


def check_expressions(metrics):
    """The families are there without a job, too."""
    families = set(re.findall(r"^# TYPE (\S+) ", metrics, re.M))
    seen = set()
    for place, expression in expressions():
        names = set(re.findall(r"\b(acc_\w+|up)\b(?=[{\[ )]|$|,)", expression))
        assert names or not expression or expression == "prometheus", (place, expression)
        assert names <= families | OTHERS, (place, names - families)
        seen |= names
    assert len(seen) > 20, seen


def check_scrape(address, folder, token):
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert all((FOLDER / name).exists() for name in config["rule_files"])
    scrape = config["scrape_configs"][0]
    assert scrape["scheme"] == "https" and scrape["honor_labels"] is True, scrape
    # The files that the configuration names, as its comment makes them.
    made = {scrape["authorization"]["credentials_file"]: token, scrape["tls_config"]["ca_file"]: folder / "ca.pem"}
    context = ssl.create_default_context(cafile=made[scrape["tls_config"]["ca_file"]])
    reader = made[scrape["authorization"]["credentials_file"]].read_text().strip()
    status, metrics, _ = get(address, "/metrics", context, Authorization=f"Bearer {reader}")
    assert status == 200, (status, metrics)
    return context, reader, metrics


def check_page(address, context, reader):
    """A browser asks for a login, whose password is the token."""
    status, _, headers = get(address, "/", context)
    assert status == 401 and any(value.startswith("Basic ") for value in headers.get_all("WWW-Authenticate")), headers
    for user in ("", "anyone"):
        login = base64.b64encode(f"{user}:{reader}".encode()).decode()
        status, page, _ = get(address, "/", context, Authorization=f"Basic {login}")
        assert status == 200 and page.startswith("<!DOCTYPE html>"), (status, page)
        assert get(address, "/api/v1/jobs", context, Authorization=f"Basic {login}")[0] == 200
    for wrong in (f"{reader}x:", "x" * 71, "::", "", "\xff", "%%%"):  # of any length, also without padding
        login = base64.b64encode(wrong.encode()).decode().rstrip("=")
        assert get(address, "/", context, Authorization=f"Basic {login}")[0] == 401, wrong
    assert get(address, "/", context, Authorization="Basic !")[0] == 401


def check_top(address, folder, token, control):
    top = [str(BIN / "acclaunch"), "top", "--once", "--rdzv_endpoint"]
    for endpoint in (address, f"https://{address}", f"https://{address}/"):
        for file in (token, folder / "token"):
            done = run(*top, endpoint, ACC_RENDEZVOUS_TOKEN_FILE=file, ACC_RENDEZVOUS_CA_FILE=folder / "ca.pem")
            assert done.returncode == 0 and done.stdout.startswith("no job has joined"), (endpoint, done)
    done = run(*top, f"unix:{control}")
    assert done.returncode == 0 and done.stdout.startswith("no job has joined unix:"), done
    job = folder / "job"
    job.write_text(run(DAEMON, "job-token", "train", ACC_RENDEZVOUS_TOKEN_FILE=folder / "token").stdout)
    other = folder / "other"
    other.write_text("x" * 32 + "\n")
    for words, variables, said in (
            ([address], {}, "set ACC_RENDEZVOUS_TOKEN_FILE"),
            ([f"https://{address}"], {}, "https:// needs a token"),
            ([f"http://{address}"], {"ACC_RENDEZVOUS_TOKEN_FILE": token}, "the server requires a token"),
            ([address], {"ACC_RENDEZVOUS_TOKEN_FILE": other}, "the server refuses the token"),
            ([address], {"ACC_RENDEZVOUS_TOKEN_FILE": job}, "for one job only"),
            (["unix:"], {}, "--rdzv_endpoint: unix:"),
            (["https://"], {"ACC_RENDEZVOUS_TOKEN_FILE": token}, "expected HOST:PORT")):
        done = run(*top, *words, **variables)
        assert done.returncode == 2 and said in done.stderr, (words, done)
    # A reader's token permits nothing else.
    for words in (["ctl", address, "list"], ["job-token", "train"]):
        done = run(DAEMON, *words, ACC_RENDEZVOUS_TOKEN_FILE=token)
        assert done.returncode == 2 and "for readers only" in done.stderr, (words, done)
    done = run(DAEMON, "--port", "0", "--token_file", str(token))
    assert done.returncode == 2 and "the token is for readers" in done.stderr, done


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # The settings are those that init-tls prints.
        made = run(DAEMON, "init-tls", str(folder / "tls"))
        settings = dict(line.split("=", 1) for line in made.stdout.splitlines() if line.startswith("ACC_"))
        assert len(settings) == 3, made
        token = folder / "reader"
        token.write_text(run(DAEMON, "reader-token", ACC_RENDEZVOUS_TOKEN_FILE=folder / "tls/token").stdout)
        control = folder / "control"
        daemon = subprocess.Popen([DAEMON, "--host", f"127.0.0.1,unix:{control}", "--port", "0", "--max_failed_proofs", "1000",
                                   "--log_level", "error"],
                                  env={"PATH": os.environ["PATH"], **settings}, stdout=subprocess.PIPE, text=True)
        try:
            address = daemon.stdout.readline().split()[-1]
            context, reader, metrics = check_scrape(address, folder / "tls", token)
            check_expressions(metrics)
            check_page(address, context, reader)
            check_top(address, folder / "tls", token, control)
        finally:
            daemon.kill()
            daemon.wait()
    for words in (("check", "rules", "alerts.yml"), ("check", "config", "--syntax-only", "prometheus.yml")):
        if shutil.which("promtool"):
            done = subprocess.run(["promtool", *words], cwd=FOLDER, capture_output=True, text=True, timeout=LIMIT)
            assert done.returncode == 0, done
    print("scrape configuration, rules and dashboard fit the metrics of a secure daemon")


main()
