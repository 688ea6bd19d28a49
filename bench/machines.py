# SPDX-License-Identifier: Apache-2.0
"""train_gpt between virtual machines, compared with PyTorch's FSDP2 and DDP over Gloo: tokens/s.

    python bench/machines.py [--bin build/release/bin] [--peers ../shared/peers] [--python PYTHON]
                          [--hosts 2,4,8] [--ranks R] [--mbit 100,1000,0] [--dtype fp32|bf16]
                          [--case large|small] [--strategies full,grad_op,ddp] [--impls fsdp2,ddp]
                          [--rounds R] [--steps S] [--reduce_dtype fp32|bf16|fp16]

Virtual machines (test/cluster) train the GPT of a case of bench/train.py with R ranks each, one thread per
rank. A bridge of the kernel connects them, which takes less of the ranks' CPU time than the switch of the tests.
The network card of each machine sends and receives at M Mbit/s; 0: no limit. Every round
runs each implementation once, one after the other; speeds are medians over the rounds of each run's median
step. "exposed" is the time of a step in which the ranks of train_gpt wait for others, by the timelines of
`acclaunch --trace`: the mean over all ranks and steps, also those of the warm-up. "card" is the time that the
bytes of the strategy need at the card in fp32, by the formulas of bench/wire.py, "quantized" train_gpt with
quantized_gradients and, where weights are sharded, quantized_weights, "one host" the speed of the same number of
ranks on one machine. Needs root, tc, and the kernel's bridge and token bucket filter.
"""
import collections
import json
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

import train
import wire
from names import BIN, PEERS, PYTHON, Options, some_of
from wire import hosts

IMPLS = ("quantized", "fsdp2", "ddp", "one")
OURS = ("train_gpt", "quantized")


def train_gpt(args, case, cluster, names, impl, strategy, folder, port):
    """Returns the tokens/s of all ranks, and the exposed communication in ms per step."""
    metrics, traces = folder / "metrics.jsonl", folder / "traces"
    metrics.unlink(missing_ok=True)
    shutil.rmtree(traces, ignore_errors=True)
    world = len(names) * args.ranks
    command = train.train_gpt_command(args, case, world, strategy, args.dtype, folder, metrics)
    place = command.index(str(args.bin / "train_gpt"))
    environment = {"ACC_REDUCE_DTYPE": args.reduce_dtype} if args.reduce_dtype else {}
    if impl == "quantized":
        kinds = wire.quantized_kinds(train.CONFIGS[strategy])
        environment |= {f"ACC_QUANTIZED_{kind.upper()}": "true" for kind in kinds}
    running = [cluster[name].start(
        [*command[:place], "--num_machines", len(names), "--machine_rank", rank, "--trace", traces,
         "--main_process_ip", cluster[names[0]].address, "--main_process_port", port, *command[place:]],
        environment)
        for rank, name in enumerate(names)]
    for job in running:
        if job.wait(args.limit) != 0:
            raise job.failure(f"ended with {job.process.returncode}")
    summary = subprocess.run([args.bin / "acclaunch", "trace", "summary", traces, "--json"],
                             check=True, capture_output=True, text=True).stdout
    exposed = statistics.mean(rank["exposed_ms"] / rank["steps"] for rank in json.loads(summary))
    return train.median_rate(metrics), exposed


