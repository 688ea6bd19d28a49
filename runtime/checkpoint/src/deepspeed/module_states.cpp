// SPDX-License-Identifier: Apache-2.0
#include "deepspeed/module_states.hpp"

#include "pickle/node.hpp"
#include "torch/scalar.hpp"

#include <algorithm>
#include <array>
#include <string_view>

namespace acc::checkpoint::deepspeed {

namespace {

using pickle::Node;
using torch::TorchFile;

/// Keys that are read, and those that describe the run.
constexpr std::array<std::string_view, 19> kReadKeys = {"module",
                                                        "param_shapes",
                                                        "frozen_param_shapes",
                                                        "frozen_param_fragments",
                                                        "shared_params",
                                                        "buffer_names",
                                                        "optimizer",
                                                        "global_steps",
                                                        "skipped_steps",
                                                        "global_samples",
                                                        "dp_world_size",
                                                        "mp_world_size",
                                                        "ds_config",
                                                        "ds_version",
                                                        kWriterKey,
                                                        "sparse_tensor_module_names",
                                                        "num_experts",
                                                        "data_sampler",
                                                        "random_ltd"};

NamedShapes read_shapes(const Node& node) {
  NamedShapes result;
  for (const auto& [name, shape] : node.entries()) {
    result.emplace_back(name, shape.shape());
  }
  return result;
}

// Values without elements (None) and a module's "_extra_state" are no tensors.
NamedTensors read_tensors(const TorchFile& file, const Node& node,
                          std::vector<std::string>& unread) {
  NamedTensors result;
  for (const auto& [name, value] : node.entries()) {
    if (TorchFile::is_tensor(value.value())) {
      result.emplace_back(name, file.tensor(value.value()));
    } else if (value.is_none() || name.ends_with("_extra_state")) {
      unread.push_back(name);
    } else {
      value.refuse("a tensor");
    }
  }
  return result;
}

std::int64_t read_count(const TorchFile& file, const Node& root, const char* key) {
  const auto node = root.find(key);
  return node ? torch::count(file, *node) : 0;
}

void check_parallelism(const Node& root) {
  if (const auto size = root.find("mp_world_size"); size && size->integer() != 1) {
    size->refuse("1, because tensor-parallel checkpoints are not supported");
  }
}

}  // namespace

// Keys that are missing or None are skipped: stage 0 has no param_shapes, and older versions of
// DeepSpeed have no frozen parameters.
ModuleStates read_module_states(const InputPath& path) {
  const TorchFile file(path);
  const Node root(file.root(), path.string());
  check_parallelism(root);
  ModuleStates result;
  result.path = path;
  if (const auto groups = root.find("param_shapes")) {
    result.has_zero = true;
    for (const Node& group : groups->items()) {
      result.groups.push_back(read_shapes(group));
    }
  }
  const auto optimizer = root.find("optimizer");
  result.has_optimizer = optimizer && !optimizer->is_none();
  if (const auto shapes = root.find("frozen_param_shapes")) {
    result.frozen = read_shapes(*shapes);
  }
  if (const auto fragments = root.find("frozen_param_fragments")) {
    result.fragments = read_tensors(file, *fragments, result.unread);
  }
  if (const auto shared = root.find("shared_params")) {
    for (const auto& [second, name] : shared->entries()) {
      result.shared.emplace_back(second, name.text());
    }
  }
  if (const auto buffers = root.find("buffer_names")) {
    for (const Node& name : buffers->items()) {
      result.buffers.insert(name.text());
    }
  }
  result.module = read_tensors(file, root.at("module"), result.unread);
  for (const auto& [name, value] : root.entries()) {
    if (std::ranges::find(kReadKeys, name) == kReadKeys.end() && !value.is_none()) {
      result.unread.push_back(name);
    }
  }
  result.global_steps = read_count(file, root, "global_steps");
  result.skipped_steps = read_count(file, root, "skipped_steps");
  const auto writer = root.find(kWriterKey);
  const auto version = root.find("ds_version");
  result.writer = writer ? writer->text()
                         : "DeepSpeed" + (version && version->is_text() ? " " + version->text()
                                                                        : std::string());
  return result;
}

}  // namespace acc::checkpoint::deepspeed
