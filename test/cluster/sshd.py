# SPDX-License-Identifier: Apache-2.0
"""A real sshd on virtual hosts: `ssh NAME` works on each of them, as on a cluster with installed keys.

    with hosts.Cluster(["node0", "node1"]) as cluster:
        sshd.start(cluster)
        cluster["node0"].start(["ssh", "node1", "hostname"])

Keys and configurations are in the cluster's folder, `ssh/`, and are removed with it.
`ssh -F .../stranger_config` offers a key that no host accepts. /etc/ssh/ssh_config
of each host is replaced in its own mount namespace, and the start-up files of root's shell are empty
there, so that a remote shell is the same everywhere. Needs openssh-server and openssh-client.
"""
import os
import pathlib
import shutil
import subprocess

import hosts

TOOLS = ("sshd", "ssh", "ssh-keygen")

SSHD_CONFIG = """Port 22
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
UseDNS no
PrintMotd no
PrintLastLog no
PidFile none
MaxStartups 1000
"""

SSH_CONFIG = """Host *
  IdentityFile {folder}/{key}
  IdentitiesOnly yes
  GlobalKnownHostsFile {folder}/known_hosts
  UserKnownHostsFile /dev/null
  StrictHostKeyChecking yes
"""


def why_impossible():
    """Returns what this machine lacks for sshd on virtual hosts, or None."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    return f"not installed: {', '.join(missing)}" if missing else None


def folder_of(cluster):
    return cluster.folder / "ssh"


def _make_key(path):
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", path.name, "-f", path],
                   check=True, stdin=subprocess.DEVNULL)


def _write_files(cluster):
    folder = folder_of(cluster)
    if folder.exists():
        return folder
    folder.mkdir(mode=0o700)
    for key in ("host_key", "user_key", "stranger_key"):
        _make_key(folder / key)
    host_key = (folder / "host_key.pub").read_text()
    names = ",".join(name for host in cluster.hosts.values() for name in (host.name, host.address))
    (folder / "known_hosts").write_text(f"{names} {host_key}")
    (folder / "sshd_config").write_text(SSHD_CONFIG.format(folder=folder))
    for config, key in (("ssh_config", "user_key"), ("stranger_config", "stranger_key")):
        (folder / config).write_text(SSH_CONFIG.format(folder=folder, key=key))
    (folder / "empty").write_text("")
    return folder


def on(host, *command):
    """Runs a command on a host and waits for its end."""
    subprocess.run([*host.enter(), "--", *map(str, command)], check=True)


def _prepare(host, folder):
    """Creates the files in /run that sshd needs, and mounts the cluster's files over the machine's."""
    on(host, "mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    on(host, "mkdir", "-p", "/run/sshd")
    on(host, "mount", "--bind", folder / "ssh_config", "/etc/ssh/ssh_config")
    for name in (".bashrc", ".profile", ".bash_profile"):
        path = pathlib.Path.home() / name
        if path.exists():
            on(host, "mount", "--bind", folder / "empty", path)


def start(cluster, names=None):
    """Starts sshd on the given hosts, or on all. It listens when this returns."""
    folder = _write_files(cluster)
    sshd = shutil.which("sshd")
    for name in names or list(cluster.hosts):
        host = cluster[name]
        _prepare(host, folder)
        on(host, "env", "-i", f"PATH={os.environ['PATH']}", "LANG=C.UTF-8", sshd,
            "-f", folder / "sshd_config", "-E", folder / f"{name}.log")
    for name in names or list(cluster.hosts):
        _wait_until_it_listens(cluster[name])


def _wait_until_it_listens(host):
    listing = [*host.enter(), "--", "ss", "--no-header", "--listening", "--tcp", "sport", "=", "22"]
    hosts.wait_until(lambda: subprocess.run(listing, capture_output=True, text=True, check=True).stdout,
                     f"sshd on {host.name}")


def listeners(host):
    """Pids of the listening sshd. The processes of connections are its children."""
    return host.matching("sshd: " + str(shutil.which("sshd")))


def stop(host):
    """Kills the listening sshd. Existing connections continue."""
    for pid in listeners(host):
        os.kill(pid, 9)
