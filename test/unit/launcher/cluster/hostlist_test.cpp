// SPDX-License-Identifier: Apache-2.0
#include "cluster/hostlist.hpp"

#include "support/errors.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace acc::launcher {
namespace {

using acc::test::refusal;
using Hosts = std::vector<std::string>;

nlohmann::json golden() {
  std::ifstream file(ACC_TEST_DATA "/slurm_hostlist.json");
  return nlohmann::json::parse(file);
}

TEST_CASE("Slurm's lists are expanded as Slurm does") {
  const auto cases = golden().at("cases");
  CHECK(cases.size() == 40);
  for (const auto& one : cases) {
    const std::string list = one.at("nodelist");
    CAPTURE(list);
    CHECK(cluster::expand_hosts({list, "list"}) == one.at("hosts").get<Hosts>());
    CHECK(cluster::expand_hosts({one.at("compressed"), "list"}) == one.at("hosts").get<Hosts>());
  }
}

TEST_CASE("a list that Slurm rejects is rejected") {
  const auto lists = golden().at("invalid");
  CHECK(lists.size() == 8);
  for (const std::string list : lists) {
    CAPTURE(list);
    CHECK(refusal([&] {
            return cluster::expand_hosts({list, "list"});
          }).starts_with("list \"" + list));
  }
}

// Recorded from `scontrol show hostnames`, like the golden cases.
TEST_CASE("of four brackets the third varies slowest, then the second, the first and the last") {
  const Hosts hosts = cluster::expand_hosts({"a[1-2]b[1-2]c[1-2]d[1-2]", "list"});
  REQUIRE(hosts.size() == 16);
  CHECK(Hosts(hosts.begin(), hosts.begin() + 10) ==
        Hosts{"a1b1c1d1", "a1b1c1d2", "a2b1c1d1", "a2b1c1d2", "a1b2c1d1", "a1b2c1d2", "a2b2c1d1",
              "a2b2c1d2", "a1b1c2d1", "a1b1c2d2"});
  CHECK(cluster::expand_hosts({"[1-2]", "list"}) == Hosts{"1", "2"});
  CHECK(cluster::expand_hosts({"a[1-2][1-2]", "list"}) == Hosts{"a11", "a12", "a21", "a22"});
}

TEST_CASE("the message about an invalid list has the position") {
  struct Case {
    std::string list, message;
  };
  const std::string wide(300, '0');
  for (const auto& [list, message] : {
           Case{"", "expected a host name at character 1, got the end of the list"},
           Case{",a", "expected a host name at character 1, got \",a\""},
           Case{"a,,b", "expected a host name at character 3, got \",b\""},
           Case{"a b", "expected \",\" at character 2, got \" b\""},
           Case{"a]b", "expected \",\" at character 2, got \"]b\""},
           Case{"a[1", "expected \"-\", \",\" or \"]\" at character 4, got the end of the list"},
           Case{"a[", "expected a number at character 3, got the end of the list"},
           Case{"a[1,]", "expected a number at character 5, got \"]\""},
           Case{"a[1-]", "expected a number at character 5, got \"]\""},
           Case{"a[-1]", "expected a number at character 3, got \"-1]\""},
           Case{"a[1[2]]", "expected \"-\", \",\" or \"]\" at character 4, got \"[2]]\""},
           Case{"a[3-1]", "expected a number of at least 3 at character 5, got \"1]\""},
           Case{"a[1-2]b", "expected \",\" or \"[\" after a bracket at character 7, got \"b\""},
           Case{"a[0-1000000]", "expected no more than a million at character 5, got \"1000000]\""},
           Case{"a[0-999][0-1000]",
                "expected no more than a million at character 12, got \"1000]\""},
           Case{"a[1-99999999999999999999]",
                "expected a number below 10^18 at character 5, got \"99999999999999999999\""},
           Case{"a[18446744073709551616]",
                "expected a number below 10^18 at character 3, got \"18446744073709551616\""},
           Case{"a[0-999999],b", "expected no more than a million at character 13, got \"b\""},
       }) {
    CAPTURE(list);
    CHECK(refusal([&] {
            return cluster::expand_hosts({list, "LIST"});
          }) == "LIST \"" + list + "\": " + message);
  }
  CHECK(refusal([&] { return cluster::expand_hosts({"a[" + wide + "]", "LIST"}); }) != "");
  CHECK(refusal([&] {
          return cluster::expand_hosts({wide, "LIST"});
        }) == "LIST \"" + wide.substr(0, 100) +
                  "...\": expected names of at most 253 characters at character 1, got \"" +
                  wide.substr(0, 20) + "\"");
}

TEST_CASE("a list may have a million hosts") {
  CHECK(cluster::expand_hosts({"n[0-999][000-999]", "list"}).back() == "n999999");
}

TEST_CASE("run-length lists of numbers") {
  struct Case {
    std::string list;
    std::vector<int> counts;
  };
  for (const auto& [list, counts] : {
           Case{"1", {1}},
           Case{"2(x3),1", {2, 2, 2, 1}},
           Case{"4,2(x2),0", {4, 2, 2, 0}},
           Case{"1(x0),2", {2}},
       }) {
    CAPTURE(list);
    CHECK(cluster::expand_counts({list, "list"}) == counts);
  }
  struct Bad {
    std::string list, message;
  };
  for (const auto& [list, message] : {
           Bad{"", "expected a number at character 1, got the end of the list"},
           Bad{"two", "expected a number at character 1, got \"two\""},
           Bad{"2x3", "expected \",\" or \"(\" at character 2, got \"x3\""},
           Bad{"2(3)", "expected \"x\" at character 3, got \"3)\""},
           Bad{"2(x3", "expected \")\" at character 5, got the end of the list"},
           Bad{"1(x1000001)", "expected a number up to a million at character 4, got \"1000001)\""},
           Bad{"1(x600000),2(x600000)",
               "expected no more than a million at character 12, got \"2(x600000)\""},
       }) {
    CAPTURE(list);
    CHECK(refusal([&] {
            return cluster::expand_counts({list, "LIST"});
          }) == "LIST \"" + list + "\": " + message);
  }
}

}  // namespace
}  // namespace acc::launcher
