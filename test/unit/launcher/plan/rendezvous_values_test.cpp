// SPDX-License-Identifier: Apache-2.0
#include "plan/rendezvous_values.hpp"

#include "support/errors.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::refusal;
using Backend = RendezvousPlan::Backend;
using Words = std::vector<std::string>;

TEST_CASE("rendezvous configuration") {
  struct Case {
    Backend backend;
    std::string text;
    int join_timeout;
    int last_call_timeout;
    Words notices;
  };
  const std::string all =
      "close_timeout=1,heartbeat_timeout=2,keep_alive_interval=3,keep_alive_max_attempt=4,"
      "read_timeout=5,is_host=true,store_type=tcp";
  for (const auto& [backend, text, join_timeout, last_call_timeout, notices] : {
           Case{Backend::fixed, "", 900, 30, {}},
           Case{Backend::c10d, "  ", 600, 30, {}},
           Case{Backend::fixed, "timeout=60", 60, 30, {}},
           Case{Backend::c10d, " join_timeout = 7 ,last_call_timeout=2", 7, 2, {}},
           Case{Backend::fixed, all, 900, 30, {}},
           Case{Backend::c10d, all, 600, 30, {}},
           Case{Backend::c10d,
                "timeout=60",
                600,
                30,
                {"--rdzv-conf: timeout has no effect with c10d, which reads join_timeout"}},
           Case{Backend::fixed,
                "join_timeout=60",
                900,
                30,
                {"--rdzv-conf: join_timeout has no effect with static, which reads timeout"}},
           Case{Backend::c10d, "store_type= TCP,keep_alive_interval=7", 600, 30, {}},
           // Values that the back end does not read may be anything, as in torch.
           Case{Backend::fixed, "is_host=maybe,last_call_timeout=x,store_type=file", 900, 30, {}},
           Case{Backend::c10d,
                "timeout='soon'",
                600,
                30,
                {"--rdzv-conf: timeout has no effect with c10d, which reads join_timeout"}},
           Case{Backend::fixed,
                "join_timeout=-1,rank=0,protocol=ftp",
                900,
                30,
                {"--rdzv-conf: join_timeout has no effect with static, which reads timeout",
                 "--rdzv-conf: rank has no effect with static",
                 "--rdzv-conf: protocol has no effect without etcd and protocol=https"}},
           Case{Backend::c10d,
                "jion_timeout=60,colour=red",
                600,
                30,
                {"--rdzv-conf: unknown key jion_timeout has no effect; did you mean "
                 "\"join_timeout\"?",
                 "--rdzv-conf: unknown key colour has no effect"}},
       }) {
    CAPTURE(text);
    RendezvousPlan plan;
    plan.backend = backend;
    CHECK(plan::read_rendezvous_conf({text, "--rdzv-conf"}, plan) == notices);
    CHECK(plan.join_timeout.count() == join_timeout);
    CHECK(plan.last_call_timeout.count() == last_call_timeout);
  }
  struct Heartbeat {
    std::string text;
    int milliseconds;
  };
  for (const auto& [text, milliseconds] : {
           Heartbeat{"timeout=1", 5000},
           Heartbeat{"heartbeat_timeout=0.5", 500},
           Heartbeat{"heartbeat_timeout=2,keep_alive_interval=9", 2000},
           Heartbeat{"keep_alive_interval=2", 6000},
           Heartbeat{"keep_alive_max_attempt=4", 20000},
       }) {
    CAPTURE(text);
    RendezvousPlan plan;
    plan::read_rendezvous_conf({text, "--rdzv-conf"}, plan);
    CHECK(plan.heartbeat_timeout == std::chrono::milliseconds(milliseconds));
  }
  RendezvousPlan in_etcd;
  in_etcd.backend = Backend::c10d;
  in_etcd.address = "etcd://node0:2379";
  CHECK(
      plan::read_rendezvous_conf({"timeout=8,is_host=x,etcd_prefix=/p", "--rdzv-conf"}, in_etcd) ==
      Words{"--rdzv-conf: etcd_prefix has no effect with etcd"});
  CHECK(in_etcd.join_timeout == std::chrono::seconds(8));
  plan::read_rendezvous_conf({"timeout=8,join_timeout=9,protocol=HTTPS", "--rdzv-conf"}, in_etcd);
  CHECK(in_etcd.join_timeout == std::chrono::seconds(9));
  CHECK(in_etcd.address == "etcds://node0:2379");
  RendezvousPlan hosting;
  hosting.backend = Backend::c10d;
  plan::read_rendezvous_conf({"is_host=0,close_timeout=7", "--rdzv-conf"}, hosting);
  CHECK(hosting.is_host == false);
  CHECK(hosting.close_timeout == std::chrono::seconds(7));
  for (const auto& [backend, text] : std::initializer_list<std::pair<Backend, std::string>>{
           {Backend::fixed, "heartbeat_timeout=0"},
           {Backend::fixed, "heartbeat_timeout=0.05"},
           {Backend::fixed, "timeout"},
           {Backend::fixed, "timeout="},
           {Backend::fixed, "=60"},
           {Backend::fixed, ","},
           {Backend::fixed, "timeout=60,"},
           {Backend::fixed, "timeout=soon"},
           {Backend::fixed, "timeout=0"},
           {Backend::fixed, "timeout=-1"},
           {Backend::fixed, "timeout=1.5"},
           {Backend::c10d, "timeout="},
           {Backend::c10d, "join_timeout='7'"},
           {Backend::c10d, "is_host=maybe"},
           {Backend::c10d, "store_type=file"},
           {Backend::c10d, "keep_alive_max_attempt=0"},
       }) {
    CAPTURE(text);
    RendezvousPlan plan;
    plan.backend = backend;
    CHECK(refusal([&] {
            return plan::read_rendezvous_conf({text, "--rdzv-conf"}, plan);
          }).starts_with("--rdzv-conf must be "));
  }
}

