// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "catalog/group_values.hpp"

#include <array>
#include <bit>
#include <map>

namespace acc::checkpoint::accelerate {

namespace fs = std::filesystem;

namespace {

std::uint64_t nbytes_of(Dtype dtype, const Shape& shape) {
  return static_cast<std::uint64_t>(numel_of(shape)) * size_of(dtype);
}

/// The moments of one parameter. Storages are numbered as the moments in the caller's list.
struct ParameterState {
  std::string name;
  std::vector<std::size_t> moments;  ///< indices in the list of moments
  bool has_step = false;             ///< one of them is its step
};

// Groups the moments by parameter, in the order in which the names first occur.
std::vector<ParameterState> by_parameter(const std::vector<FullMoment>& moments) {
  std::vector<ParameterState> result;
  std::map<std::string, std::size_t> index;
  for (std::size_t i = 0; i < moments.size(); ++i) {
    const auto [entry, is_new] = index.try_emplace(moments[i].name, result.size());
    if (is_new) {
      result.push_back({.name = moments[i].name, .moments = {}});
    }
    result[entry->second].moments.push_back(i);
    result[entry->second].has_step |= moments[i].kind == "step";
  }
  return result;
}

void push_groups(pickle::Writer& writer, const std::string& optimizer,
                 const std::vector<StoredGroup>& groups) {
  writer.begin_list();
  for (const StoredGroup& group : groups) {
    writer.begin_dict();
    for_each_group_value(optimizer, group,
                         [&writer](const std::string& key, const PushValue& push) {
                           writer.text(key);
                           push(writer);
                         });
    writer.end_dict();
  }
  writer.end_list();
}

}  // namespace

// The pickle is complete before the first tensor is written, because `data.pkl` is the first
// record.
void write_model_file(const fs::path& path, const std::vector<FullTensor>& tensors,
                      const FillTensor& fill) {
  pickle::Writer writer;
  writer.begin_ordered_dict();
  std::vector<int> storages;  // of the tensors
  int count = 0;
  for (const FullTensor& tensor : tensors) {
    storages.push_back(tensor.same_as ? storages.at(*tensor.same_as) : count++);
    writer.text(tensor.name);
    torch::push_tensor(writer, {tensor.dtype, tensor.shape}, storages.back());
  }
  writer.end_ordered_dict();
  OutputFile out(path);
  torch::TorchFileWriter file(out, writer.finish());
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].same_as) {
      file.storage(nbytes_of(tensors[i].dtype, tensors[i].shape),
                   [&](const torch::Sink& sink) { fill(i, sink); });
    }
  }
  file.finish();
  out.close();
}

void write_optimizer_file(const fs::path& path, const std::string& optimizer, std::int64_t step,
                          const std::vector<StoredGroup>& groups,
                          const std::vector<FullMoment>& moments, const FillTensor& fill) {
  const std::vector<ParameterState> states = by_parameter(moments);
  // torch's SGD has no step. The step tensors must not share a storage, because torch adds to each
  // of them in place.
  const bool counts = counts_steps(optimizer);
  int storage = static_cast<int>(moments.size());
  pickle::Writer writer;
  writer.begin_dict().text("state").begin_dict();
  for (const ParameterState& state : states) {
    writer.text(state.name).begin_dict();
    if (counts && !state.has_step) {
      writer.text("step");
      torch::push_tensor(writer, {Dtype::f32, {}}, storage++);
    }
    for (const std::size_t moment : state.moments) {
      writer.text(moments[moment].kind);
      torch::push_tensor(writer, {moments[moment].dtype, moments[moment].shape},
                         static_cast<int>(moment));
    }
    writer.end_dict();
  }
  writer.end_dict().text("param_groups");
  push_groups(writer, optimizer, groups);
  writer.end_dict();

  OutputFile out(path);
  torch::TorchFileWriter file(out, writer.finish());
  for (std::size_t i = 0; i < moments.size(); ++i) {
    file.storage(nbytes_of(moments[i].dtype, moments[i].shape),
                 [&](const torch::Sink& sink) { fill(i, sink); });
  }
  const auto steps = std::bit_cast<std::array<std::byte, 4>>(static_cast<float>(step));
  for (; storage > static_cast<int>(moments.size()); --storage) {
    file.storage(steps.size(), [&steps](const torch::Sink& sink) { sink(steps); });
  }
  file.finish();
  out.close();
}

}  // namespace acc::checkpoint::accelerate
