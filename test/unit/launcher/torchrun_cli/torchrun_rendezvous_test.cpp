// SPDX-License-Identifier: Apache-2.0
#include "support/text.hpp"
#include "torchrun_fixture.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::contains;
using test::with_program;
using Backend = RendezvousPlan::Backend;
using Fixture = test::TorchrunFixture;
using Words = std::vector<std::string>;

TEST_CASE("rendezvous of the machines") {
  struct Case {
    Words words;
    Backend backend;
    std::string address;
    int port;
    bool port_was_given;
    int least, most;
    std::string run_id;  ///< empty: a random one
  };
  for (const auto& each : {
           Case{{}, Backend::fixed, "localhost", 0, false, 1, 1, ""},
           Case{{"--standalone", "--rdzv-id=x"}, Backend::fixed, "localhost", 0, false, 1, 1, ""},
           Case{{"--standalone", "--nnodes=1:4"}, Backend::fixed, "localhost", 0, false, 1, 1, ""},
           Case{{"--master-port=29600"}, Backend::fixed, "127.0.0.1", 29600, true, 1, 1, "none"},
           Case{{"--rdzv-endpoint=h:1", "--rdzv-id=x"}, Backend::fixed, "h", 1, true, 1, 1, "x"},
           Case{{"--nnodes=2"}, Backend::fixed, "127.0.0.1", 29500, false, 2, 2, "none"},
           Case{{"--nnodes=1:3"}, Backend::fixed, "127.0.0.1", 29500, false, 3, 3, "none"},
           Case{{"--nnodes=2", "--node-rank=1", "--master-addr=h", "--master-port=1"},
                Backend::fixed,
                "h",
                1,
                true,
                2,
                2,
                "none"},
           Case{{"--nnodes=2", "--master-addr=[fd00::1]", "--master-port=5"},
                Backend::fixed,
                "fd00::1",
                5,
                true,
                2,
                2,
                "none"},
           Case{{"--nnodes=2", "--rdzv-endpoint=[::1]:5"},
                Backend::fixed,
                "::1",
                5,
                true,
                2,
                2,
                "none"},
           Case{{"--nnodes=2", "--rdzv-endpoint=h"},
                Backend::fixed,
                "h",
                29500,
                false,
                2,
                2,
                "none"},
           Case{{"--nnodes=1:4", "--rdzv-backend=c10d", "--rdzv-endpoint=h", "--rdzv-id=j"},
                Backend::c10d,
                "h",
                29400,
                false,
                1,
                4,
                "j"},
           Case{{"--nnodes=2", "--rdzv-backend=c10d", "--rdzv-endpoint=h:7"},
                Backend::c10d,
                "h",
                7,
                true,
                2,
                2,
                "none"},
           Case{{"--nnodes=1:2", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0"},
                Backend::c10d,
                "localhost",
                0,
                true,
                1,
                2,
                "none"},
           Case{{"--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=j"},
                Backend::fixed,
                "localhost",
                0,
                false,
                1,
                1,
                "j"},
       }) {
    CAPTURE(each.words);
    const LaunchPlan plan = Fixture().plan(with_program(each.words));
    CHECK(plan.rendezvous.backend == each.backend);
    CHECK(plan.rendezvous.address == each.address);
    CHECK(plan.rendezvous.port == each.port);
    CHECK(plan.rendezvous.port_was_given == each.port_was_given);
    CHECK(plan.rendezvous.min_machines == each.least);
    CHECK(plan.layout.num_machines == each.most);
    CHECK(plan.layout.num_processes == (each.most == 1 ? std::optional(1) : std::nullopt));
    if (each.run_id.empty()) {
      CHECK(plan.rendezvous.run_id.size() == 36);
    } else {
      CHECK(plan.rendezvous.run_id == each.run_id);
    }
  }
  CHECK(Fixture().plan(with_program({"--nnodes=2", "--node-rank=1"})).layout.machine_rank == 1);
  CHECK(Fixture().plan(with_program({"--local-addr=10.0.0.7"})).rendezvous.local_address ==
        "10.0.0.7");
}

TEST_CASE("a flag without effect gets a notice") {
  const Fixture fixture;
  CHECK(fixture.notices({"train.py"}).empty());
  CHECK(fixture.notices({"--standalone", "--rdzv-id=x", "--master-port=1", "train.py"}) ==
        "--rdzv-id has no effect with a single standalone machine\n"
        "--master-port has no effect with a single standalone machine\n");
  CHECK(contains(
      fixture.notices({"--nnodes=2", "--rdzv-backend=c10d", "--master-port=1", "train.py"}),
      "--master-port has no effect with c10d"));
  CHECK(contains(fixture.notices({"--nnodes=2", "--rdzv-conf=tmieout=1", "train.py"}),
                 "did you mean \"timeout\"?"));
}

TEST_CASE("torchrun: several daemons, named or in etcd") {
  const auto of = [](const std::string& backend, const std::string& endpoint) {
    return Fixture()
        .plan(with_program(
            {"--nnodes=2", "--rdzv-backend=" + backend, "--rdzv-endpoint=" + endpoint}))
        .rendezvous;
  };
  const RendezvousPlan named = of("c10d", "a:1,[::1]:2,b");
  CHECK(named.backend == Backend::c10d);
  CHECK(named.address == "a:1,[::1]:2,b:29400");
  const RendezvousPlan found = of("etcd", "a:1,b/prefix");
  CHECK(found.backend == Backend::c10d);
  CHECK(found.address == "etcd://a:1,b/prefix");
}

TEST_CASE("torchrun: etcd with TLS") {
  Fixture fixture;
  fixture.environment["ETCDCTL_CACERT"] = "/ca";
  fixture.environment["ETCDCTL_CERT"] = "/ignored";
  const auto of = [&](const std::string& backend, const std::string& conf) {
    return fixture
        .plan(with_program({"--nnodes=2", "--rdzv-backend=" + backend, "--rdzv-endpoint=a",
                            "--rdzv-conf=" + conf}))
        .rendezvous;
  };
  for (const RendezvousPlan& plan :
       {of("etcd", "protocol=https,cert=/cert,key=/key"),
        of("etcd-v2", "protocol=https,ssl_cert=/cert,ssl_cert_key=/key,ca_cert=/ca")}) {
    CHECK(plan.address == "etcds://a");
    CHECK(plan.etcd_files == rendezvous::TlsFiles{"/cert", "/key", "/ca"});
  }
  CHECK(of("etcd", "protocol=http").address == "etcd://a");
  const std::vector<std::string> plain = {"--nnodes=2", "--rdzv-backend=etcd", "--rdzv-endpoint=a",
                                          "--rdzv-conf=cacert=/ca", "train.py"};
  CHECK(contains(fixture.notices(plain), "cacert has no effect without etcd and protocol=https"));
}

}  // namespace
}  // namespace acc::launcher
