# SPDX-License-Identifier: Apache-2.0
"""acclaunch doctor on virtual hosts: one slow link, one blocked port, and hosts that cannot connect.

    python cluster_doctor_test.py BIN      BIN holds acclaunch and acc_doctor

Exits with 77 if this machine cannot create virtual hosts.
"""
import json
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "cluster"), str(ROOT / "test" / "support")]
import hosts  # noqa: E402
import json_schema  # noqa: E402
from hosts import check  # noqa: E402

SKIPPED = 77
PORT = 29500
NODES = ["node0", "node1", "node2", "node3"]
SLOW, BLOCKED = ("node0", "node2"), ("node3", "node1")  # SLOW: a link; BLOCKED: from node3 to node1 only
# So slow that the links, not the CPUs of a busy machine, determine what is measured.
SOUND_KILOBITS, SLOW_KILOBITS, DELAY_MS = 12_000, 1_200, 2
ANY_PORT = range(1024, 65536)
BETWEEN_MACHINES = {"port_blocked", "no_reply", "no_route", "wrong_machine", "collective_failed", "slow_pair",
                    "slow_machine", "clock_skew", "name_unknown", "name_loopback", "name_elsewhere",
                    "names_differ", "no_facts", "loopback_address", "same_name", "same_machine", "mtu",
                    "interface_speed", "acclaunch_versions"}


def start(cluster, programs, folder, names, num_machines, conf="heartbeat_timeout=600"):  # no machine is lost
    return [cluster[name].start(
        [programs / "acclaunch", "doctor", "--cpu", "--num_machines", str(num_machines), "--machine_rank",
         str(NODES.index(name)), "--main_process_ip", NODES[0], "--main_process_port", str(PORT),
         "--output", folder / "doctor.json", "--rdzv_conf", conf]) for name in names]


def examined(cluster, programs, folder, status):
    output = folder / "doctor.json"
    output.unlink(missing_ok=True)
    launchers = start(cluster, programs, folder, NODES, len(NODES))
    for launcher in launchers:
        launcher.expect_status(status)
    check(output.exists(), "no report:\n" + "\n".join(launcher.text() for launcher in launchers))
    report = json.loads(output.read_text())
    faults = json_schema.Schema(ROOT / "docs" / "doctor.schema.json", knows_all=True).faults(report)
    check(not faults, "doctor.json is not as its schema says:\n" + "\n".join(faults))
    print(launchers[0].text(), flush=True)
    return report


def found_between(report):
    return [each for each in report["findings"] if each["kind"] in BETWEEN_MACHINES]


def numbers(names):
    return sorted(NODES.index(name) for name in names)


def check_names(report):
    for number, machine in enumerate(report["machines"]):
        check(machine["host"] == NODES[number], machine)
        check(machine["address"] == f"10.77.0.{number + 1}", machine)
    for pair in report["pairs"]:
        check(pair["name_resolves_to"] == [f"10.77.0.{pair['to'] + 1}"], pair)
        check(pair["round_trip_us"] is not None or (pair["from"], pair["to"]) == blocked_pair(), pair)


def blocked_pair():
    return tuple(NODES.index(name) for name in BLOCKED)


def sound(cluster, programs, folder):
    report = examined(cluster, programs, folder, 0)
    check(found_between(report) == [], "a sound network is not found to be so")
    check(len(report["pairs"]) == len(NODES) * (len(NODES) - 1), report["pairs"])
    check_names(report)
    for pair in report["pairs"]:
        check(pair["bandwidth_gbps"] > 0 and pair["latency_us"] > 0, pair)


def slow_and_blocked(cluster, programs, folder):
    cluster.rate(*SLOW, SLOW_KILOBITS)
    cluster.block(*BLOCKED, ANY_PORT)
    report = examined(cluster, programs, folder, 1)
    found = found_between(report)
    check(sorted(each["kind"] for each in found) == ["port_blocked", "slow_pair"], found)
    for each in found:
        pair = BLOCKED if each["kind"] == "port_blocked" else SLOW
        check(sorted(each["machines"]) == numbers(pair), each)
        check(each["what_to_do"], each)
    check_names(report)
    for pair in report["pairs"]:
        ends = sorted((pair["from"], pair["to"]))
        check(pair["bandwidth_gbps"] is not None or ends == numbers(BLOCKED), pair)


def not_met(cluster, programs, folder):
    """The blocked port is that of the rendezvous."""
    cluster.block("node1", "node0", range(PORT, PORT + 1))
    (alone,) = start(cluster, programs, folder, ["node1"], 2, "timeout=2")
    check(alone.wait() != 0, "machines that cannot meet")
    check("main_process_unreachable" in alone.text() and "10.77.0.1" in alone.text(), alone.text())


def main():
    why = hosts.why_impossible()
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    programs = pathlib.Path(sys.argv[1]).resolve()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-doctor-"))
    try:
        with hosts.Cluster(NODES) as cluster:
            for scenario in (sound, slow_and_blocked, not_met):
                for a in NODES:
                    cluster.delay(a, DELAY_MS)
                    for b in NODES[NODES.index(a) + 1:]:
                        cluster.rate(a, b, SOUND_KILOBITS)
                scenario(cluster, programs, folder)
                cluster.heal()
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
