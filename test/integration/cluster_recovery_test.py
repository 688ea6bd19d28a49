# SPDX-License-Identifier: Apache-2.0
"""Two daemons with their state in etcd on virtual hosts, and a training that does not notice their faults.

    python cluster_recovery_test.py BIN CLOCK_LIBRARY [--minutes]

BIN holds acclaunch and acc-rendezvous. The wall clock of daemons and launchers jumps by days
(CLOCK_LIBRARY, test/support/jumping_clock.c). With --minutes, the host of the leader is suspended for a minute.
Prints how long each step took. Exits with 77 without virtual hosts or etcd.
"""
import pathlib
import shutil
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "test" / "cluster"), str(ROOT / "test" / "support")]
import etcd  # noqa: E402
import hosts  # noqa: E402
import tiny_training  # noqa: E402
from hosts import check, wait_until  # noqa: E402

SKIPPED = 77
MEMBERS, DAEMONS, NODES = ["member0", "member1", "member2"], ["head0", "head1"], ["node0", "node1"]
PORT, CLIENT_PORT, PEER_PORT = 29500, 2379, 2380
STEPS = 6
LEASE_S = 4
CONF = f"heartbeat_timeout={LEASE_S + 2},last_call_timeout=1,join_timeout=120"


class Site:
    def __init__(self, cluster, programs, clock, folder):
        self.cluster, self.programs, self.folder = cluster, programs, folder
        self.clock = {"LD_PRELOAD": str(clock)}
        names = ",".join(f"{name}=http://{cluster[name].address}:{PEER_PORT}" for name in MEMBERS)
        for name in MEMBERS:
            cluster[name].start(etcd.member_command(name, folder, cluster[name].address, CLIENT_PORT, PEER_PORT, names))
        self.daemons = {}
        for name in DAEMONS:
            self.start_daemon(name)
        self.launchers = []
        self.step = 0

    def start_daemon(self, name):
        state = "etcd://" + ",".join(f"{member}:{CLIENT_PORT}" for member in MEMBERS)
        self.daemons[name] = self.cluster[name].start(
            [self.programs / "acc-rendezvous", "--insecure", "--host", "0.0.0.0", "--port", PORT, "--state", state, "--lease", f"{LEASE_S}s",
             "--advertised_address", f"{name}:{PORT}"], self.clock)

    def leads(self, name):
        return self.daemons[name].count("leading: ") > self.daemons[name].count("does not lead any more")

    def leader(self):
        wait_until(lambda: any(map(self.leads, DAEMONS)),
                   "a leader:\n" + "\n".join(each.text() for each in self.daemons.values()))
        return next(filter(self.leads, DAEMONS))

    def train(self):
        for name in NODES:
            self.launchers.append(self.cluster[name].start(
                [self.programs / "acclaunch", "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--rdzv-id", "job",
                 "--rdzv-backend", "c10d", "--rdzv-endpoint", ",".join(f"{daemon}:{PORT}" for daemon in DAEMONS),
                 "--insecure", "--rdzv-conf", CONF, ROOT / "test" / "support" / "tiny_training.py", self.folder, STEPS], self.clock))

    def goes_on(self):
        """Lets the workers do a further step."""
        self.step += 1
        (self.folder / f"go{self.step}").touch()
        for launcher in self.launchers:
            launcher.wait_for(f"step {self.step} ")

    def expect_change(self, what, fault, back):
        """After `fault` the other daemon leads, and the agents are connected to it."""
        old = self.leader()
        other = next(name for name in DAEMONS if name != old)
        begin = time.monotonic()
        led = self.daemons[other].count("leading: ")
        again = [launcher.count("connected to the rendezvous") for launcher in self.launchers]
        fault(old)
        leads_at = self.daemons[other].wait_for("leading: ", led + 1)
        back_at = max(launcher.wait_for("connected to the rendezvous", count + 1)
                      for launcher, count in zip(self.launchers, again))
        self.goes_on()
        print(f"{what}: the other daemon led after {leads_at - begin:.1f} s, the agents were back after "
              f"{back_at - begin:.1f} s", flush=True)
        back(old)


def scenario(site, frozen_s):
    cluster = site.cluster
    site.leader()
    site.train()
    site.goes_on()

    def thaw(name):
        time.sleep(frozen_s)  # the fault itself, not a wait for an event
        cluster[name].thaw()
        site.daemons[name].wait_for("does not lead any more")

    def boot(name):
        cluster[name].boot()
        site.start_daemon(name)
        site.daemons[name].wait_for("standing by: ")

    def heal(name):
        site.daemons[name].wait_for("does not lead any more")
        cluster.heal()

    cluster[MEMBERS[0]].crash()
    site.goes_on()
    site.expect_change("the leader is cut off from etcd, not from its agents",
                       lambda name: cluster.cut([name], MEMBERS[1:]), heal)
    site.expect_change("the leader's host is suspended", lambda name: cluster[name].freeze(), thaw)
    site.expect_change("the leader's host is lost", lambda name: cluster[name].crash(), boot)
    site.goes_on()
    lines = set()
    for launcher in site.launchers:
        launcher.expect_status(0)
        lines |= {line[line.index("loss "):] for line in launcher.text().splitlines() if "loss " in line}
        check(launcher.count("loss ") == STEPS, f"the workers have started again:\n{launcher.text()}")
    check(lines == tiny_training.undisturbed(2, STEPS), f"the losses differ: {sorted(lines)}")


def main():
    why = hosts.why_impossible() or etcd.why_impossible()
    if why:
        print(f"skipped: {why}")
        return SKIPPED
    folder = pathlib.Path(tempfile.mkdtemp(prefix="acc-recovery-"))
    programs, clock = (pathlib.Path(each).resolve() for each in sys.argv[1:3])
    try:
        with hosts.Cluster([*MEMBERS, *DAEMONS, *NODES]) as cluster:
            scenario(Site(cluster, programs, clock, folder), 60 if "--minutes" in sys.argv else LEASE_S + 1)
    finally:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
