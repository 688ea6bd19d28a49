# SPDX-License-Identifier: Apache-2.0
import os
import subprocess
from pathlib import Path


class Daemon:
    """A running acc-rendezvous. Port 0: a free one."""

    def __init__(self, program, *flags, port=0):
        self.process = subprocess.Popen([program, "--port", str(port), *flags], stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert line.startswith("listening on "), line
        self.port = int(line.rsplit(":", 1)[1])

    def mib(self, field):
        """Memory in MiB. VmRSS: current; VmHWM: peak."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) / 1024

    def num_descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def stop(self, timeout=None):
        """Asks the daemon to end. Returns its exit status. timeout: in seconds."""
        self.process.terminate()
        return self.process.wait(timeout)
