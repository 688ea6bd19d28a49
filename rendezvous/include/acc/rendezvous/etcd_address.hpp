// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace acc::rendezvous {

/// Where servers that replace each other keep their state: the members of an etcd cluster, and the
/// beginning of all keys.
struct EtcdAddress {
  struct Member {
    std::string host;
    std::uint16_t port = 2379;
    bool operator==(const Member&) const = default;
  };
  std::vector<Member> members{};
  std::string prefix = "acc-rendezvous";
  /// Time after which another server leads if the leader does not renew its lease.
  std::chrono::milliseconds lease{5'000};
  bool operator==(const EtcdAddress&) const = default;
};

/// Parses `etcd://HOST[:PORT],…[/PREFIX]`. Throws Error(config), which does not name the setting.
EtcdAddress parse_etcd_address(std::string_view text);

}  // namespace acc::rendezvous
