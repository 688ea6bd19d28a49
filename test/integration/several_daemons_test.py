#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two daemons with their state in a real etcd, of which one leads: several_daemons_test.py BIN

BIN holds acc-rendezvous and acclaunch. Exits with 77 without etcd."""
import base64
import contextlib
import http.server
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
import etcd
from agent_bytes import HELLO, enter, frame, i32, text
from own_network import enter_own_network
from ports import reserved_port, reserved_ports
from store_bytes import ADD, APPEND, GET, QUEUE_LEN, QUEUE_PUSH, SET, StoreClient, request

BIN = Path(sys.argv[1])
DEADLINE = 240  # of an event; a busy machine elects slowly
LEASE = "4s"  # a leader that a busy machine stops for longer loses the leadership


def wait_until(condition, what):
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end, f"timeout while waiting for {what()}"
        time.sleep(0.02)


class Program:
    """A program whose output is read continuously."""

    def __init__(self, *command, **variables):
        self.lines, self.command = [], command
        self.process = subprocess.Popen(list(map(str, command)), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True, env=with_variables(variables))
        self.reader = threading.Thread(target=lambda: self.lines.extend(iter(self.process.stdout.readline, "")))
        self.reader.start()

    def count(self, text):
        return sum(text in line for line in list(self.lines))

    def wait_for(self, text, count=1):
        wait_until(lambda: self.count(text) >= count,
                   lambda: f"'{text}', {count} times, of {self.command}:\n{''.join(self.lines)}")

    def signal(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.send_signal(signal.SIGCONT)
        self.process.kill()
        self.process.wait()
        self.reader.join()

    def wait(self):
        self.process.wait(DEADLINE)
        self.reader.join()
        return self.process.returncode


class Daemon(Program):
    def __init__(self, state, port, *flags, **variables):
        self.port = port
        super().__init__(BIN / "acc-rendezvous", "--port", port, "--state", state, "--lease", LEASE, *flags, **variables)
        self.wait_for("listening on")

    def leads(self):
        return self.count("leading: ") > self.count("does not lead any more")


class Site:
    """Two daemons with keys of their own in an etcd."""

    def __init__(self, members, prefix):
        self.etcd = members
        self.state = f"{self.etcd.address}/{prefix}"
        self.ports = reserved_ports(2)
        self.daemons = [Daemon(self.state, port) for port in self.ports]

    def leader(self):
        wait_until(lambda: any(each.leads() for each in self.daemons),
                   lambda: "a leader:\n" + "\n".join("".join(each.lines) for each in self.daemons))
        return next(each for each in self.daemons if each.leads())

    def restart(self, daemon):
        place = self.daemons.index(daemon)
        self.daemons[place] = Daemon(self.state, daemon.port)
        return self.daemons[place]

    def close(self):
        for each in self.daemons:
            each.kill()


def with_variables(variables):
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def value(client, key):
    client.send(request(GET, key))
    return client.read(int.from_bytes(client.read(8), "little"))


def number(client, content):
    client.send(content)
    return int.from_bytes(client.read(8), "little")


def asked_again(ask, what):
    """Returns the result of `ask`. Asks again if a daemon begins or ceases to lead meanwhile, which ends all connections."""
    answers = []

    def is_answered():
        with contextlib.suppress(ConnectionError):
            answers.append(ask())
        return answers

    wait_until(is_answered, lambda: what)
    return answers[0]


def count_at_leader(site):
    """Returns the value of /count from the daemon that leads."""
    return asked_again(lambda: number(StoreClient(site.leader().port), request(ADD, b"/count", number=0)),
                       "a leader that serves")


def count_up(site, expected):
    """Adds one to /count. A leader that loses its lease before it answers may have done so or not."""
    while True:
        try:
            assert number(StoreClient(site.leader().port), request(ADD, b"/count", number=1)) == expected
            return
        except ConnectionError:
            count = count_at_leader(site)
            assert count in (expected - 1, expected), f"expected {expected} or one less, got {count}"
            if count == expected:
                return


def keys_outlive_the_leader(site):
    """Nothing that was acknowledged is lost when the leader is killed, suspended or stopped, or a member is."""
    large = os.urandom(3 << 20)  # several values of etcd
    client = StoreClient(site.leader().port)
    client.send(request(SET, b"/large", large))
    client.send(request(QUEUE_PUSH, b"/queue", b"first"))
    client.ping()
    expected = 0
    for turn, end in enumerate(("kill", "suspend", "member", "stop")):
        for _ in range(20):
            expected += 1
            count_up(site, expected)
        if end == "member":
            site.etcd.members[0].kill()
            site.etcd.members[0].wait()
            assert count_at_leader(site) == expected, "a member is lost"
            continue
        leader = site.leader()
        client = StoreClient(leader.port)
        if end == "suspend":
            leader.signal(signal.SIGSTOP)
            client.send(request(ADD, b"/count", number=1))  # must not be acknowledged after the resumption
        else:
            leader.signal(signal.SIGKILL if end == "kill" else signal.SIGTERM)
        other = next(each for each in site.daemons if each is not leader)
        other.wait_for("leading: ", count=other.count("leading: ") + (0 if other.leads() else 1))
        if end == "suspend":
            leader.signal(signal.SIGCONT)
            leader.wait_for("does not lead any more")
            try:
                assert client.socket.recv(1) == b"", "a suspended leader acknowledges a change"
            except ConnectionError:
                pass
        else:
            leader.wait()
            site.restart(leader).wait_for("standing by: ")
        assert count_at_leader(site) == expected, f"turn {turn}: {end}"
        client = StoreClient(site.leader().port)
        assert value(client, b"/large") == large
        assert number(client, request(QUEUE_LEN, b"/queue")) == 1
    standby = next(each for each in site.daemons if not each.leads())
    try:
        StoreClient(standby.port)
        raise AssertionError("a daemon that stands by serves a client")
    except ConnectionError:
        pass


def the_lease_runs_out_at_all_daemons(site):
    """While nobody renews a lease, all run out. A leader afterwards has one, too: it can be replaced."""
    site.leader()
    prefix = site.state.rsplit("/", 1)[1].encode()

    def keys(first, end):
        return site.etcd.post("/v3/kv/range", {"key": base64.b64encode(prefix + first).decode(),
                                               "range_end": base64.b64encode(prefix + end).decode()}).get("kvs", [])

    wait_until(lambda: len(keys(b"/servers/", b"/servers0")) == 2, lambda: "two registered daemons")
    for each in site.daemons:
        each.signal(signal.SIGSTOP)
    wait_until(lambda: not keys(b"/leader", b"/leader0") and not keys(b"/servers/", b"/servers0"), lambda: "the end of the leases")
    for each in site.daemons:
        each.signal(signal.SIGCONT)
    wait_until(lambda: keys(b"/leader", b"/leader0"), lambda: "a leader")
    assert int(keys(b"/leader", b"/leader0")[0].get("lease", 0)) != 0, "the key of the leader has no lease"


def the_log_stays_short(site):
    """The log in etcd is rewritten, and what it was is deleted."""
    client = StoreClient(site.leader().port)
    for turn in range(24):
        client.send(request(SET, b"/key", bytes([turn]) * (1 << 20)))
    client.ping()
    prefix = base64.b64encode(site.state.rsplit("/", 1)[1].encode() + b"/log/").decode()
    end = base64.b64encode(site.state.rsplit("/", 1)[1].encode() + b"/log0").decode()

    def count():
        return int(site.etcd.post("/v3/kv/range", {"key": prefix, "range_end": end, "count_only": True}).get("count", 0))

    wait_until(lambda: 0 < count() < 10, lambda: f"a short log, it has {count()} chunks")
    leader = site.leader()
    leader.kill()
    site.restart(leader)
    assert value(StoreClient(site.leader().port), b"/key") == bytes([23]) * (1 << 20)


class LosesReplies(http.server.BaseHTTPRequestHandler):
    """A proxy of etcd that loses the reply to every eighth transaction."""
    protocol_version = "HTTP/1.1"
    members = None
    transactions = []

    def do_POST(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            with self.members.open(self.members.ports[-1], self.path, content) as reply:
                status, said = reply.status, reply.read()
        except urllib.error.HTTPError as error:
            status, said = error.code, error.read()
        if self.path == "/v3/kv/txn":
            self.transactions.append(content)
            if len(self.transactions) % 8 == 0:
                self.close_connection = True
                return
        self.send_response(status)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def log_message(self, *_):
        pass


def late_requests_change_nothing(site):
    """A request whose reply was lost is made once, even if etcd receives it again later."""
    LosesReplies.members = site.etcd
    state = "127.0.0.1:{}/late_requests"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), LosesReplies) as proxy:
        threading.Thread(target=proxy.serve_forever).start()
        daemon = Daemon("etcd://" + state.format(proxy.server_port), reserved_port())
        try:
            daemon.wait_for("leading: ")
            client = StoreClient(daemon.port)
            for turn in range(16):  # the log is rewritten
                client.send(request(SET, b"/key", bytes([turn]) * (1 << 20)))
                assert number(client, request(ADD, b"/count", number=1)) == turn + 1
            for content in LosesReplies.transactions[: len(LosesReplies.transactions) // 2]:
                site.etcd.post("/v3/kv/txn", json.loads(content))
        finally:
            daemon.kill()
            proxy.shutdown()
    daemon = Daemon("etcd://" + state.format(site.etcd.ports[-1]), daemon.port)
    try:
        daemon.wait_for("leading: ")
        client = StoreClient(daemon.port)
        assert value(client, b"/key") == bytes([15]) * (1 << 20)
        assert number(client, request(ADD, b"/count", number=0)) == 16
    finally:
        daemon.kill()


def watchers_follow_the_leader(site):
    """A daemon that stands by shows no jobs; one that leads again shows those of the log."""
    def get(daemon, path):
        def ask():
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{daemon.port}{path}", timeout=DEADLINE) as answer:
                    return answer.status, answer.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, error.read().decode()
            except urllib.error.URLError as error:
                raise error.reason  # ConnectionRefusedError, as of sockets

        return asked_again(ask, f"an answer to {path}")

    def jobs(daemon):
        return [each["id"] for each in json.loads(get(daemon, "/api/v1/jobs")[1])["jobs"]]

    def expect(daemon, ready, expected):
        wait_until(lambda: get(daemon, "/readyz") == ready and jobs(daemon) == expected,
                   lambda: f"{ready} with jobs {expected}, got {get(daemon, '/readyz')} with {jobs(daemon)}:\n{''.join(daemon.lines)}")

    first = site.leader()
    other = next(each for each in site.daemons if each is not first)
    with socket.create_connection(("127.0.0.1", first.port)) as agent:
        agent.sendall(HELLO + enter(run_id="watched", machines=(1, 1), heartbeat=600_000))
        expect(first, (200, "ready\n"), ["watched"])
        first.signal(signal.SIGSTOP)
        other.wait_for("leading: ", other.count("leading: ") + (0 if other.leads() else 1))
        first.signal(signal.SIGCONT)
        first.wait_for("does not lead any more")
    expect(first, (503, "standing by\n"), [])
    expect(other, (200, "ready\n"), ["watched"])
    other.signal(signal.SIGTERM)
    other.wait()
    expect(first, (200, "ready\n"), ["watched"])


def workers_do_not_notice(site):
    """A job whose agents know both daemons, and one that finds them in etcd."""
    with tempfile.TemporaryDirectory() as folder:
        finish = Path(folder) / "finish"
        script = f"echo start $RANK/$WORLD_SIZE; while [ ! -e {finish} ]; do sleep 0.05; done; echo done $RANK"
        both = ",".join(f"127.0.0.1:{port}" for port in site.ports)
        ways = {"known": ["--rdzv-backend", "c10d", "--rdzv-endpoint", both],
                "etcd": ["--rdzv-backend", "etcd-v2", "--rdzv-endpoint", site.state.removeprefix("etcd://")]}
        with contextlib.ExitStack() as running:
            machines = []
            for way, flags in ways.items():
                for _ in range(2):
                    machines.append(Program(
                        BIN / "acclaunch", "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", way, *flags,
                        "--rdzv-conf", "heartbeat_timeout=4", "--no-python", "sh", "-c", script))
                    running.callback(machines[-1].kill)
            for each in machines:
                each.wait_for("/2")
            for number_of_loss in (1, 2):
                leader = site.leader()
                leader.kill()
                site.restart(leader)
                for each in machines:
                    each.wait_for(" again", 2 * number_of_loss)  # "connecting again", "connected … again"
            finish.touch()
            for each in machines:
                assert each.wait() == 0, "".join(each.lines)
                assert each.count("start ") == 1 and each.count("done ") == 1, "".join(each.lines)


def a_silent_daemon_is_left(_):
    """An agent whose daemon is silent, but accepts connections as a suspended one does, begins at the other one."""
    welcome = frame(0, struct.pack("<2q", 200, 1_000), b"\1", struct.pack("<q", 0))
    formed = frame(3, i32(0, 0, 0), struct.pack("<Iii", 1, 2, 1), text("127.0.0.1"), struct.pack("<H", 1), text("0" * 32),
                   i32(0, 2, 0))
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as other:
        both = ",".join(f"127.0.0.1:{each.getsockname()[1]}" for each in (silent, other))
        machine = Program(BIN / "acclaunch", "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-backend", "c10d",
                          "--rdzv-endpoint", both, "--no-python", "sh", "-c", "echo start; sleep 1000")
        try:
            with silent.accept()[0] as agent:
                agent.sendall(welcome + formed)
                machine.wait_for("start")
                machine.wait_for("the workers go on")
                assert other in select.select([silent, other], [], [], DEADLINE)[0], "".join(machine.lines)
        finally:
            machine.kill()


def what_is_refused(site):
    def refused(*flags):
        result = subprocess.run([BIN / "acc-rendezvous", "--port", "0", *flags], capture_output=True, text=True, timeout=DEADLINE)
        assert result.returncode == 2, result
        return result.stderr

    assert "expected etcd://" in refused("--state", "http://host")
    assert "names and passwords" in refused("--state", "etcd://user@host")
    assert "cannot be used with state_dir" in refused("--state", site.state, "--state_dir", "/tmp/x")
    assert '"host:x": expected a port' in refused("--state", "etcd://host:x")
    site.etcd.post("/v3/kv/put", {"key": base64.b64encode(b"newer/version").decode(),
                                  "value": base64.b64encode(b"4").decode()})
    said = refused("--state", f"{site.etcd.address}/newer")
    assert "newer/ in etcd have version 4, expected 3" in said, said
    site.leader()
    with tempfile.TemporaryDirectory() as folder:
        where = f"unix:{folder}/control"
        third = Daemon(site.state, reserved_port(), "--host", f"127.0.0.1,{where}")
        try:
            third.wait_for("standing by: ")
            said = subprocess.run([BIN / "acc-rendezvous", "ctl", where, "list"], capture_output=True, text=True, timeout=DEADLINE)
            assert said.returncode != 0 and "this daemon stands by: ask 127.0.0.1:" in said.stderr, said
        finally:
            third.kill()
    said = subprocess.run([BIN / "acclaunch", "torchrun", "--nnodes", "2", "--rdzv-backend", "etcd", "x.py"],
                          capture_output=True, text=True)
    assert said.returncode == 2 and "etcd needs --rdzv-endpoint" in said.stderr, said


def certificates(site):
    """An etcd that requires certificates. What one daemon was told, the other one knows when it leads."""
    with tempfile.TemporaryDirectory() as folder:
        own, foreign = Path(folder) / "own", Path(folder) / "foreign"
        for made in (own, foreign):
            subprocess.run([BIN / "acc-rendezvous", "init-tls", made], check=True, stdout=subprocess.DEVNULL)
        with contextlib.closing(etcd.Etcd(folder, members=1, tls=own)) as members:
            with_certificates(site, members, own, foreign, folder)


def with_certificates(site, members, own, foreign, folder):
    def variables(ca, identity):
        return {"ETCDCTL_CACERT": ca, **({"ETCDCTL_CERT": identity / "client.pem",
                                         "ETCDCTL_KEY": identity / "client.key"} if identity else {})}

    plain = "etcd://" + members.address.removeprefix("etcds://")
    for state, given, flags, message in (
            (members.address, variables(foreign / "ca.pem", own), [], "certificate of the other side is refused"),
            (members.address, {"ETCDCTL_CERT": own / "client.pem", "ETCDCTL_KEY": own / "client.key"}, [],
             "certificate of the other side is refused"),
            (members.address, variables(own / "ca.pem", None), [], "it requires a client certificate (ETCDCTL_CERT"),
            (members.address, variables(own / "ca.pem", foreign), [], "the other side refuses this side's certificate"),
            (members.address, variables(own / "none.pem", own), [], "none.pem: cannot open the file"),
            (members.address, variables(own / "ca.pem", None), ["--etcd_cert", own / "client.pem"], "belong together"),
            (members.address, {}, ["--etcd_cacert", own / "client.key"], "client.key: expected certificates"),
            (plain, {}, [], "it requires TLS: use etcds:// instead of etcd://"),
            (plain, {}, ["--etcd_key", own / "client.key"], "--etcd_key: etcd_key needs state etcds://"),
            (site.etcd.address.replace("etcd:", "etcds:"), variables(own / "ca.pem", own), [],
             "it does not use TLS: use etcd:// instead of etcds://")):
        said = subprocess.run(list(map(str, [BIN / "acc-rendezvous", "--port", 0, "--state", state, *flags])),
                              capture_output=True, text=True, timeout=DEADLINE, env=with_variables(given))
        assert said.returncode == 2 and message in said.stderr, (message, said)

    def control(name, command, status=0):
        said = subprocess.run([BIN / "acc-rendezvous", "ctl", f"unix:{folder}/{name}", command], capture_output=True, text=True,
                              timeout=DEADLINE)
        assert said.returncode == status, said
        return said.stdout

    def join(conf):
        """A job that finds the daemons in etcd."""
        return Program(BIN / "acclaunch", "torchrun", "--nnodes", "1:2", "--nproc-per-node", 1, "--rdzv-backend", "etcd",
                       "--rdzv-endpoint", members.address.removeprefix("etcds://"), "--rdzv-id", "job", "--rdzv-conf",
                       f"last_call_timeout=1,{conf}", "--no-python", "sh", "-c", "echo works")

    ports = reserved_ports(2)
    hosts = [f"127.0.0.1,unix:{folder}/{name}" for name in "ab"]
    first = Daemon(members.address, ports[0], "--host", hosts[0], "--etcd_cacert", own / "ca.pem", "--etcd_cert",
                   own / "client.pem", "--etcd_key", own / "client.key")
    second = None
    try:
        first.wait_for("leading: ")
        second = Daemon(members.address, ports[1], "--host", hosts[1], **variables(own / "ca.pem", own))
        second.wait_for("standing by: ")
        large = os.urandom(3 << 20)  # many records of TLS
        client = StoreClient(first.port)
        client.send(request(SET, b"/large", large))
        assert value(client, b"/large") == large
        control("a", "drain")
        first.kill()
        second.wait_for("leading: ")
        assert value(StoreClient(second.port), b"/large") == large
        assert "draining true" in control("b", "dump")
        files = f"cert={own}/client.pem,key={own}/client.key"
        for conf, status, message in (
                (f"protocol=https,cacert={own}/ca.pem,{files}", 2, "its administrator drains it"),
                (f"protocol=https,cacert={foreign}/ca.pem,{files}", 2, "certificate of the other side is refused"),
                ("protocol=http", 2, "it requires TLS: use etcds://")):
            machine = join(conf)
            assert machine.wait() == status and machine.count(message), (message, machine.lines)
        control("b", "resume")
        machine = join(f"protocol=https,ca_cert={own}/ca.pem,ssl_cert={own}/client.pem,ssl_cert_key={own}/client.key")
        assert machine.wait() == 0 and machine.count("works"), machine.lines
    finally:
        first.kill()
        if second:
            second.kill()


def main():
    why = etcd.why_impossible()
    if why:
        print(f"skipped: {why}")
        return 77
    wanted = sys.argv[2:]
    with tempfile.TemporaryDirectory() as folder, contextlib.closing(etcd.Etcd(folder)) as members:
        for case in (what_is_refused, a_silent_daemon_is_left, keys_outlive_the_leader, the_lease_runs_out_at_all_daemons,
                     the_log_stays_short, late_requests_change_nothing, watchers_follow_the_leader, workers_do_not_notice, certificates):
            if wanted and case.__name__ not in wanted:
                continue
            begin = time.monotonic()
            with contextlib.closing(Site(members, case.__name__)) as site:
                case(site)
            print(f"{case.__name__}: {time.monotonic() - begin:.1f} s", flush=True)
    return 0


if __name__ == "__main__":
    enter_own_network()
    sys.exit(main())
