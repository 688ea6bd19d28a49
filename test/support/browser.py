# SPDX-License-Identifier: Apache-2.0
"""A headless Chromium, controlled by the DevTools protocol over a pipe."""

import base64
import json
import os
import shutil
import subprocess
import tempfile
import time

DEADLINE = 240


def find_browser():
    """Returns the path of a Chromium, or None if none is installed."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory(prefix="acc-browser-", ignore_cleanup_errors=True)
        from_us, self.to = os.pipe()
        self.replies, to_us = os.pipe()

        def use_pipes():  # the browser reads requests from descriptor 3 and writes answers to 4
            high = [os.dup2(fd, fd + 50) for fd in (from_us, to_us)]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--no-first-run", "--disable-extensions", f"--user-data-dir={self.folder.name}", "--remote-debugging-pipe", "about:blank"],
            preexec_fn=use_pipes, close_fds=False, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True)
        os.close(from_us)
        os.close(to_us)
        self.number = 0
        self.rest = b""
        self.errors = []  # exceptions of the page's scripts, and its messages of level error
        target = self.call("Target.createTarget", {"url": "about:blank"}, None)["targetId"]
        self.session = self.call("Target.attachToTarget", {"targetId": target, "flatten": True}, None)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        os.close(self.to)
        os.killpg(self.process.pid, 9)
        self.process.wait()
        os.close(self.replies)
        self.folder.cleanup()

    def read(self):
        while b"\0" not in self.rest:
            data = os.read(self.replies, 1 << 16)
            if not data:
                raise RuntimeError("the browser has ended")
            self.rest += data
        text, _, self.rest = self.rest.partition(b"\0")
        return json.loads(text)

    def call(self, method, parameters=None, session=""):
        self.number += 1
        request = {"id": self.number, "method": method, "params": parameters or {}}
        if session is not None:
            request["sessionId"] = self.session
        os.write(self.to, json.dumps(request).encode() + b"\0")
        while True:
            message = self.read()
            if message.get("id") == self.number:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                return message["result"]
            if message.get("method") == "Runtime.exceptionThrown":
                self.errors.append(message["params"]["exceptionDetails"])
            elif message.get("method") == "Log.entryAdded" and message["params"]["entry"]["level"] == "error":
                self.errors.append(message["params"]["entry"])

    def open(self, url, width=1280, height=900, dark=False):
        self.call("Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500})
        self.call("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]})
        self.call("Page.navigate", {"url": "about:blank"})
        self.call("Page.navigate", {"url": url})

    def evaluate(self, script):
        result = self.call("Runtime.evaluate", {"expression": script, "returnByValue": True, "awaitPromise": True})
        if "exceptionDetails" in result:
            raise RuntimeError(f"{script}: {result['exceptionDetails']}")
        return result["result"].get("value")

    def await_true(self, script):
        deadline = time.monotonic() + DEADLINE
        # While a page loads, the script may fail because elements are missing.
        while not self.evaluate(f"(() => {{ try {{ return Boolean({script}); }} catch {{ return false; }} }})()"):
            if time.monotonic() > deadline:
                raise AssertionError(f"{script} is still false; the page shows:\n{self.text()}")
            time.sleep(0.05)

    def text(self):
        return self.evaluate("document.body.innerText")

    def press(self, key, code=None):
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", {"type": kind, "key": key, "code": code or key,
                                                 "windowsVirtualKeyCode": {"Tab": 9, "Enter": 13, "PageDown": 34, "End": 35}.get(key, 0),
                                                 **({"text": "\r"} if key == "Enter" and kind == "keyDown" else {})})

    def screenshot(self, path, whole=True):
        shot = self.call("Page.captureScreenshot", {"format": "png", "captureBeyondViewport": whole})
        with open(path, "wb") as file:
            file.write(base64.b64decode(shot["data"]))
