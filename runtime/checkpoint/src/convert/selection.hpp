#pragma once

#include "acc/checkpoint/open/open.hpp"
#include "convert/tiles.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// Returns all tensors that are not optimizer state, in the order of the checkpoint. `dtype`
/// replaces the dtype of real tensors.
std::vector<OutputTensor> weights_of(const Stored& stored, std::optional<Dtype> dtype);
/// Returns the optimizer's state, in the order of the checkpoint, with its dtypes.
std::vector<OutputTensor> moments_of(const Stored& stored);
bool has_optimizer(const Stored& stored);
/// Returns "adamw" or "sgd", as the checkpoint says or as its kinds of state show; "" if neither
/// tells.
std::string known_optimizer(const Stored& stored);
/// The same; throws Error(config) if it is unknown.
std::string optimizer_of(const Stored& stored);

}  // namespace acc::checkpoint::conversion
