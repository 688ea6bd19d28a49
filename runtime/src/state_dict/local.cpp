// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/device_bytes.hpp"
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

}  // namespace

// Units of the same name get numbered keys, in the order of the model, which is the same on every
// rank.
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

void write_local_model(detail::ModelState& model, const LocalModel& layout,
                       const std::filesystem::path& path, ProgressMeter& meter) {
  const auto arrays = weight_arrays(model);
  std::vector<const acc::model::BufferRecord*> buffers;  // by item after the arrays
  std::vector<accelerate::FullTensor> list;
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    list.push_back(
        {layout.flats[i].key, stored_dtype(arrays[i].dtype), Shape{arrays[i].flat->owned().numel}});
  }
  for (const auto* buffer : model.buffers()) {
    for (std::string& name : buffer->names()) {
      list.push_back({std::move(name), stored_dtype(buffer->dtype, buffer->name), buffer->shape});
      buffers.push_back(buffer);
    }
  }
  accelerate::write_model_file(path, list, [&](std::size_t i, const torch::Sink& to) {
    const torch::Sink sink = counted(to, meter);
    if (i < arrays.size()) {
      read_bytes(
          *model.context().updater, arrays[i].values,
          static_cast<std::size_t>(arrays[i].flat->owned().numel) * nbytes_of(arrays[i].dtype),
          sink);
    } else {
      sink(acc::model::read_buffer(model.context(), *buffers[i - arrays.size()]));
    }
  });
}

}  // namespace acc::state_dict
