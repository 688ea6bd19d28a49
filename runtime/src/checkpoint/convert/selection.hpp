#pragma once

#include "checkpoint/catalog/open.hpp"
#include "checkpoint/convert/tiles.hpp"

#include <optional>
#include <string>
#include <vector>

namespace acc::checkpoint::conversion {

/// All that is no optimizer's state, in the order of the checkpoint; `dtype`: of the real ones.
std::vector<OutputTensor> weights_of(const Stored& stored, std::optional<Dtype> dtype);
/// The optimizer's state, in the order of the checkpoint, as it is stored.
std::vector<OutputTensor> moments_of(const Stored& stored);
bool has_optimizer(const Stored& stored);
/// "adamw" or "sgd": as the checkpoint says, else as its kinds of state show; empty where they do
/// not.
std::string known_optimizer(const Stored& stored);
/// The same; throws Error(config) where it is empty.
std::string optimizer_of(const Stored& stored);

}  // namespace acc::checkpoint::conversion
