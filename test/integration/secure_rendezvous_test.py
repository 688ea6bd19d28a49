#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A rendezvous with a token: secure_rendezvous_test.py BIN_FOLDER

Strangers cannot use it, nothing secret travels in clear, and mistakes are refused with one clear message."""
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from agent_bytes import HELLO, enter
from daemon import Daemon
from failures import exit_with
from own_network import enter_own_network
from recording_proxy import RecordingProxy
from store_bytes import QUEUE_LEN, NUM_KEYS, SET, VALIDATE, StoreClient, ping, request

DAEMON = Path(sys.argv[1]).resolve() / "acc-rendezvous"
NOBODY = 65534
OUTSIDE = "10.123.0.1"  # an address of this machine that is not loopback
TOKEN = "t" * 32
WRITE = VALIDATE + ping(1) + request(SET, b"stranger", b"value")
PROOF = b"\xa5acp\1\2\4\0job1" + b"n" * 32 + b"p" * 32
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


def token_file(folder, *tokens, name="token"):
    path = Path(folder) / name
    path.write_text("".join(token + "\n" for token in tokens))
    path.chmod(0o600)
    return path


def environment(**variables):
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def run(*words, **variables):
    return subprocess.run([DAEMON, *map(str, words)], capture_output=True, text=True, timeout=240,
                          env=environment(**variables))


def job_token(folder, token, run_id):
    return token_file(folder, run("job-token", run_id, ACC_RENDEZVOUS_TOKEN_FILE=token).stdout.strip(), name=run_id)


def http(target, token):
    """Two requests: after one that is refused for its token the second gets no answer, like one after the last."""
    header = f"Authorization: Bearer {token}\r\n" if token else ""
    first = f"GET {target} HTTP/1.1\r\n{header}"
    return (first + ("" if token == "x" * 32 else "Connection: close\r\n") + "\r\n" + first + "\r\n").encode()


class Tunnel:
    """`acc-rendezvous tunnel` to a port of this machine."""

    def __init__(self, port, run_id, token, host="127.0.0.1", **variables):
        self.process = subprocess.Popen(
            [DAEMON, "tunnel", f"{host}:{port}", run_id], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=environment(ACC_RENDEZVOUS_TOKEN_FILE=token, **variables))
        line = self.process.stdout.readline()
        assert line.startswith("listening on 127.0.0.1:"), line + self.process.stderr.read()
        self.port = int(line.rsplit(":", 1)[1])

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def error(self):
        """Returns the next line of standard error."""
        return self.process.stderr.readline()


def read_all(connection):
    content = b""
    try:
        while part := connection.recv(65536):
            content += part
    except (ConnectionResetError, ssl.SSLError):
        pass
    return content


def ask(port, content, host="127.0.0.1", tls=False):
    """Sends bytes of a stranger; returns the whole answer."""
    with socket.create_connection((host, port), timeout=240) as plain:
        if not tls:
            plain.sendall(content)
            return read_all(plain)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        with context.wrap_socket(plain) as connection:
            check(connection.version() == "TLSv1.3", "the server speaks TLS 1.3")
            connection.sendall(content)
            return read_all(connection)


def connected(port):
    """Unlike create_connection, this loads no module, which another user may not read."""
    client = socket.socket()
    client.settimeout(120)
    client.connect(("127.0.0.1", port))
    return client


def is_served_as(user, port):
    """True if a process of this user is answered by the store on a port."""
    child = os.fork()
    if child == 0:
        try:
            os.setuid(user)
            with connected(port) as client:
                client.sendall(VALIDATE + ping(1))
                os._exit(0 if len(client.recv(4)) == 4 else 1)
        except OSError:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write_and_leave(user, tunnel):
    """A process of this user has written a key and closed its connection before the tunnel looks at it."""
    tunnel.process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, tunnel.process.pid, os.WSTOPPED | os.WNOWAIT)
    child = os.fork()
    if child == 0:
        try:
            os.setuid(user)
            with connected(tunnel.port) as client:
                client.sendall(WRITE)
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    check(os.waitpid(child, 0)[1] == 0, f"user {user} cannot connect to the tunnel")
    # The kernel then shows the closed socket in state FIN_WAIT2, without its user.
    end = time.monotonic() + 240
    while f":{tunnel.port:04X} 05 " not in Path("/proc/net/tcp").read_text() and time.monotonic() < end:
        time.sleep(0.01)
    tunnel.process.send_signal(signal.SIGCONT)
    for _ in range(5):  # connections are served in order
        StoreClient(tunnel.port).close()


def start_fails(*flags, message, **variables):
    ended = run("--port", 0, *flags, **variables)
    lines = [line for line in ended.stderr.strip().splitlines() if "warning" not in line]
    check(ended.returncode == 2, f"{flags}: exit status {ended.returncode}, expected 2")
    check(len(lines) == 1 and message in lines[0], f"{flags}: expected one line with {message!r}, found {lines}")


def mistakes(folder):
    """Settings that are refused before the daemon serves."""
    token = token_file(folder, TOKEN)
    made, late = Path(folder) / "tls", Path(folder) / "late"
    check(run("init-tls", made, OUTSIDE).returncode == 0, "init-tls")
    check(run("init-tls", late, "--days", "-1").returncode == 0, "init-tls of expired certificates")
    again = run("init-tls", made)
    check(again.returncode == 2 and "exists already" in again.stderr, "init-tls replaces no file")
    start_fails("--host", OUTSIDE, message="Give --token_file FILE, or --insecure")
    start_fails("--token_file", Path(folder) / "none", message="none")
    short = token_file(folder, "short", name="short")
    start_fails("--token_file", short, message="short:1: expected a token of 32")
    start_fails(message="short:1: expected a token", ACC_RENDEZVOUS_TOKEN_FILE=short)
    start_fails("--tls_cert", late / "server.pem", "--tls_key", late / "server.key", message="has expired")
    start_fails("--tls_cert", made / "server.pem", message="belong together")
    start_fails("--tls_cert", made / "server.pem", "--tls_key", made / "ca.key", message="expected the private key")
    start_fails("--tls_cert", token, "--tls_key", made / "ca.key", message="expected a certificate in PEM format")
    start_fails("--tls_client_ca", made / "ca.pem", message="tls_client_ca needs")
    start_fails("--token_file", job_token(folder, token, "job1"), message="the token is for one job")
    check(Daemon(DAEMON, "--host", OUTSIDE, "--insecure").stop() == 0, "--insecure serves")
    return token, made


def strangers(folder, token):
    daemon = Daemon(DAEMON, "--host", OUTSIDE, "--token_file", token)
    proxy = RecordingProxy(OUTSIDE, daemon.port)
    large = os.urandom(3 << 20)
    with Tunnel(proxy.port, "job1", token) as tunnel:
        own = StoreClient(tunnel.port)
        own.set(b"the secret key", b"the secret value")
        check(own.get(b"the secret key") == b"the secret value", "a client behind the tunnel sets and gets keys")
        own.set(b"large", large)
        check(own.get(b"large") == large, "large values pass the tunnel")
        own.send(bytes([NUM_KEYS]))
        before = own.integer()

        check(ask(daemon.port, WRITE, OUTSIDE) == b"", "a plain store client is refused")
        check(ask(daemon.port, WRITE, OUTSIDE, tls=True) == b"", "a store client without a proof is refused")
        refusal = ask(daemon.port, HELLO + enter(), OUTSIDE)
        check(b"requires a token" in refusal, f"a plain agent is told the reason, found {refusal}")
        check(ask(daemon.port, HELLO + enter(), OUTSIDE, tls=True).find(b"requires a token") > 0, "the same by TLS")
        for target, token_sent, tls, status in (
                ("/", None, False, 401), ("/", TOKEN, False, 401), ("/healthz", None, False, 200), ("/", None, True, 401),
                ("/", "x" * 32, True, 401), ("/api/v1/jobs", TOKEN, True, 200), ("/readyz", None, True, 200)):
            answer = ask(daemon.port, http(target, token_sent), OUTSIDE, tls=tls)
            check(answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1") == 1,
                  f"HTTP {target}, token {token_sent}, TLS {tls}: expected {status}, found {answer}")
        check(ask(daemon.port, PROOF, OUTSIDE) == b"", "a proof without TLS is refused")
        answer = ask(daemon.port, PROOF + WRITE, OUTSIDE, tls=True)
        check(len(answer) == 34 and answer[0] == 0 and answer[-1] == 1, f"a wrong proof is refused, found {answer}")
        own.send(bytes([NUM_KEYS]))
        check(own.integer() == before, "strangers wrote no key")
        own.send(request(QUEUE_LEN, b"stranger"))
        check(own.integer() == 0, "and no queue")

        # Another user of this machine cannot use the tunnel.
        for user, works in ((NOBODY, False), (0, True)):
            check(is_served_as(user, tunnel.port) == works, f"user {user} at the tunnel")
        write_and_leave(NOBODY, tunnel)
        own.send(bytes([NUM_KEYS]))
        check(own.integer() == before, "a user that has left at once wrote a key through the tunnel")
        own.close()
    said = tunnel.process.stderr.read()
    check(said.count("closing a connection of another user") in (1, 2),  # at most one line per second
          f"the tunnel says that it closes connections of another user, found {said}")
    recorded = proxy.recorded()
    check(len(recorded) > len(large), "the proxy has recorded the connection")
    for secret in (b"secret key", b"secret value", TOKEN.encode(), b"job1", VALIDATE, large[:16]):
        check(secret not in recorded, f"{secret} travels in clear")

    # Wrong tokens and tokens of other jobs.
    other, for_job = token_file(folder, "x" * 32, name="other"), job_token(folder, token, "job1")
    with Tunnel(daemon.port, "job1", for_job, OUTSIDE) as tunnel:
        StoreClient(tunnel.port).close()
    for file, run_id in ((other, "job1"), (for_job, "job2")):
        with Tunnel(daemon.port, run_id, file, OUTSIDE) as tunnel:
            check(ask(tunnel.port, VALIDATE + ping(1)) == b"", "a client with a wrong token is disconnected")
            line = tunnel.error()
            check("the server refuses the token" in line, f"the tunnel says that the token is wrong, found {line!r}")

    # A new token: the old one is accepted as long as it is in the file.
    old = token_file(folder, TOKEN, name="old")
    for tokens, works in ((("n" * 32, TOKEN), True), (("n" * 32,), False)):
        token_file(folder, *tokens)
        daemon.process.send_signal(signal.SIGHUP)
        for _ in range(3):  # the daemon reads the signal between connections
            ask(daemon.port, b"?", OUTSIDE)
        with Tunnel(daemon.port, "job1", old, OUTSIDE) as tunnel:
            with socket.create_connection(("127.0.0.1", tunnel.port)) as client:
                client.sendall(VALIDATE + ping(1))
                answer = client.recv(4)
            check((len(answer) == 4) == works, f"the old token, with {len(tokens)} in the file: {answer}")
    daemon.stop()


def other_servers(folder, token, made):
    """Each side refuses with one message."""
    with socket.create_server(("127.0.0.1", 0)) as mute, Tunnel(mute.getsockname()[1], "job", token) as tunnel:
        with connected(tunnel.port) as client:
            held = mute.accept()  # and does not answer
            check(read_all(client) == b"", "a client of a server that does not answer is disconnected")
            line = tunnel.error()
            check("no answer to TLS or the proof of the token" in line, f"the tunnel says why, found {line!r}")
            held[0].close()
    ca = made / "ca.pem"
    run("init-tls", Path(folder) / "foreign")
    foreign = Path(folder) / "foreign" / "ca.pem"
    identity = ("--tls_cert", made / "server.pem", "--tls_key", made / "server.key")
    plain = Daemon(DAEMON, "--host", OUTSIDE, "--insecure")
    only_tls = Daemon(DAEMON, "--host", OUTSIDE, "--insecure", *identity)
    certified = Daemon(DAEMON, "--host", OUTSIDE, "--token_file", token, *identity)
    strict = Daemon(DAEMON, "--host", OUTSIDE, "--token_file", token, *identity, "--tls_client_ca", ca)
    own = {"ACC_RENDEZVOUS_CLIENT_CERT": made / "client.pem", "ACC_RENDEZVOUS_CLIENT_KEY": made / "client.key"}
    cases = [
        (plain, {}, "the server does not use TLS"),
        (only_tls, {}, "the server has no token"),
        (certified, {"ACC_RENDEZVOUS_CA_FILE": foreign}, "certificate of the other side is refused"),
        (strict, {}, "requires a client certificate"),
        (certified, {"ACC_RENDEZVOUS_CA_FILE": ca}, None),
        (strict, {"ACC_RENDEZVOUS_CA_FILE": ca, **own}, None),
    ]
    for daemon, variables, message in cases:
        with Tunnel(daemon.port, "job", token, OUTSIDE, **variables) as tunnel:
            if message is None:
                StoreClient(tunnel.port).close()
                continue
            check(ask(tunnel.port, VALIDATE + ping(1)) == b"", f"{message}: the client is disconnected")
            line = tunnel.error()
            check(message in line, f"expected {message!r}, found {line!r}")
    for daemon in (plain, only_tls, certified, strict):
        daemon.stop()


def launchers(folder, token):
    """What acclaunch says where it may not serve or join."""
    daemon = Daemon(DAEMON, "--host", OUTSIDE, "--token_file", token)
    other = token_file(folder, "x" * 32, name="other")
    cases = [
        (1, {}, (), "Set ACC_RENDEZVOUS_TOKEN_FILE to a file with a token on every machine, or give --insecure"),
        (daemon.port, {}, ("--insecure",), "this rendezvous requires a token"),
        (daemon.port, {"ACC_RENDEZVOUS_TOKEN_FILE": other}, (), "the server refuses the token"),
        (1, {}, ("--secure",), "--secure needs a token"),
        (1, {}, ("--secure", "--insecure"), "contradict each other"),
    ]
    for port, variables, flags, message in cases:
        words = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{OUTSIDE}:{port}", *flags]
        ended = subprocess.run([DAEMON.with_name("acclaunch"), *words, "--no-python", "true"], capture_output=True,
                               text=True, timeout=240, env=environment(**variables))
        check(ended.returncode == 2 and message in ended.stderr, f"expected {message!r} and status 2, found {ended}")
    daemon.stop()


class Launcher:
    """One machine of the job `train`. Its worker says `up` and waits until the gate opens."""

    def __init__(self, folder, name, port, token):
        self.gate = Path(folder) / f"gate {name}"
        os.mkfifo(self.gate)
        words = ["torchrun", "--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"{OUTSIDE}:{port}",
                 "--rdzv-id", "train", "--local-addr", OUTSIDE, "--no-python", "sh", "-c",
                 'echo up; exec cat "$GATE"']
        self.lines = Lines([DAEMON.with_name("acclaunch"), *words], ACC_RENDEZVOUS_TOKEN_FILE=token, GATE=self.gate)

    def open(self):
        self.gate.write_text("done\n")  # waits for the worker

    def end(self):
        return self.lines.process.wait(240)


class Lines:
    """A process whose output, also that to stderr, is read line by line."""

    def __init__(self, command, **variables):
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env=environment(**variables))
        self.seen = []

    def until(self, text):
        """Returns the lines up to the first that contains the text."""
        found = []
        for line in self.process.stdout:
            found.append(line)
            self.seen.append(line)
            if text in line:
                return "".join(found)
        raise AssertionError(f"expected {text!r}, found {''.join(self.seen)}")


def rotation(folder):
    """The token is rotated while a job runs: its launchers prove the new one to a daemon that has been killed."""
    token = token_file(folder, TOKEN, name="rotated")
    copy = token_file(folder, TOKEN, name="copy")  # of a machine that does not share the file

    def start(port):
        daemon = Lines([DAEMON, "--host", OUTSIDE, "--port", port, "--token_file", token, "--state_dir",
                        Path(folder) / "state"])
        return daemon, int(daemon.until("listening on").rsplit(":", 1)[1])

    def ctl(word):
        ended = run("ctl", f"{OUTSIDE}:{port}", word, ACC_RENDEZVOUS_TOKEN_FILE=token)
        check(ended.returncode == 0, f"ctl {word}: {ended.stderr}")
        return ended.stdout

    daemon, port = start(0)
    machines = [Launcher(folder, "first", port, token), Launcher(folder, "second", port, copy)]
    for machine in machines:
        machine.lines.until("up")
    check(run("rotate-token", token).returncode == 0, "rotate-token")
    # A daemon that has not read the new token yet still knows the second one of the file.
    check("train: in round" in ctl("list"), "an administrator before SIGHUP")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until("the settings are read again")
    new = token.read_text().splitlines()[0]
    token_file(folder, new, name="rotated")
    daemon.process.kill()
    daemon.process.wait()

    daemon, _ = start(port)
    machines[0].lines.until("connected to the rendezvous at")
    said = machines[1].lines.until("waiting for another token in the file")
    check("the server refuses the token" in said, f"the refusal has a name, found {said}")
    token_file(folder, new, name="copy")
    machines[1].lines.until("connected to the rendezvous at")
    check(ctl("list").count(" running") == 2, "both machines are in the round")
    check(f"peer {OUTSIDE}: " in ctl("dump") and ", 1 wrong proofs" in ctl("dump"), "the old token was proved once")
    for machine in machines:
        machine.open()
    check([machine.end() for machine in machines] == [0, 0], f"the job ends well, found {machines[0].lines.seen}")

    # A token that was removed a moment ago is refused, but is no guess.
    check(run("rotate-token", token).returncode == 0, "rotate-token")
    token_file(folder, token.read_text().splitlines()[0], name="rotated")
    daemon.process.send_signal(signal.SIGHUP)
    daemon.until("the settings are read again")
    refused = run("ctl", f"{OUTSIDE}:{port}", "list", ACC_RENDEZVOUS_TOKEN_FILE=copy)
    check(refused.returncode == 2 and "the server refuses the token" in refused.stderr, f"found {refused}")
    check(", 1 wrong proofs" in ctl("dump"), f"a former token does not count, found {ctl('dump')}")
    daemon.process.kill()
    daemon.process.wait()


def limits(token):
    daemon = Daemon(DAEMON, "--host", f"{OUTSIDE},127.0.0.1", "--insecure", "--max_connections", "20",
                    "--max_keys", "10")
    # Connections from outside this machine: half of them. A client on this machine gets one still.
    held = [socket.create_connection((OUTSIDE, daemon.port), timeout=240) for _ in range(10)]
    for connection in held:
        connection.sendall(VALIDATE + ping(1))
        assert len(connection.recv(4)) == 4
    with socket.create_connection((OUTSIDE, daemon.port), timeout=240) as late:
        check(read_all(late) == b"", "a peer beyond its part of the connections is closed")
    near = StoreClient(daemon.port)
    # Keys: half of them.
    for i in range(9):
        held[0].sendall(request(SET, b"key%d" % i, b"v"))
    check(read_all(held[0]) == b"", "a peer beyond its part of the keys is closed")
    near.set(b"near", b"v")
    check(near.get(b"near") == b"v", "another client still has room")
    for connection in held:
        connection.close()
    near.close()
    daemon.stop()

    guarded = Daemon(DAEMON, "--host", f"{OUTSIDE},127.0.0.1", "--token_file", token, "--max_failed_proofs", "3")
    for _ in range(2):
        check(ask(guarded.port, PROOF, OUTSIDE, tls=True)[-1:] == b"\1", "a wrong proof is answered")
    check(b" 401 " in ask(guarded.port, http("/", "x" * 32), OUTSIDE, tls=True), "and so is a wrong token by HTTP")
    with socket.create_connection((OUTSIDE, guarded.port), timeout=240) as late:
        check(read_all(late) == b"", "an address with many wrong proofs is shut out")
    ended = run("ctl", f"{OUTSIDE}:{guarded.port}", "list", ACC_RENDEZVOUS_TOKEN_FILE=token)
    check("accepts no connection of this address for up to a minute: too many wrong proofs" in ended.stderr,
          f"an administrator at such an address learns the reason, found {ended}")
    with Tunnel(guarded.port, "job", token) as tunnel:  # from 127.0.0.1
        StoreClient(tunnel.port).close()
    guarded.stop()


def main():
    if os.geteuid() != 0 or not enter_own_network():
        print("needs root and network namespaces")
        sys.exit(77)
    subprocess.run(["ip", "address", "add", OUTSIDE + "/32", "dev", "lo"], check=True)
    with tempfile.TemporaryDirectory() as folder:
        token, made = mistakes(folder)
        limits(token)
        rotation(folder)
        launchers(folder, token)
        other_servers(folder, token, made)
        strangers(folder, token)
    exit_with(failures)


main()
