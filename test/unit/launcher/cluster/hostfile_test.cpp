// SPDX-License-Identifier: Apache-2.0
#include "cluster/hostfile.hpp"

#include "support/errors.hpp"

#include <doctest/doctest.h>

namespace acc::launcher {
namespace {

using acc::test::refusal;

/// Formats hosts and slots as `a:0,1 b:0`.
std::string shown(const std::vector<cluster::Host>& hosts) {
  std::string text;
  for (const cluster::Host& host : hosts) {
    text += (text.empty() ? "" : " ") + host.name + ":";
    for (const int slot : host.slots) {
      text += (text.ends_with(':') ? "" : ",") + std::to_string(slot);
    }
  }
  return text;
}

TEST_CASE("a hostfile is read in order") {
  struct Case {
    std::string text, hosts;
  };
  for (const auto& [text, hosts] : {
           Case{"worker-0 slots=2\nworker-1 slots=1\n", "worker-0:0,1 worker-1:0"},
           Case{"b slots=1\na slots=1", "b:0 a:0"},
           Case{"# two machines\n\n  a\tslots=2  \r\n  # the end\nb slots=1 max_slots=4 # fast\n",
                "a:0,1 b:0"},
           Case{"10.0.0.1 slots=3", "10.0.0.1:0,1,2"},
       }) {
    CAPTURE(text);
    CHECK(shown(cluster::parse_hostfile(text, "hosts")) == hosts);
  }
  CHECK(cluster::parse_hostfile("\na slots=1", "hosts").front().where == "hosts:2");
}

TEST_CASE("every invalid line of a hostfile is reported") {
  const std::string form = ": expected NAME slots=N with N of at least 1, got ";
  struct Case {
    std::string text, message;
  };
  for (const auto& [text, message] : {
           Case{"a", "hosts:1" + form + "\"a\""},
           Case{"a slots=0", "hosts:1" + form + "\"a slots=0\""},
           Case{"a slots=-1", "hosts:1" + form + "\"a slots=-1\""},
           Case{"a slots=two", "hosts:1" + form + "\"a slots=two\""},
           Case{"a slots=2x", "hosts:1" + form + "\"a slots=2x\""},
           Case{"a slots = 2", "hosts:1" + form + "\"a slots = 2\""},
           Case{"a slots=999999999999", "hosts:1" + form + "\"a slots=999999999999\""},
           Case{"a slots=1\nb slots=1\na slots=2", "hosts:3: a is already listed in hosts:1"},
           Case{"a\nb slots=1\nc slots=\n",
                "hosts:1" + form + "\"a\"\nhosts:3" + form + "\"c slots=\""},
           Case{"", "hosts: the file lists no host; expected lines NAME slots=N"},
           Case{"# nothing\n", "hosts: the file lists no host; expected lines NAME slots=N"},
       }) {
    CAPTURE(text);
    CHECK(refusal([&] { return cluster::parse_hostfile(text, "hosts"); }) == message);
  }
}

TEST_CASE("a hostfile in the form of any launcher") {
  struct Case {
    std::string text, hosts;
  };
  for (const auto& [text, hosts] : {
           Case{"a\nb\n", "a: b:"},
           Case{"a slots=2\nb:1\nc", "a:0,1 b:0 c:"},
           Case{"a slots=2 max_slots=4\nb max-slots=3 # fast\n", "a:0,1 b:"},
           Case{"a:2 binding=user:0\nb:1#the last", "a:0,1 b:0"},
           Case{"10.0.0.1:2\n[fd00::1]:1\nfd00::2\n[fd00::3]\nfe80::4%eth0 slots=1",
                "10.0.0.1:0,1 fd00::1:0 fd00::2: fd00::3: fe80::4%eth0:0"},
           Case{"ann@a slots=1\r\nb user=ben\r\n", "ann@a:0 ben@b:"},
       }) {
    CAPTURE(text);
    std::vector<cluster::Host> read =
        cluster::parse_hostfile(text, "hosts", cluster::HostfileForm::any);
    for (cluster::Host& host : read) {
      host.name = (host.user.empty() ? "" : host.user + "@") + host.name;
    }
    std::string all;
    for (const cluster::Host& host : read) {
      all += (all.empty() ? "" : " ") + shown({host});
    }
    CHECK(all == hosts);
  }
}

TEST_CASE("invalid lines of a hostfile in the form of any launcher") {
  const std::string form =
      ": expected [USER@]NAME, NAME:N or NAME slots=N with N of at least 1, got ";
  for (const std::string line :
       {"a slots=0", "a slots=", "a slots = 2", "a 2", "a:0", "a:", "a:x", "@a", "ann@",
        "-oProxyCommand=x", "-l@a", "a;b", "node[0-1]", "[fd00::1", "[fd00::1]2", "a user=-x",
        "a =2", "a slots=99999999999"}) {
    CAPTURE(line);
    CHECK(refusal([&] {
            return cluster::parse_hostfile(line, "hosts", cluster::HostfileForm::any);
          }) == "hosts:1" + form + "\"" + line + "\"");
  }
  CHECK(refusal([&] {
          return cluster::parse_hostfile("a\nb:0\nann@a\nc d", "hosts", cluster::HostfileForm::any);
        }) == "hosts:2" + form + "\"b:0\"\nhosts:3: a is already listed in hosts:1\nhosts:4" +
                  form + "\"c d\"");
  CHECK(refusal([&] {
          return cluster::parse_hostfile("\n# a\n", "hosts", cluster::HostfileForm::any);
        }) == "hosts: the file lists no host; expected lines NAME slots=N");
}

const std::string kThree = "b slots=4\na slots=4\nc slots=2\n";

TEST_CASE("hosts and slots that the filters leave") {
  struct Case {
    std::string filter, included, excluded;
  };
  for (const auto& [filter, included, excluded] : {
           Case{"", "b:0,1,2,3 a:0,1,2,3 c:0,1", "b:0,1,2,3 a:0,1,2,3 c:0,1"},
           Case{"a", "a:0,1,2,3", "b:0,1,2,3 c:0,1"},
           Case{"a:1", "a:1", "b:0,1,2,3 a:0,2,3 c:0,1"},
           Case{"c@b:3,0", "b:0,3 c:0,1", "b:1,2 a:0,1,2,3"},
           Case{"a:2,2@a:0", "a:0,2", "b:0,1,2,3 a:1,3 c:0,1"},
           Case{"a:2@a", "a:2", "b:0,1,2,3 a:0,1,3 c:0,1"},
           Case{"c:0,1", "c:0,1", "b:0,1,2,3 a:0,1,2,3"},
       }) {
    CAPTURE(filter);
    const auto hosts = cluster::parse_hostfile(kThree, "hosts");
    CHECK(shown(cluster::only_included(hosts, {filter, "-i"})) == included);
    CHECK(shown(cluster::without_excluded(hosts, {filter, "-e"})) == excluded);
  }
}

TEST_CASE("a filter that names missing hosts or slots") {
  const auto hosts = cluster::parse_hostfile("worker-0 slots=2\nworker-1 slots=2", "hosts");
  const std::string form = "-i must be HOST or HOST:SLOT,SLOT, joined by @, got ";
  struct Case {
    std::string filter, message;
  };
  for (const auto& [filter, message] : {
           Case{"worker-2",
                "-i names host \"worker-2\", which is not in the hostfile; did you mean "
                "\"worker-0\"?"},
           Case{"worker-1:2", "-i names slot 2 of worker-1, which has 2 slots, numbered from 0"},
           Case{"worker-0:7@x:1",
                "-i names slot 7 of worker-0, which has 2 slots, numbered from 0\n"
                "-i names host \"x\", which is not in the hostfile"},
           Case{"worker-0:", form + "\"worker-0:\""},
           Case{"worker-0:a", form + "\"worker-0:a\""},
           Case{"worker-0:-1", form + "\"worker-0:-1\""},
           Case{"worker-0:0,", form + "\"worker-0:0,\""},
           Case{"worker-0@", "-i names host \"\", which is not in the hostfile"},
       }) {
    CAPTURE(filter);
    CHECK(refusal([&] { return cluster::only_included(hosts, {filter, "-i"}); }) == message);
  }
  CHECK(refusal([&] {
          return cluster::without_excluded(hosts, {"worker-0@worker-1", "-e"});
        }) == "-e worker-0@worker-1 leaves no slot on any host");
}

}  // namespace
}  // namespace acc::launcher