TEST_CASE("endpoints") {
  struct Case {
    std::string text;
    std::string host;
    std::optional<int> port;
  };
  for (const auto& [text, host, port] : {
           Case{"node0", "node0", {}},
           Case{"node0.example:29400", "node0.example", 29400},
           Case{" 10.0.0.1:0 ", "10.0.0.1", 0},
           Case{"[::1]:65535", "::1", 65535},
           Case{"[fe80::1%eth0]", "fe80::1%eth0", {}},
           Case{"[fe80::1%eth0]:7", "fe80::1%eth0", 7},
           Case{"fd00::1:29500", "fd00::1", 29500},
       }) {
    CAPTURE(text);
    const plan::Endpoint endpoint = plan::read_endpoint({text, "--rdzv-endpoint"});
    CHECK(endpoint.host == host);
    CHECK(endpoint.port.has_value() == port.has_value());
    CHECK(endpoint.port.value_or(0) == port.value_or(0));
  }
  for (const std::string text :
       {"", ":29400", "node0:", "node0:x", "node0:65536", "::1", "[::1", "[::1]x", "[]:1", "a b",
        "tcp://node0:1", "node0:1:2", "fd00::1", "1:2:3:4:5:6:7:8"}) {
    CAPTURE(text);
    CHECK(refusal([&] {
            return plan::read_endpoint({text, "--rdzv-endpoint"});
          }).starts_with("--rdzv-endpoint must be HOST, HOST:PORT"));
  }
}

TEST_CASE("number of machines") {
  struct Case {
    std::string text;
    int least, most;
  };
  for (const auto& [text, least, most] :
       {Case{"1", 1, 1}, Case{"2:2", 2, 2}, Case{"1:16", 1, 16}}) {
    const plan::MachineRange range = plan::read_machine_range({text, "--nnodes"});
    CHECK(range.least == least);
    CHECK(range.most == most);
  }
  for (const std::string text : {"", "0", "0:2", "3:2", ":", "1:", "1:2:3", "two", "-1"}) {
    CAPTURE(text);
    CHECK(refusal([&] {
            return plan::read_machine_range({text, "--nnodes"});
          }) ==
          "--nnodes must be N or MIN:MAX machines with 1 <= MIN <= MAX, got \"" + text + "\"");
  }
}

TEST_CASE("a run without an id gets a random one") {
  CHECK(plan::random_run_id().size() == 36);
  CHECK(plan::random_run_id() != plan::random_run_id());
}

}  // namespace
}  // namespace acc::launcher
