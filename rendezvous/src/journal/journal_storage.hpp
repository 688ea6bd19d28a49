// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// This process may not change the state any more, because another one does (JournalStorage).
struct LeadershipLost : Error {
  explicit LeadershipLost(const std::string& why) : Error(Errc::connection, why) {}
};

/// Keeps the groups of a Journal, in order, so that a crash at any moment leaves whole groups.
///
/// A Journal calls `read` first, then the others on one thread at a time. All errors name the
/// place. Errc::process: the storage is full or fails; nothing more is written then. Errc::config:
/// it is in use, damaged, of a newer version, or not accessible. LeadershipLost: see there.
class JournalStorage {
 public:
  /// Receives a group; returns false if it is malformed.
  using Receive = std::function<bool(std::string_view group)>;

  virtual ~JournalStorage() = default;

  /// Passes on all groups. Removes what a crash has left behind them.
  virtual void read(const Receive& receive) = 0;
  /// Adds a group; returns when it is durable.
  virtual void append(std::string_view group) = 0;
  /// Replaces all groups by these; returns when they are durable. A crash leaves the old groups or
  /// the new ones.
  virtual void replace(std::span<const std::string> groups) = 0;
  /// True if `append` waits for a disk or a network: the Journal then calls it on another thread.
  [[nodiscard]] virtual bool waits() const noexcept = 0;
};

}  // namespace acc::rendezvous
