// SPDX-License-Identifier: Apache-2.0
#include "job/server_placement.hpp"

#include <doctest/doctest.h>

using acc::launcher::job::ServerPlacement;
using namespace std::chrono_literals;

namespace {

using Facts = ServerPlacement::Facts;

const ServerPlacement::Time kStart{};

/// Facts of a job at "head", which is 10.0.0.1 and 10.0.0.2 on this machine.
Facts at_head() {
  return {.address = "head",
          .is_own_address = true,
          .server_hosts = {"10.0.0.1", "10.0.0.2"},
          .patience = 30s};
}

Facts static_ranks(int machine_rank, bool is_own_address) {
  Facts facts = at_head();
  facts.ranks_are_given = true;
  facts.machine_rank = machine_rank;
  facts.is_own_address = is_own_address;
  return facts;
}

Facts c10d(bool is_own_address, std::optional<bool> is_host, bool meets_at_daemons) {
  Facts facts = at_head();
  facts.is_own_address = is_own_address;
  facts.is_host = is_host;
  facts.meets_at_daemons = meets_at_daemons;
  return facts;
}

}  // namespace

TEST_CASE("placement of the server: which machine serves, and whether another one may") {
  struct Case {
    const char* what;
    Facts facts;
    bool is_here, must_serve, is_machine_0, may_have_rival;
  };
  const Case cases[] = {
      {"static, machine 0", static_ranks(0, true), true, true, true, false},
      {"static, machine 0 behind a gateway", static_ranks(0, false), true, true, true, true},
      {"static, machine 1", static_ranks(1, false), false, false, false, false},
      {"static, machine 1 with the address", static_ranks(1, true), false, false, false, false},
      {"c10d, own address", c10d(true, {}, false), true, false, false, false},
      {"c10d, address of another machine", c10d(false, {}, false), false, false, false, false},
      {"c10d, is_host=true elsewhere", c10d(false, true, false), true, true, false, false},
      {"c10d, is_host=false here", c10d(true, false, false), false, false, false, false},
      {"c10d, a daemon on this machine", c10d(true, {}, true), false, false, false, false},
      {"c10d, daemons and is_host=true", c10d(true, true, true), false, false, false, false},
  };
  for (const Case& each : cases) {
    CAPTURE(each.what);
    ServerPlacement placement(each.facts);
    CHECK(placement.is_here() == each.is_here);
    CHECK(placement.must_serve() == each.must_serve);
    CHECK(placement.is_machine_0() == each.is_machine_0);
    CHECK(placement.may_have_rival() == each.may_have_rival);
    CHECK(placement.is_to_listen(kStart) == each.is_here);
    CHECK(placement.host_to_join() == (each.is_machine_0 ? "10.0.0.1" : "head"));
    placement.rejoin();  // changes nothing for a machine that must serve, or must not
    if (each.must_serve || !each.is_here) {
      CHECK(placement.is_to_listen(kStart) == each.is_here);
      CHECK(placement.must_serve() == each.must_serve);
    }
  }
}

TEST_CASE("placement of the server: after the first round, a lost server may come back") {
  ServerPlacement placement(at_head());
  CHECK(placement.is_to_listen(kStart));  // nobody serves: at once
  placement.rejoin();
  CHECK(placement.is_here());
  CHECK_FALSE(placement.must_serve());
  CHECK_FALSE(placement.is_to_listen(kStart + 100s));
  CHECK_FALSE(placement.is_to_listen(kStart + 130s - 1ns));
  CHECK(placement.is_to_listen(kStart + 130s));
  placement.rejoin();  // the server was found again: the next loss counts from its own beginning
  CHECK_FALSE(placement.is_to_listen(kStart + 200s));
  CHECK(placement.is_to_listen(kStart + 230s));
}

TEST_CASE("placement of the server: addresses on which the workers' store listens") {
  ServerPlacement::Facts facts = at_head();
  facts.local_address = "ib0";
  facts.local_hosts = {"192.168.0.1"};
  const ServerPlacement placement(facts);
  using Hosts = std::vector<std::string>;
  CHECK(placement.store_hosts("ib0") == Hosts{"192.168.0.1"});
  CHECK(placement.store_hosts("head") == Hosts{"10.0.0.1", "10.0.0.2"});
  CHECK(placement.store_hosts("10.9.9.9") == Hosts{"10.9.9.9"});
  facts.server_hosts = {"*"};
  CHECK(ServerPlacement(facts).own_server() == "localhost");
}
