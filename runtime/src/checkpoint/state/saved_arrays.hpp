#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/tensor/dtype.hpp"
#include "model/model_state.hpp"
#include "optim/optimizer_state.hpp"

#include <string>
#include <vector>

/// What of a model and its optimizer a checkpoint holds.
namespace acc::checkpoint {

/// Weights or moments of a flat parameter, as the optimizer updates them.
struct FlatArray {
  sharding::FlatParameter* flat;
  std::string kind;  ///< "param", "exp_avg", "exp_avg_sq", "momentum_buffer"
  void* values;      ///< [owned().numel], memory of the updater
  DType dtype;
};
std::vector<FlatArray> weight_arrays(detail::ModelState& model);
std::vector<FlatArray> moment_arrays(detail::ModelState& model, detail::OptimizerState& optimizer);

/// Into how many shards a flat parameter is cut: rank r holds shard r % shards (or all of them),
/// and ranks 0 to shards - 1 hold it once. 1: it is whole everywhere.
int shards_of(detail::ModelState& model, const sharding::FlatParameter& flat);

/// In which dtype values of a parameter are stored; those of buffers are f32.
Dtype stored_dtype(DType dtype);
/// The optimizer's parameter groups, as its torch twin has them.
std::vector<StoredGroup> stored_groups(const detail::OptimizerState& optimizer);

/// The runtime's own among the random states of rank 0: the seed of model number `index`. Names
/// that begin so are not the program's.
inline constexpr const char* kSeedPrefix = "acc.seed.";
std::string seed_name(int index);

bool is_rank_zero(detail::ModelState& model);

}  // namespace acc::checkpoint
