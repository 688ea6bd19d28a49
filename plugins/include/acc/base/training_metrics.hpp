// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace acc {

/// What a rank reports about its training. An empty field has not been reported. Values may be NaN
/// or infinite.
struct TrainingMetrics {
  /// Limits of `memory` and of `values`: entries of each, and bytes of a name.
  static constexpr std::size_t kMaxEntries = 16;
  static constexpr std::size_t kMaxNameBytes = 31;

  std::optional<std::int64_t> step{};
  std::optional<double> loss{};
  std::optional<double> learning_rate{};
  std::optional<double> gradient_norm{};
  std::optional<double> tokens_per_s{};
  // Duration of the last step, and the parts of it in which the rank computed, and waited for
  // gathers, for reductions and for other collectives; in seconds.
  std::optional<double> step_s{};
  std::optional<double> compute_s{};
  std::optional<double> gather_s{};
  std::optional<double> reduce_s{};
  std::optional<double> wait_s{};
  std::map<std::string, std::int64_t> memory{};  ///< bytes by category
  std::map<std::string, double> values{};        ///< other values, by the names that they came with

  bool operator==(const TrainingMetrics&) const = default;
};

/// Sets the field of a reported name: a field's name, "lr" for learning_rate, "grad_norm" for
/// gradient_norm, "memory.CATEGORY" or "memory_bytes" (category `total`); any other name goes to
/// `values`. Returns false if the value is left out: the name is empty, too long or not printable
/// ASCII, there is no room for a further entry, or a step or a number of bytes is not a number of
/// at least 0.
ACC_API bool set_metric(TrainingMetrics& metrics, std::string_view name, double value);

/// Replaces the fields of `to` that `from` has. Entries for which there is no room are left out.
ACC_API void merge(TrainingMetrics& to, const TrainingMetrics& from);

/// True for a name that `memory` and `values` may have.
ACC_API bool is_metric_name(std::string_view name);

}  // namespace acc
