// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/torch/torch_file.hpp"
#include "pickle/node.hpp"

#include <cstdint>

namespace acc::checkpoint::torch {

/// Returns a number of a file, given as a number or as a tensor of one element (optimizers store
/// their steps, and sometimes their learning rates, as tensors). The checksum of such a tensor is
/// checked. Throws Error(config) with the key.
double scalar(const TorchFile& file, const pickle::Node& node);

/// The same for a count: an integer from 0 to 2^53.
std::int64_t count(const TorchFile& file, const pickle::Node& node);

}  // namespace acc::checkpoint::torch
