// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "state_dict/forms.hpp"
#include "state_dict/saved_arrays.hpp"

#include <algorithm>
#include <utility>
#include <vector>

namespace acc::state_dict {
namespace {

using acc::model::BufferRecord;
using detail::ModelState;
using sharding::ParameterRecord;
using torch::Sink;

/// Passes elements [begin, begin + numel) of an array to `sink`.
using Source = std::function<void(std::int64_t begin, std::int64_t numel, const Sink& sink)>;

/// Collects the tensors of a folder and the arrays in which they lie, and returns a plan for all
/// ranks and a source of bytes for this one.
class FolderBuilder {
 public:
  FolderBuilder(ModelState& model, std::string top) : model_(model), top_(std::move(top)) {}

  /// Adds the parameters of a flat array. `names` returns the paths below the top under which a
  /// parameter is saved.
  template <typename Names>
  void add(const FlatArray& array, const Names& names) {
    dcp::CutArray cut{.members = {},
                      .padded_numel = array.layout->padded_numel,
                      .shards = array.shards,
                      .rank_zero_only = array.ignored};
    for (const std::size_t i : array.parameters) {
      const ParameterRecord& record = (*array.records)[i];
      for (dcp::Path& path : names(record)) {
        cut.members.push_back({tensors_.size(), array.layout->offsets[i]});
        add_tensor(std::move(path), stored_dtype(array.dtype), record.shape);
      }
    }
    add_array(std::move(cut), hold(model_, array));
  }

  // Buffers are equal on all ranks, so rank 0 writes them whole.
  void add(const BufferRecord& buffer) {
    dcp::CutArray cut{
        .members = {}, .padded_numel = buffer.numel, .shards = 1, .rank_zero_only = true};
    for (std::string& name : buffer.names()) {
      cut.members.push_back({tensors_.size(), 0});
      add_tensor({std::move(name)}, stored_dtype(buffer.dtype, buffer.name), buffer.shape);
    }
    add_array(std::move(cut), hold(model_, buffer));
  }

  /// Adds a scalar for each of `paths`, all with `value`, which every rank knows.
  void add_scalars(const std::vector<dcp::Path>& paths, float value) {
    dcp::CutArray cut{.members = {}, .padded_numel = std::ssize(paths)};
    for (std::int64_t i = 0; i < std::ssize(paths); ++i) {
      cut.members.push_back({tensors_.size(), i});
      add_tensor(paths[static_cast<std::size_t>(i)], Dtype::f32, {});
    }
    arrays_.push_back(std::move(cut));
    held_.push_back(nullptr);
    sources_.push_back([value](std::int64_t, std::int64_t count, const Sink& sink) {
      for (std::int64_t i = 0; i < count; ++i) {
        sink(std::as_bytes(std::span(&value, 1)));
      }
    });
  }

  /// Adds a pickled value.
  void add_value(dcp::Path path, std::string pickle) {
    path.insert(path.begin(), top_);
    values_.push_back({dcp::joined_by_dots(path), std::move(path), std::move(pickle), 0});
  }

  // The cut rule needs all tensors, so it is made last. Arrays and sources have the same numbers.
  PlannedFolder finish(std::string name) {
    const int ranks = model_.context().groups.world->size();
    auto rule = cut_arrays(arrays_, tensors_, ranks);
    narrow(rule->chunks(model_.context().groups.world->rank()));
    return {std::move(name),
            {std::move(tensors_), std::move(values_), ranks, std::move(rule)},
            [sources = std::move(sources_)](const dcp::PlannedChunk& chunk, const Sink& sink) {
              sources[chunk.source](chunk.source_begin, chunk.box.numel(), sink);
            },
            std::move(held_)};
  }

 private:
  void add_array(dcp::CutArray cut, HeldPtr held) {
    arrays_.push_back(std::move(cut));
    sources_.push_back([held](std::int64_t begin, std::int64_t numel, const Sink& sink) {
      held->read(begin, numel, sink);
    });
    held_.push_back(std::move(held));
  }

  /// Leaves out of the held values what this rank does not write, between its first and its last
  /// element of each array.
  void narrow(const std::vector<dcp::PlannedChunk>& chunks) {
    std::vector<std::pair<std::int64_t, std::int64_t>> written(held_.size());
    for (const dcp::PlannedChunk& chunk : chunks) {
      auto& [begin, end] = written[chunk.source];
      if (const std::int64_t numel = chunk.box.numel(); numel > 0) {
        begin = begin == end ? chunk.source_begin : std::min(begin, chunk.source_begin);
        end = std::max(end, chunk.source_begin + numel);
      }
    }
    for (std::size_t i = 0; i < held_.size(); ++i) {
      if (held_[i] != nullptr) {
        held_[i]->narrow(written[i].first, written[i].second);
      }
    }
  }

  void add_tensor(dcp::Path path, Dtype dtype, const Shape& shape) {
    path.insert(path.begin(), top_);
    tensors_.push_back({dcp::joined_by_dots(path), std::move(path), dtype, shape});
  }

  ModelState& model_;
  std::string top_;
  std::vector<dcp::PlannedTensor> tensors_;
  std::vector<dcp::PlannedValue> values_;
  std::vector<dcp::CutArray> arrays_;
  std::vector<Source> sources_;
  std::vector<HeldPtr> held_;
};

std::vector<dcp::Path> weight_paths(const ParameterRecord& record) {
  std::vector<dcp::Path> paths;
  for (std::string& name : record.names()) {
    paths.push_back({std::move(name)});
  }
  return paths;
}

/// Adds a step per parameter, as torch's AdamW counts them. Its SGD has no steps and ignores these.
void add_steps(FolderBuilder& builder, detail::OptimizerState& optimizer) {
  std::vector<dcp::Path> paths;
  for (const auto& state : optimizer.flats()) {
    for (const ParameterRecord& record : state.flat->parameters()) {
      paths.push_back({"state", record.name, "step"});
    }
  }
  builder.add_scalars(paths, static_cast<float>(optimizer.steps));
}

}  // namespace

PlannedFolder plan_model_folder(ModelState& model, int index) {
  FolderBuilder builder(model, "model");
  for (const FlatArray& array : weight_arrays(model)) {
    builder.add(array, weight_paths);
  }
  for (const BufferRecord* buffer : model.buffers()) {
    builder.add(*buffer);
  }
  return builder.finish(accelerate::model_folder(index));
}

PlannedFolder plan_optimizer_folder(const Part& part, int index) {
  FolderBuilder builder(*part.model, "optimizer");
  for (const FlatArray& array : moment_arrays(*part.model, *part.optimizer)) {
    builder.add(array, [&array](const ParameterRecord& record) {
      return std::vector<dcp::Path>{{"state", record.name, array.kind}};
    });
  }
  add_steps(builder, *part.optimizer);
  std::int64_t number = 0;
  for (const StoredGroup& group : stored_groups(*part.optimizer)) {
    for (auto& value : accelerate::group_values(part.optimizer->name(), group)) {
      builder.add_value({"param_groups", number, value.key}, std::move(value.pickle));
    }
    ++number;
  }
  return builder.finish(accelerate::optimizer_folder(index));
}

}  // namespace acc::state_dict
