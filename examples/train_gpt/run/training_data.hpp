// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/data_source.hpp"
#include "data/global_batch.hpp"
#include "run/options.hpp"

#include <acc/runtime/data_order.hpp>

#include <memory>
#include <optional>

namespace train_gpt {

/// Opens the data that the options name and checks that token ids are within the vocabulary. For
/// large data each rank checks its share. Throws Error(config) with the file, and for an id outside
/// the vocabulary with its position.
std::unique_ptr<DataSource> open_data(const Options& options, DataParallel parallel);

/// Returns the order of all windows of seq_len tokens and their targets, with --once_per_epoch.
std::optional<acc::DataOrder> data_order(const acc::Runtime& runtime, const Options& options,
                                         const DataSource* data);

/// Returns the global batch: the rows per step of the batches file, or --global_batch, or
/// --micro_batch (default 4) sequences per rank and micro-step. Throws Error(config) if the batches
/// file and --micro_batch contradict each other.
GlobalBatch global_batch(const Options& options, DataParallel parallel);

}  // namespace train_gpt
