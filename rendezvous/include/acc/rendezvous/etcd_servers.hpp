// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/etcd_address.hpp"

#include <string>
#include <vector>

namespace acc::rendezvous {

/// Returns the addresses (ServerOptions::address) of the servers that have their state in this etcd
/// and run; the leader is the first. Blocks for a few seconds at most. Throws Error(connection) if
/// no member answers, Error(config) if the reason is TLS or a certificate.
std::vector<std::string> servers_in_etcd(const EtcdAddress& address);

}  // namespace acc::rendezvous
