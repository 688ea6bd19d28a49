// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/etcd_address.hpp"

#include "support.hpp"

#include <doctest/doctest.h>

#include <string>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using Member = EtcdAddress::Member;

TEST_CASE("an address of etcd has members and a prefix") {
  CHECK(parse_etcd_address("etcd://a") == EtcdAddress{.members = {{"a", 2379}}});
  CHECK(parse_etcd_address("etcd://a:1,[::1]:2,[fe80::1]/jobs/x/") ==
        EtcdAddress{.members = {{"a", 1}, {"::1", 2}, {"fe80::1", 2379}}, .prefix = "jobs/x"});
  const TlsFiles files{"", "", "ca.pem"};
  CHECK(parse_etcd_address("etcds://a/jobs", files) ==
        EtcdAddress{.members = {{"a", 2379}}, .prefix = "jobs", .tls = files});
  CHECK(!parse_etcd_address("etcd://a", files).tls);
  struct Case {
    std::string text;
    std::string part;
  };
  for (const Case& each : {
           Case{"a", "expected etcd://HOST[:PORT],...[/PREFIX] or etcds://..., got \"a\""},
           Case{"https://a", "expected etcd://"},
           Case{"etcd://", "\"\": expected HOST or HOST:PORT"},
           Case{"etcd://a,,b", "\"\": expected HOST or HOST:PORT"},
           Case{"etcd://a:0", "\"a:0\": expected a port of 1..65535"},
           Case{"etcd://a:port", "expected a port"},
           Case{"etcd://user:word@a", "user names and passwords of etcd are not supported"},
           Case{"etcd://a/" + std::string(257, 'p'), "the prefix has 257 bytes"},
       }) {
    CAPTURE(each.text);
    CHECK(contains(error_of([&] { parse_etcd_address(each.text); }), each.part));
  }
}

}  // namespace
}  // namespace acc::rendezvous
