// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "loopback.hpp"
#include "wire/frames.hpp"

#include <array>
#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

/// Common parts of the servers that only move bytes.
namespace acc::bench {

namespace wire = rendezvous::wire;

/// Returns the size in bytes of the field at the start of `bytes`; nothing while it is incomplete.
inline std::optional<std::size_t> field_size(char field, std::string_view bytes) {
  std::size_t size = field == 'u' ? 4 : 8;
  if (field == 'k' || field == 'v') {
    if (bytes.size() < 8) {
      return std::nullopt;
    }
    size += static_cast<std::size_t>(wire::get_i64(bytes.data()));
  }
  return bytes.size() < size ? std::nullopt : std::optional(size);
}

/// Returns the size in bytes of the first frame; nothing while it is incomplete.
inline std::optional<std::size_t> frame_size(std::string_view bytes) {
  const wire::Shape& shape = wire::kShapes.at(static_cast<unsigned char>(bytes.front()));
  std::size_t size = 1;
  std::int64_t rounds = 1;
  if (shape.repeated) {
    if (bytes.size() < 9) {
      return std::nullopt;
    }
    rounds = wire::get_i64(bytes.data() + 1);
    size += 8;
  }
  for (; rounds > 0; --rounds) {
    for (const char field : shape.fields) {
      const auto more = field_size(field, bytes.substr(size));
      if (!more) {
        return std::nullopt;
      }
      size += *more;
    }
  }
  return size;
}

/// Returns the prepared reply of each command, except PING, whose reply is its nonce.
inline std::array<std::string, wire::kShapes.size()> canned_replies() {
  std::array<std::string, wire::kShapes.size()> replies;
  for (std::size_t op = 0; op < replies.size(); ++op) {
    switch (static_cast<wire::Opcode>(op)) {
      case wire::Opcode::get: wire::put_bytes(replies[op], std::string(32, 'v')); break;
      case wire::Opcode::add: wire::put_i64(replies[op], 1); break;
      case wire::Opcode::wait:
      case wire::Opcode::barrier: replies[op].push_back(wire::kReleased); break;
      default: break;
    }
  }
  return replies;
}

/// Answers requests with prepared replies.
class CannedReplies {
 public:
  /// Appends the replies to the complete requests to `replies`; leaves the rest in `bytes`.
  void answer(std::string_view& bytes, std::string& replies) const {
    while (!bytes.empty()) {
      const auto size = frame_size(bytes);
      if (!size) {
        return;
      }
      if (static_cast<wire::Opcode>(bytes.front()) == wire::Opcode::ping) {
        replies.append(bytes.substr(1, 4));
      } else {
        replies.append(canned_[static_cast<unsigned char>(bytes.front())]);
      }
      bytes.remove_prefix(*size);
    }
  }

 private:
  std::array<std::string, wire::kShapes.size()> canned_ = canned_replies();
};

/// Returns a socket that listens on a free port of 127.0.0.1, and prints the port.
inline UniqueFd listening_socket() {
  UniqueFd listener = new_socket();
  sockaddr_in address = loopback(0);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  checked(bind(listener.get(), generic, sizeof address), "bind");
  checked(listen(listener.get(), SOMAXCONN), "listen");
  socklen_t size = sizeof address;
  getsockname(listener.get(), generic, &size);
  std::printf("listening on 127.0.0.1:%d\n", ntohs(address.sin_port));
  std::fflush(stdout);
  return listener;
}

}  // namespace acc::bench
