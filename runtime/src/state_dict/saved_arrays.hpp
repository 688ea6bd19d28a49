// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/tensor/dtype.hpp"
#include "model/buffers.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"
#include "state_dict/held_values.hpp"

#include <optional>
#include <string>
#include <vector>

/// The arrays of a model and its optimizer that a checkpoint holds.
namespace acc::state_dict {

using namespace acc::checkpoint;  // the formats

/// The weights of a flat parameter or one kind of state, in the form that the optimizer updates: of
/// a flat parameter, or of parameters that owners update as wholes.
struct FlatArray {
  std::string kind;  ///< "param", "exp_avg", "exp_avg_sq", "momentum_buffer"
  void* values;      ///< [owned.numel], in memory of the updater's device; null: in `packed`
  DType dtype;
  const sharding::FlatLayout* layout;
  /// What lies in `layout`, with the names of the parameters and the shapes of the values.
  const std::vector<sharding::ParameterRecord>* records;
  std::vector<std::size_t> parameters;  ///< indices of those that have values
  sharding::Shard owned;                ///< this rank's
  /// Rank r holds shard r % shards, and ranks 0 to shards - 1 hold every shard once. 1: every rank
  /// holds all of it.
  int shards = 1;
  bool ignored = false;  ///< each rank has its own
  optim::PackedStates* packed = nullptr;
  std::size_t state = 0;  ///< of `packed`
};
std::vector<FlatArray> weight_arrays(detail::ModelState& model);
/// States in 8 bits are saved in float32, as those of the same optimizer that are not, and loaded
/// from it without a change.
std::vector<FlatArray> moment_arrays(detail::ModelState& model, detail::OptimizerState& optimizer);

/// Returns this rank's values of an array or of a buffer.
HeldPtr hold(detail::ModelState& model, const FlatArray& array);
HeldPtr hold(detail::ModelState& model, const acc::model::BufferRecord& buffer);

/// Returns `FlatArray::shards` of a flat parameter.
int shards_of(detail::ModelState& model, const sharding::FlatParameter& flat);

/// Returns the dtype in which values are stored: the one of the same name. Throws
/// Error(not_supported) that names the tensor if files have none.
Dtype stored_dtype(DType dtype, const std::string& tensor = "values");
/// Returns the dtype in memory of stored values; nothing if the runtime has none.
std::optional<DType> dtype_in_memory(Dtype stored) noexcept;
/// Returns the optimizer's parameter groups in the form of the equivalent torch optimizer.
std::vector<StoredGroup> stored_groups(const detail::OptimizerState& optimizer);

/// The runtime's own entry among the random states of rank 0: the seed of model number `index`.
/// Names with this prefix are reserved.
inline constexpr const char* kSeedPrefix = "acc.seed.";
std::string seed_name(int index);

bool is_rank_zero(detail::ModelState& model);
/// Rank 0 shows the progress of its own part, which stands for that of all ranks.
ShowProgress shows_progress(detail::ModelState& model);
/// Size of this rank's values of the arrays in bytes.
std::uint64_t owned_nbytes(const std::vector<FlatArray>& arrays);
/// Size of the arrays with the shards of all ranks, in bytes.
std::uint64_t full_nbytes(const std::vector<FlatArray>& arrays);

}  // namespace acc::state_dict
