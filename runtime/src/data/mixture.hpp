// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace acc::data {

/// A place in one of several sources.
struct Place {
  std::int64_t source;
  std::int64_t index;  ///< number of samples of the source, over all its epochs
};

/// Which source a position of a mixture takes its sample from. Positions are divided into blocks of
/// one length; each block has the same number of samples of a source, in a random order. So a
/// source and a sample of it follow from the position alone, and each source is used from its begin
/// without a gap, block by block.
class Mixture {
 public:
  /// Takes the shortest block, up to 65536 samples, whose counts are within 0.1 % of each weight.
  /// Throws Error(invalid_argument) that names a weight which is not positive, or so small that no
  /// block has it.
  explicit Mixture(std::span<const double> weights);

  [[nodiscard]] Place at(std::int64_t position, std::uint64_t seed) const;
  [[nodiscard]] std::int64_t block() const noexcept { return ends_.back(); }
  /// Samples of a source in each block.
  [[nodiscard]] std::int64_t count(std::size_t source) const noexcept {
    return ends_[source] - (source == 0 ? 0 : ends_[source - 1]);
  }

 private:
  std::vector<std::int64_t> ends_;  ///< by source: sum of the counts up to it
};

}  // namespace acc::data
