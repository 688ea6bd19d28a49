# SPDX-License-Identifier: Apache-2.0
"""A client of the HTTP API. Every answer must have the form of docs/api.schema.json."""
import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from json_schema import Schema

DOCS = Path(__file__).parents[2] / "docs"
SCHEMA = Schema(DOCS / "api.schema.json")
REPORT = Schema(DOCS / "report.schema.json")
LIMIT = 240  # seconds, of every wait


class Client:
    def __init__(self, address):
        self.address = address
        self.base = f"http://{address}"

    def get(self, path, kind=None, status=200, accept=None):
        """The answer: a text, or if a `kind` of the schema is given, its value."""
        request = urllib.request.Request(self.base + path, headers={"Accept": accept} if accept else {})
        try:
            with urllib.request.urlopen(request, timeout=LIMIT) as answer:
                found, body = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            found, body = error.code, error.read().decode()
        assert found == status, (path, found, body)
        if kind is None:
            return body
        value = json.loads(body)
        check(value, kind)
        return value

    def wait(self, path, kind, found):
        """The answer for which `found` is true."""
        end = time.monotonic() + LIMIT
        while True:
            value = self.get(path, kind)
            if found(value):
                return value
            assert time.monotonic() < end, (path, value)
            time.sleep(0.02)

    def stream(self, path):
        """Yields (event, data) of server-sent events."""
        request = urllib.request.Request(self.base + path, headers={"Accept": "text/event-stream"})
        with urllib.request.urlopen(request, timeout=LIMIT) as answer:
            assert answer.headers["Content-Type"] == "text/event-stream"
            fields = {}
            for line in answer:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "data" in fields:
                    data = json.loads(fields["data"])
                    check(data, fields["event"])
                    yield fields["event"], data
                    fields = {}


def check(value, kind):
    faults = REPORT.faults(value) if kind == "report" else SCHEMA.faults(value, {"$ref": f"#/$defs/{kind}"})
    assert faults == [], (kind, faults, value)


def promtool(metrics):
    if shutil.which("promtool"):
        ran = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True, text=True)
        assert ran.returncode == 0, (ran.stdout, ran.stderr)
