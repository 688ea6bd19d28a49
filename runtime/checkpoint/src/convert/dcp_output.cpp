// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "catalog/group_values.hpp"
#include "convert/output_set.hpp"
#include "convert/outputs.hpp"
#include "convert/save_folder.hpp"

#include <set>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

/// Plans "model.NAME" entries below the key "model", as Accelerate saves them.
DcpFolder model_folder_of(const std::vector<OutputTensor>& weights) {
  DcpFolder folder;
  for (const OutputTensor& tensor : weights) {
    folder.plan.tensors.push_back({"model." + tensor.name,
                                   {std::string("model"), tensor.name},
                                   tensor.dtype,
                                   tensor.from->shape});
    folder.sources.push_back(tensor.from);
  }
  return folder;
}

void add_state(DcpFolder& folder, const std::string& parameter, const std::string& kind,
               Dtype dtype, const Shape& shape, const StoredTensor* source) {
  folder.plan.tensors.push_back({"optimizer.state." + parameter + "." + kind,
                                 {std::string("optimizer"), std::string("state"), parameter, kind},
                                 dtype,
                                 shape});
  folder.sources.push_back(source);
}

/// Adds a step per parameter if the source has only one for all. torch stores steps next to the
/// moments.
void add_steps(DcpFolder& folder, const Stored& stored, const std::vector<OutputTensor>& moments) {
  if (!counts_steps(optimizer_of(stored)) || !stored.training.step) {
    return;
  }
  folder.step = static_cast<float>(*stored.training.step);
  std::set<std::string> seen;
  for (const OutputTensor& tensor : moments) {
    if (seen.insert(tensor.name).second && stored.catalog.find(tensor.name, "step") == nullptr) {
      add_state(folder, tensor.name, "step", Dtype::f32, {}, nullptr);
    }
  }
}

// Adds each key of each parameter group as its own entry.
void add_groups(DcpFolder& folder, const Stored& stored) {
  for (std::size_t i = 0; i < stored.training.groups.size(); ++i) {
    for (accelerate::GroupValue& value :
         accelerate::group_values(optimizer_of(stored), stored.training.groups[i])) {
      folder.plan.values.push_back({"optimizer.param_groups." + std::to_string(i) + "." + value.key,
                                    {std::string("optimizer"), std::string("param_groups"),
                                     static_cast<std::int64_t>(i), value.key},
                                    std::move(value.pickle),
                                    0});
    }
  }
}

DcpFolder optimizer_folder_of(const Stored& stored, const std::vector<OutputTensor>& moments) {
  DcpFolder folder;
  for (const OutputTensor& tensor : moments) {
    add_state(folder, tensor.name, tensor.from->kind, tensor.dtype, tensor.from->shape,
              tensor.from);
  }
  add_steps(folder, stored, moments);
  add_groups(folder, stored);
  return folder;
}

}  // namespace

// A source without optimizer state, or without weights, gives a single DCP folder. With both, the
// output is a save folder.
Result write_dcp(const Stored& stored, const fs::path& out, const Options& options) {
  const std::vector<OutputTensor> weights = weights_of(stored, options.dtype);
  const std::vector<OutputTensor> moments = moments_of(stored);
  std::vector<std::pair<std::string, DcpFolder>> folders;
  if (!weights.empty()) {
    folders.emplace_back(accelerate::model_folder(0), model_folder_of(weights));
  }
  if (!moments.empty()) {
    folders.emplace_back(accelerate::optimizer_folder(0), optimizer_folder_of(stored, moments));
  }
  if (folders.size() == 1) {  // the output itself is the DCP folder
    folders.front().first.clear();
  }
  TensorReader reader(stored.catalog);
  SaveFolder result(stored.path, out, options);
  for (auto& [name, folder] : folders) {
    folder.cut(options.num_processes);
    result.add(name, std::move(folder), reader);
  }
  if (folders.size() == 1) {
    return result.write(std::nullopt);
  }
  if (stored.format == Format::save_folder) {
    result.add_other_state();
  }
  Manifest manifest = manifest_of(stored);
  manifest.others.clear();
  return result.write(std::move(manifest));
}

}  // namespace acc::checkpoint::conversion
