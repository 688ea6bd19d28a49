// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "rounds/messages.hpp"

#include <utility>
#include <variant>

namespace acc::rendezvous {

/// The place of an agent in its job. The phases Over and Closed are final.
class Place {
 public:
  struct Wanted {};  ///< it is in a round, or waits for one
  /// The server has refused this machine, which is an error of the next wait for a round.
  struct Refused {
    rounds::Dropped reason;
  };
  struct Over {};    ///< the job has ended without another round
  struct Closed {};  ///< by `leave` or `close`

  template <typename Phase>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<Phase>(phase_);
  }
  [[nodiscard]] bool is_final() const { return is<Over>() || is<Closed>(); }
  /// Returns the refusal, or null.
  [[nodiscard]] const rounds::Dropped* refusal() const {
    const auto* refused = std::get_if<Refused>(&phase_);
    return refused != nullptr ? &refused->reason : nullptr;
  }
  /// Has no effect in a final phase.
  template <typename Phase>
  void move_to(Phase next) {
    if (!is_final()) {
      phase_ = std::move(next);
    }
  }

 private:
  std::variant<Wanted, Refused, Over, Closed> phase_;
};

}  // namespace acc::rendezvous
