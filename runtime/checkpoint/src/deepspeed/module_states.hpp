// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace acc::checkpoint::deepspeed {

using NamedShapes = std::vector<std::pair<std::string, Shape>>;
using NamedTensors = std::vector<std::pair<std::string, torch::TensorRef>>;

/// Our additional key in DeepSpeed's files: the program that wrote the file.
inline constexpr const char* kWriterKey = "acc_writer";

/// Content of a *_model_states.pt file.
struct ModuleStates {
  InputPath path;
  bool has_optimizer = false;       ///< without ZeRO: the optimizer's state is in this file
  bool has_zero = false;            ///< ZeRO was on: `groups` describes the flat arrays
  std::vector<NamedShapes> groups;  ///< param_shapes, in the order of the flat arrays
  NamedShapes frozen;               ///< frozen_param_shapes
  NamedTensors fragments;           ///< their values: whole (stages 1 and 2) or this rank's part
  std::vector<std::pair<std::string, std::string>> shared;  ///< second name, first name
  std::set<std::string> buffers;
  NamedTensors module;  ///< 16-bit weights and buffers; stage 3: placeholders and buffers
  std::int64_t global_steps = 0;
  std::int64_t skipped_steps = 0;
  std::vector<std::string> unread = {};  ///< names of values that are no tensors, and other keys
  std::string writer;                    ///< "DeepSpeed 0.19.8", or our writer
};

/// Throws Error(config) with file and key.
ModuleStates read_module_states(const InputPath& path);

}  // namespace acc::checkpoint::deepspeed
