#pragma once

#include "checkpoint/pickle/node.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>

namespace acc::checkpoint::torch {

/// A number of a file, as itself or as a tensor of one element, as optimizers keep their steps and
/// at times their rates; such a tensor's checksum is checked. Throws Error(config) that names its
/// key.
double scalar(const TorchFile& file, const pickle::Node& node);

/// The same, of what is counted: an integer from 0 to 2^53.
std::int64_t count(const TorchFile& file, const pickle::Node& node);

}  // namespace acc::checkpoint::torch