def torch_peer(args, case, cluster, names, impl, strategy, port):
    world = len(names) * args.ranks
    running = []
    for rank in range(world):
        host = cluster[names[rank // args.ranks]]
        environment = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % args.ranks,
                       "LOCAL_WORLD_SIZE": args.ranks, "MASTER_ADDR": cluster[names[0]].address,
                       "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": 1}
        running.append(host.start(
            [args.python, *train.peer_words(args, case, impl, strategy, args.dtype)],
            {key: str(value) for key, value in environment.items()}))
    for job in running:
        job.wait(args.limit)
    result = [line for line in running[0].text().splitlines() if line.startswith('{"impl"')]
    if not result:
        raise running[0].failure("printed no result")
    return json.loads(result[0])["tokens_per_s"]


def connect_by_bridge(cluster):
    """Replaces the switch between the hosts, a program, by a bridge of the kernel."""
    network = cluster.enter_network()
    subprocess.run([*network, "ip", "link", "add", "bridge0", "type", "bridge"], check=True)
    subprocess.run([*network, "ip", "link", "set", "bridge0", "up"], check=True)
    for host in cluster.hosts.values():
        cluster.switch(f"unplug {host.number}")
        subprocess.run([*network, "ip", "link", "set", f"v{host.number}", "master", "bridge0"], check=True)


def limit_cards(cluster, mbit):
    """Limits the bytes that each host sends and receives. 0: no limit."""
    for host in cluster.hosts.values():
        sent = [*host.enter_network(), "tc", "qdisc"], "eth0"
        received = [*cluster.enter_network(), "tc", "qdisc"], f"v{host.number}"
        for command, device in (sent, received):
            subprocess.run([*command, "delete", "dev", device, "root"], stderr=subprocess.DEVNULL)
            if mbit:
                subprocess.run([*command, "add", "dev", device, "root", "tbf", "rate", f"{mbit}mbit",
                                "burst", "256kb", "latency", "200ms"], check=True)


def card_seconds(case, config, count, mbit):
    """Time of a step's bytes at the network card of one machine, in fp32."""
    gathered, reduced = wire.FORMULAS[config](*wire.sizes(case))
    return (gathered + reduced) * 4 * 8 * (count - 1) / count / (mbit * 1e6)


def measure(args, case, cluster, count, mbit, folder, port):
    names = list(cluster.hosts)[:count]
    limit_cards(cluster, mbit)
    ours = [impl for impl in OURS if impl == "train_gpt" or impl in args.impls]
    runs = [(impl, strategy) for strategy in args.strategies for impl in ours]
    runs += [("fsdp2", strategy) for strategy in args.strategies
             if "fsdp2" in args.impls and strategy in train.PEERS["fsdp2"]]
    runs += [("ddp", "ddp")] * ("ddp" in args.impls) + [("one host", "full")] * ("one" in args.impls)
    speeds, exposed = collections.defaultdict(list), collections.defaultdict(list)
    for _ in range(args.rounds):
        for impl, strategy in runs:
            if impl in OURS:
                speed, waits = train_gpt(args, case, cluster, names, impl, strategy, folder, next(port))
                exposed[impl, strategy].append(waits)
            elif impl == "one host":
                alone = dict(case, workers=count * args.ranks)
                speed = train.run_train_gpt(args, alone, strategy, args.dtype, folder, False)[0]
            else:
                speed = torch_peer(args, case, cluster, names, impl, strategy, next(port))
            speeds[impl, strategy].append(speed)
    medians = {each: statistics.median(speeds[each]) for each in runs}
    tokens = count * args.ranks * case["micro_batch"] * case["seq_len"]
    limit = f"{mbit} Mbit/s" if mbit else "no limit"
    print(f"\n{count} machines x {args.ranks} ranks, {args.dtype}, {limit} at each network card")
    print(f"{'':<10} {'strategy':<8} {'tokens/s':>9} {'step':>9} {'exposed':>9} {'card':>9}   of "
          + ", of ".join(f"{impl} {strategy}" for impl, strategy in runs if impl not in OURS))
    for impl, strategy in runs:
        speed = medians[impl, strategy]
        card = (card_seconds(case, train.CONFIGS[strategy], count, mbit) * 1e3
                if mbit and impl == "train_gpt" else 0)
        waits = f"{statistics.median(exposed[impl, strategy]):6.0f} ms" if impl in OURS else ""
        ratios = ", ".join(f"{speed / medians[each]:.2f}" for each in runs if each[0] not in OURS)
        print(f"{impl:<10} {strategy:<8} {speed:9.0f} {tokens / speed * 1e3:6.0f} ms {waits:>9}"
              f" {card:6.0f} ms   {ratios}", flush=True)


def main():
    parser = Options(__doc__, bin=BIN, peers=PEERS, python=PYTHON, hosts=[2, 4, 8], ranks=1, mbit=[100, 1000, 0],
                     impls=list(IMPLS), rounds=3, steps=8)
    parser.add_argument("--dtype", choices=train.PRECISIONS, default="fp32")
    parser.add_argument("--case", choices=train.CASES, default="large")
    parser.add_argument("--strategies", default=["full", "grad_op", "ddp"], type=some_of(train.CONFIGS))
    parser.add_argument("--reduce_dtype", help="of train_gpt's gradients; default: that of the strategy")
    parser.add_argument("--limit", type=int, default=600, help="seconds for one run")
    args = parser.parse_args()
    if reason := hosts.why_impossible():
        sys.exit(reason)
    if shutil.which("tc") is None:
        sys.exit("not installed: tc (package iproute2)")
    case = train.CASES[args.case]
    names = [f"node{number}" for number in range(max(args.hosts))]
    with tempfile.TemporaryDirectory() as temporary, hosts.Cluster(names) as cluster:
        folder = pathlib.Path(temporary)
        train.write_random_tokens(folder / "tokens.bin", case["vocab"])
        connect_by_bridge(cluster)
        port = iter(range(29500, 29900))
        for count in args.hosts:
            for mbit in args.mbit:
                measure(args, case, cluster, count, mbit, folder, port)


if __name__ == "__main__":
    main()
