#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Unmodified torch programs in a job with a token: secure_store_test.py ACCLAUNCH DAEMON

Two machines meet at a daemon, through a proxy that records every byte; each worker reaches the store of its round
through the tunnel of its launcher. Then the same with a static rendezvous, and torch clients of the daemon's own store
behind `acc-rendezvous tunnel`."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "support"))
from daemon import Daemon
from failures import exit_with
from ports import reserved_port
from recording_proxy import RecordingProxy

ACCLAUNCH, DAEMON = sys.argv[1:3]
TOKEN = "token-of-the-test-0123456789abcdef"

WORKER = '''
import os
import torch, torch.distributed as dist
dist.init_process_group("gloo")
store = dist.distributed_c10d._get_default_store()
rank, size = dist.get_rank(), dist.get_world_size()
store.set(f"key of {rank}", "a value of a worker")
store.wait([f"key of {i}" for i in range(size)])
total = torch.ones(1) * (rank + 1)
dist.all_reduce(total)
dist.barrier()
leaked = [name for name in os.environ if name.startswith("ACC_RENDEZVOUS_TOKEN")]
print("result", rank, total.item(), os.environ["MASTER_ADDR"], os.environ["ACC_MAIN_ADDRESS"],
      os.environ["ACC_JOB_SECRET"], leaked, flush=True)
dist.destroy_process_group()
'''

STORE_CLIENT = '''
import datetime, sys, torch.distributed as dist
store = dist.TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False, timeout=datetime.timedelta(seconds=60))
store.set("key", "value")
print("result", store.get("key").decode(), store.add("count", 2), flush=True)
'''
failures = []


def check(condition, what):
    if not condition:
        failures.append(what)


def run_job(flags_by_machine, worker, token):
    environment = {**os.environ, "ACC_RENDEZVOUS_TOKEN_FILE": str(token), "PYTHON_EXEC": sys.executable}
    launchers = [subprocess.Popen(
        [ACCLAUNCH, "torchrun", *flags, "--nproc-per-node", "2", "--preload", "torch", str(worker)],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for flags in flags_by_machine]
    outputs = [launcher.communicate(timeout=900)[0] for launcher in launchers]
    for launcher, output in zip(launchers, outputs):
        check(launcher.returncode == 0, f"exit status {launcher.returncode}: {output}")
    results = [line.split("result ", 1)[1].split() for output in outputs for line in output.splitlines()
               if "result " in line]
    check(len(results) == 4, f"4 workers print a result, found {outputs}")
    secrets = set()
    for _, total, address, main_address, secret, leaked in results:
        secrets.add(secret)
        check(total == "10.0", f"the sum over all ranks, found {total}")
        check(address == "127.0.0.1" and main_address == "127.0.0.1", f"addresses {address} {main_address}")
        check(leaked == "[]", f"workers do not get the token: {leaked}")
    return secrets


def main():
    with tempfile.TemporaryDirectory() as folder:
        token = Path(folder) / "token"
        token.write_text(TOKEN + "\n")
        token.chmod(0o600)
        worker = Path(folder) / "worker.py"
        worker.write_text(WORKER)

        daemon = Daemon(DAEMON, "--token_file", str(token))
        proxy = RecordingProxy("127.0.0.1", daemon.port)
        elastic = ["--nnodes", "2", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{proxy.port}",
                   "--rdzv-id", "the-run-id"]
        secrets = run_job([elastic, elastic], worker, token)
        recorded = proxy.recorded()
        check(len(recorded) > 2000, f"the proxy has recorded the agents: {len(recorded)} bytes")
        for text in (TOKEN, "the-run-id", "worker.py", "key of", *secrets):
            check(text.encode() not in recorded, f"{text!r} travels in clear")

        tunnel = subprocess.Popen([DAEMON, "tunnel", f"127.0.0.1:{daemon.port}", "the-run-id"], text=True,
                                  stdout=subprocess.PIPE, env={**os.environ, "ACC_RENDEZVOUS_TOKEN_FILE": str(token)})
        port = tunnel.stdout.readline().rsplit(":", 1)[1].strip()
        client = subprocess.run([sys.executable, "-c", STORE_CLIENT, port], capture_output=True, text=True, timeout=900)
        check(client.stdout == "result value 2\n", f"torch's TCPStore through the tunnel: {client}")
        tunnel.terminate()
        check(tunnel.wait(120) == 0, "the tunnel ends at SIGTERM")
        daemon.stop()

        port = reserved_port()
        static = [["--nnodes", "2", "--node-rank", str(rank), "--master-addr", "127.0.0.1", "--master-port", str(port),
                   "--secure"] for rank in range(2)]
        run_job(static, worker, token)
    exit_with(failures)


main()
