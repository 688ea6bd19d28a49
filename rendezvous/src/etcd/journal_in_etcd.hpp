// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "etcd/etcd_client.hpp"
#include "journal/journal.hpp"

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// The groups in keys of etcd, which only the leader changes (EtcdLeadership).
class JournalInEtcd final : public JournalStorage {
 public:
  /// `token` is the leader's; `is_certain` is called on any thread: false as soon as this server
  /// may not lead any more.
  JournalInEtcd(const EtcdAddress& address, std::int64_t token, std::function<bool()> is_certain);

  void read(const Receive& receive) override;
  void append(std::string_view group) override;
  void replace(std::span<const std::string> groups) override;
  [[nodiscard]] bool waits() const noexcept override { return true; }

 private:
  using Json = EtcdClient::Json;

  Json post(const std::string& path, const Json& request);
  std::int64_t change(Json operations);
  void read_log(const Receive& receive);
  void put_group(std::uint64_t log, std::uint64_t& number, std::string_view group);
  [[nodiscard]] std::string key(std::string_view name) const;
  [[nodiscard]] std::string chunk_key(std::uint64_t log, std::uint64_t number) const;
  static Json put(const std::string& name, std::string_view value);
  static Json deletion(const std::string& from, const std::string& to);

  EtcdClient client_;
  std::string prefix_;
  std::int64_t token_;
  std::function<bool()> is_certain_;
  std::int64_t num_changes_ = 0;  // of all leaders
  std::uint64_t log_ = 1;         // number of the current log
  std::uint64_t next_ = 0;        // number of its next chunk
};

}  // namespace acc::rendezvous
