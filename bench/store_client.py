# SPDX-License-Identifier: Apache-2.0
"""acclaunch's store client compared with torch's, both with acclaunch's server: calls per second of one thread.

    bench/store_client.py [--python PYTHON] [--count 50000] [--batch 1000] [--rounds 5]

"pipelined" sends --batch requests together; torch's client has no such call. Values have 64 bytes. Results
are medians over interleaved rounds. A set gets no answer, so its result is the rate at which the server
reads requests.
"""
import os
import statistics
import subprocess
import sys

from launchers import json_lines
from names import BIN, Options

TORCH = """
import datetime, json, sys, time, torch.distributed as dist
port, count = map(int, sys.argv[1:])
store = dist.TCPStore("127.0.0.1", port, is_master=False)
value = "v" * 64
calls = {"set": lambda: store.set("k", value), "get": lambda: store.get("k"),
         "add": lambda: store.add("n", 1)}
figures = {}
for name, call in calls.items():
    start = time.perf_counter()
    for _ in range(count):
        call()
    figures[name] = count / (time.perf_counter() - start)
print(json.dumps(figures))
"""


def main():
    args = Options(__doc__, python=os.environ.get("ACC_PEERS_PYTHON"), count=50_000, batch=1_000, rounds=5).parse_args()
    server = subprocess.Popen([BIN / "acc-rendezvous", "--port", "0"], stdout=subprocess.PIPE,
                              text=True)
    port = server.stdout.readline().rsplit(":", 1)[1].strip()
    clients = {"acc": [BIN / "client_calls", port, str(args.count), str(args.batch)]}
    if args.python:
        clients["torch"] = [args.python, "-c", TORCH, port, str(args.count)]
    else:
        print("neither --python nor ACC_PEERS_PYTHON is given: no torch", file=sys.stderr)
    seen = {name: [] for name in clients}
    try:
        for _ in range(args.rounds):
            for name, command in clients.items():
                seen[name] += json_lines(command)
    finally:
        server.terminate()
        server.wait()
    median = {name: {call: statistics.median(run[call] for run in runs) for call in runs[0]}
              for name, runs in seen.items()}
    for call, ours in median["acc"].items():
        theirs = median.get("torch", {}).get(call.removeprefix("pipelined "))
        against = f"   torch {theirs:9,.0f}/s   {ours / theirs:5.1f} times" if theirs else ""
        print(f"{call:14} {ours:11,.0f}/s{against}")


if __name__ == "__main__":
    main()
