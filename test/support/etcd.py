# SPDX-License-Identifier: Apache-2.0
"""A real etcd for tests. It does not flush to the disk, and elects its leader within a second."""
import json
import os
import shutil
import signal
import ssl
import subprocess
import time
import urllib.request

from ports import reserved_ports


def why_impossible():
    """Returns what is missing, or None."""
    return None if shutil.which("etcd") else "not installed: etcd (package etcd-server)"


def member_command(name, folder, host, client_port, peer_port, cluster, tls=None):
    """Command of one member. `cluster`: NAME=URL of all members, joined by commas. `tls`: folder of
    `acc-rendezvous init-tls`; the member then requires certificates of its clients."""
    scheme = "https" if tls else "http"
    certificates = ["--cert-file", tls / "server.pem", "--key-file", tls / "server.key", "--client-cert-auth",
                    "--trusted-ca-file", tls / "ca.pem"] if tls else []
    return ["etcd", "--name", name, "--data-dir", os.path.join(folder, name), "--initial-cluster", cluster,
            "--initial-cluster-state", "new", "--listen-peer-urls", f"http://{host}:{peer_port}",
            "--initial-advertise-peer-urls", f"http://{host}:{peer_port}",
            "--listen-client-urls", f"{scheme}://{host}:{client_port}",
            "--advertise-client-urls", f"{scheme}://{host}:{client_port}", "--heartbeat-interval", "100",
            "--election-timeout", "1000", "--unsafe-no-fsync", "--logger", "zap", "--log-level", "error", *certificates]


class Etcd:
    """Members on loopback. `address` is the value of --state. `tls`: see member_command."""

    def __init__(self, folder, members=3, tls=None):
        ports = reserved_ports(2 * members)
        self.ports = ports[:members]
        cluster = ",".join(f"m{i}=http://127.0.0.1:{ports[members + i]}" for i in range(members))
        self.members = [subprocess.Popen(
            member_command(f"m{i}", folder, "127.0.0.1", ports[i], ports[members + i], cluster, tls),
            stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for i in range(members)]
        self.tls = ssl.create_default_context(cafile=tls / "ca.pem") if tls else None
        if tls:
            self.tls.load_cert_chain(tls / "client.pem", tls / "client.key")
        self.address = ("etcds://" if tls else "etcd://") + ",".join(f"127.0.0.1:{port}" for port in self.ports)
        for port in self.ports:
            self.wait_for(port)

    def open(self, port, path, content=None, timeout=10):
        scheme = "https" if self.tls else "http"
        return urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}{path}", content, timeout=timeout, context=self.tls)

    def wait_for(self, port):
        deadline = time.monotonic() + 90
        while True:
            try:
                with self.open(port, "/health", timeout=1) as reply:
                    if json.load(reply).get("health") == "true":
                        return
            except OSError:
                pass
            assert time.monotonic() < deadline, f"etcd at port {port} does not answer"
            time.sleep(0.02)

    def post(self, path, request):
        """Tries again while the members have no leader. Use it for requests that may be made twice."""
        content = json.dumps(request).encode()
        deadline = time.monotonic() + 90
        while True:
            try:
                with self.open(self.ports[-1], path, content) as reply:
                    return json.load(reply)
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def close(self):
        for member in self.members:
            member.send_signal(signal.SIGCONT)
            member.kill()
            member.communicate()
