// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/forms.hpp"
#include "state_dict/saved_arrays.hpp"

#include <iterator>
#include <map>

namespace acc::state_dict {
namespace {

using sharding::FlatParameter;

/// Returns FSDP 1's name for a unit's flat parameter. Further flat parameters of a unit get
/// numbers.
std::string key_of(const FlatParameter& flat, int number) {
  const std::string& unit = flat.unit_name();
  return (unit.empty() ? "" : unit + ".") + "_flat_param" +
         (number == 0 ? "" : "_" + std::to_string(number));
}

/// Returns the layout of the flat parameters. It is the same on every rank. Units of the same name
/// get numbered keys, in the order of the model.
LocalModel local_layout_of(detail::ModelState& model) {
  LocalModel layout;
  std::map<std::string, int> numbers;
  for (const FlatParameter* flat : model.flats()) {
    LocalFlat cut{.key = key_of(*flat, numbers[flat->unit_name()]++),
                  .padded_numel = flat->layout().padded_numel,
                  .shards = shards_of(model, *flat),
                  .members = {}};
    for (std::size_t i = 0; i < flat->parameters().size(); ++i) {
      const auto& record = flat->parameters()[i];
      cut.members.push_back({record.name, record.aliases, record.shape, flat->layout().offsets[i]});
    }
    layout.flats.push_back(std::move(cut));
  }
  for (const auto* buffer : model.buffers()) {
    std::ranges::move(buffer->names(), std::back_inserter(layout.buffers));
  }
  return layout;
}

}  // namespace

PlannedLocal plan_local_model(detail::ModelState& model) {
  PlannedLocal planned{.layout = local_layout_of(model), .tensors = {}, .held = {}};
  const auto arrays = weight_arrays(model);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    planned.tensors.push_back(
        {planned.layout.flats[i].key, stored_dtype(arrays[i].dtype), Shape{arrays[i].owned.numel}});
    planned.held.push_back(hold(model, arrays[i]));
  }
  for (const auto* buffer : model.buffers()) {
    const HeldPtr held = hold(model, *buffer);
    for (std::string& name : buffer->names()) {
      planned.tensors.push_back(
          {std::move(name), stored_dtype(buffer->dtype, buffer->name), buffer->shape});
      planned.held.push_back(held);
    }
  }
  return planned;
}

void write_local_model(const PlannedLocal& planned, const std::filesystem::path& path,
                       ProgressMeter& meter) {
  accelerate::write_model_file(path, planned.tensors, [&](std::size_t i, const torch::Sink& sink) {
    planned.held[i]->read_all(counted(sink, meter));
  });
}

}  // namespace acc::state_dict
