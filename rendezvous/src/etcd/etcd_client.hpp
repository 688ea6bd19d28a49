// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "etcd/base64.hpp"

#include <nlohmann/json_fwd.hpp>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

namespace acc::rendezvous {

/// No member of etcd has answered in time. The request may have had its effect.
struct EtcdUnavailable : Error {
  explicit EtcdUnavailable(const std::string& why, bool refused = false)
      : Error(Errc::connection, why), is_refused(refused) {}

  /// The reason is in the settings: one side of a connection needs TLS and the other does not use
  /// it, or a certificate is refused.
  bool is_refused;
};

/// Client of etcd's JSON interface (/v3/…, version 3.4 and later), over HTTP, with TLS if the
/// address has it. Each connection reads the certificate files again, so that they may be renewed.
/// Blocks its thread; one thread at a time.
class EtcdClient {
 public:
  using Json = nlohmann::json;

  /// `patience`: time limit of one attempt at one member.
  EtcdClient(const EtcdAddress& address, std::chrono::milliseconds patience);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  /// Sends a request to the member that has answered last, then to the others in turn, once each.
  /// Throws EtcdUnavailable, or Error(process) if etcd refuses the request.
  Json post(const std::string& path, const Json& request);

 private:
  class Connection;

  EtcdAddress address_;
  std::chrono::milliseconds patience_;
  std::size_t member_ = 0;
  std::unique_ptr<Connection> connection_;
};

/// etcd's JSON has keys and values in base64, and 64-bit numbers as texts; a field that is missing
/// is zero.
std::int64_t etcd_number(const nlohmann::json& object, const char* field);

}  // namespace acc::rendezvous
