// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>

namespace acc::rendezvous {

/// Progress of the log. The changes of keys and jobs are numbered, and may be shown to clients when
/// they are in the log.
struct RecordedChanges {
  std::uint64_t recorded = 0;       ///< number of the last change
  std::uint64_t written = 0;        ///< number of the last change in the log
  std::function<bool()> may_act{};  ///< false: this server must be silent; none: always true

  [[nodiscard]] bool may_show(std::uint64_t change) const {
    return change <= written && (!may_act || may_act());
  }
};

}  // namespace acc::rendezvous
