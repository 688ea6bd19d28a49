// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "secure/proof.hpp"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// Protocol handler: the server's side of one connection, without the socket.
class ProtocolHandler {
 public:
  virtual ~ProtocolHandler() = default;

  /// Serves the first request of `bytes`, removes it and appends its reply to `out`. Returns false
  /// if the request is incomplete; the next call then passes the same bytes followed by more.
  /// Throws if the connection must end: Error(protocol) for a violation, Error(out_of_memory) for a
  /// limit.
  virtual bool step(std::string_view& bytes, std::string& out) = 0;
  /// Cost of a step in units of about 0.2 µs, without that of its bytes (Connection::kTurnCost).
  [[nodiscard]] virtual unsigned cost() const noexcept { return 1; }
  /// True if the last reply has further parts: each next step appends one and takes no bytes.
  [[nodiscard]] virtual bool is_replying() const noexcept { return false; }
  /// Number of the last recorded change that the reply of the last step shows, or a larger one.
  [[nodiscard]] virtual std::uint64_t shown_change() const noexcept { return UINT64_MAX; }
  /// Memory that it keeps for an incomplete request, in bytes, without the request's own bytes.
  [[nodiscard]] virtual std::size_t num_kept() const noexcept { return 0; }
  /// True if the handshake is complete, so that ServerOptions::handshake_timeout no longer applies.
  [[nodiscard]] virtual bool is_open() const noexcept = 0;
  /// What the client has proved, if this handler is over and the next byte selects the one that
  /// follows; else null.
  [[nodiscard]] virtual const secure::Admission* admission() const noexcept { return nullptr; }
  /// True if it serves no further request: the connection ends when the replies are sent.
  [[nodiscard]] virtual bool is_finished() const noexcept { return false; }
};

}  // namespace acc::rendezvous
