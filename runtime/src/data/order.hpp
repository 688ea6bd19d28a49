// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/data_order.hpp"
#include "data/mixture.hpp"
#include "data/record.hpp"

#include <memory>
#include <optional>

namespace acc::detail {

/// What a DataOrder consists of.
class DataOrderState {
 public:
  /// recording: null: nothing is recorded.
  DataOrderState(DataOptions options, std::shared_ptr<const data::Recording> recording);

  /// True for one source with a known number of samples.
  [[nodiscard]] bool has_epochs() const noexcept { return samples_ != DataSource::kUnknown; }
  /// Throws Error(invalid_argument) unless the position is in its epoch.
  void check(const DataPosition& at) const;
  /// Moves the position from the begin of a batch to its end.
  void move(const DataPosition& first, const DataPosition& next);
  /// The record, with its first line written; null: nothing is recorded.
  data::Record* record();

  DataOptions options_;
  std::int64_t samples_ = DataSource::kUnknown;  ///< of an epoch
  std::optional<data::Mixture> mixture_ = {};
  DataPosition position_ = {};
  data::Origin origin_ = {};  ///< of the present attempt
  std::optional<data::Record> record_ = {};
  bool has_begun_ = false;  ///< the record has the line of the present attempt
};

}  // namespace acc::detail
