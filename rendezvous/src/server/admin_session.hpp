// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/protocol_handler.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::rendezvous {

/// First bytes of an administrator, the last one is the version (docs/protocol.md).
inline constexpr std::string_view kAdminHello{
    "\xad"
    "adm\x01",
    5};

/// Protocol handler of an administrator: executes commands, one after the other.
class AdminSession : public ProtocolHandler {
 public:
  /// Executes a command, its name first. Returns its output; an Error is the output of a command
  /// that failed.
  using Execute = std::function<std::string(const std::vector<std::string>& words)>;

  explicit AdminSession(Execute execute) : execute_(std::move(execute)) {}

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] bool is_open() const noexcept override { return said_hello_; }
  [[nodiscard]] unsigned cost() const noexcept override { return 1024; }  // visits all jobs

 private:
  Execute execute_;
  bool said_hello_ = false;
};

}  // namespace acc::rendezvous
