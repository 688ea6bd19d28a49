// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/tls_files.hpp"

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
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
  /// Files for TLS (`make_etcd_tls`); none: connections without TLS.
  std::optional<TlsFiles> tls{};
  /// Time after which another server leads if the leader does not renew its lease.
  std::chrono::milliseconds lease{5'000};
  bool operator==(const EtcdAddress&) const = default;
};

/// True if the text is the address of an etcd: it begins with `etcd://` or `etcds://`.
bool is_etcd_address(std::string_view text) noexcept;
/// Parses `etcd://HOST[:PORT],…[/PREFIX]`, or the same with `etcds://`, which has TLS with `files`.
/// Throws Error(config), which does not name the setting.
EtcdAddress parse_etcd_address(std::string_view text, const TlsFiles& files = {});
/// Completes `files` by those of etcdctl's variables: ETCDCTL_CACERT, and ETCDCTL_CERT with
/// ETCDCTL_KEY if neither certificate nor key is given. `variable` returns a variable's value.
TlsFiles complete_etcd_files(TlsFiles files,
                             const std::function<std::string(const std::string& name)>& variable);
/// Returns the addresses (ServerOptions::address) of the servers that have their state in this etcd
/// and run; the leader is the first. Blocks for a few seconds at most. Throws Error(connection) if
/// no member answers, Error(config) if the reason is TLS or a certificate.
std::vector<std::string> servers_in_etcd(const EtcdAddress& address);

}  // namespace acc::rendezvous
