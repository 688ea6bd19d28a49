// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/data_source.hpp"

#include <cstdint>
#include <string>

namespace train_gpt {

/// The consecutive sequences of a global batch that one rank trains on in one micro-step.
struct Share {
  std::int64_t first;
  std::int64_t count;
  float weight;  ///< weight of their mean loss, so that all sequences of the step count equally
};

/// The sequences of one step and their division. Part number micro_step * world_size + rank gets
/// either floor(sequences / parts) or one sequence more.
class GlobalBatch {
 public:
  /// Throws Error(config) if there are fewer sequences than parts.
  GlobalBatch(std::int64_t sequences, DataParallel parallel);

  [[nodiscard]] std::int64_t sequences() const { return sequences_; }
  [[nodiscard]] Share share(std::int64_t micro_step) const;
  [[nodiscard]] std::int64_t largest_share() const;

 private:
  std::int64_t sequences_;
  DataParallel parallel_;
};

/// Returns "2 micro-steps x 4 ranks", for messages.
std::string to_string(DataParallel parallel);

}  // namespace train_gpt
