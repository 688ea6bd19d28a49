// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"
#include "acc/base/object_store.hpp"
#include "acc/base/output_file.hpp"
#include "acc/base/written_file.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/files/atomic_folder.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "acc/checkpoint/safetensors/tensor_set.hpp"
#include "sharding/initial_values.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/forms.hpp"
#include "state_dict/stored_model.hpp"

#include <cstdio>
#include <map>
#include <optional>

namespace acc::state_dict {

using acc::model::BufferRecord;
using detail::ModelState;
using sharding::FlatParameter;

namespace fs = std::filesystem;

namespace {

/// Default of max_shard_size in save_model of Accelerate and transformers, in bytes.
constexpr std::uint64_t kMaxShardNbytes = 10'000'000'000;

/// Collective: a rank that has failed still takes part.
void load_buffers(ModelState& model, std::optional<StoredModel>& stored, Attempt& attempt) {
  for (BufferRecord* buffer : model.buffers()) {
    attempt([&] {
      if (stored) {
        stored->read_buffer(model, *buffer);
      }
    });
    if (model.context().settings.sharding.cpu_ram_efficient_loading) {
      acc::model::broadcast_values(model.context(), buffer->values->data(), buffer->nbytes());
    }
  }
}

}  // namespace

// With cpu_ram_efficient_loading only rank 0 reads, and sends the values to the others.
void load_weights(ModelState& model, const std::string& path) {
  const bool rank_zero_reads = model.context().settings.sharding.cpu_ram_efficient_loading;
  std::optional<StoredModel> stored;
  Attempt attempt;
  attempt([&] {
    if (is_rank_zero(model) || !rank_zero_reads) {
      stored.emplace(path, Want::weights, 0);
      stored->check(model, BuffersMay::be_missing);
    }
  });
  attempt.settle(model.context().groups, "loading " + path);
  await_readers(model);
  model.context().groups.world->barrier()->wait();
  ProgressMeter meter(
      shows_progress(model), Component::runtime, "loading " + path,
      rank_zero_reads ? full_nbytes(weight_arrays(model)) : owned_nbytes(weight_arrays(model)));
  if (stored) {
    stored->count_into(meter);
  }
  for (FlatParameter* flat : model.flats()) {
    const sharding::ValueSource source = [&](std::size_t index, std::int64_t offset,
                                             std::span<float> out) {
      stored->read(flat->parameters()[index], "param", offset, std::ssize(out), Dtype::f32,
                   out.data());
    };
    if (rank_zero_reads) {
      sharding::fill_by_rank_zero(model.context(), *flat, source);
    } else {
      attempt([&] { sharding::fill_by_each_rank(model.context(), *flat, source); });
    }
    flat->publish();
  }
  load_buffers(model, stored, attempt);
  prove_unchanged(attempt, model.context().groups, stored ? stored->stored().path : InputPath(),
                  path);
  attempt.settle(model.context().groups, "loading " + path);
}

namespace {

/// Exports to one file, which is complete or absent.
void export_file(ModelState& model, const fs::path& path, std::optional<DType> dtype) {
  const auto arrays = weight_arrays(model);
  ProgressMeter meter(shows_progress(model), Component::runtime, "writing " + path.string(),
                      full_nbytes(arrays));
  GatheredTensors tensors(model, arrays, weight_items(model, arrays), {.meter = &meter});
  Attempt attempt;
  attempt([&] {
    if (!is_rank_zero(model)) {
      return;
    }
    // The extension selects the format, so the temporary name keeps it.
    const fs::path temporary =
        folder_of(path) / (path.stem().string() + ".acc-tmp" + path.extension().string());
    if (is_object(path)) {  // appears when it is complete
      return write_weights_file(path, tensors, 0, tensors.items().size(), dtype);
    }
    check_replaceable(path);
    try {
      write_weights_file(temporary, tensors, 0, tensors.items().size(), dtype);
      replace_file(temporary, path);
    } catch (...) {
      std::error_code ignored;
      fs::remove(temporary, ignored);
      throw;
    }
  });
  tensors.finish();
  attempt.settle(model.context().groups, "writing " + path.string());
}

SafetensorsPlan plan_folder(const std::vector<FullItem>& items, const ExportOptions& options) {
  std::vector<NamedTensor> tensors;
  for (const FullItem& item : items) {
    tensors.push_back({item.name, written_dtype(item, options.dtype), item.shape});
  }
  return plan_safetensors(std::move(tensors), options.max_shard_nbytes == 0
                                                  ? kMaxShardNbytes
                                                  : options.max_shard_nbytes);
}

/// Returns the items in the order in which the plan's files contain them.
std::vector<FullItem> in_order_of(const SafetensorsPlan& plan, std::vector<FullItem> items) {
  std::map<std::string, FullItem> by_name;
  for (FullItem& item : items) {
    by_name.emplace(item.name, std::move(item));
  }
  std::vector<FullItem> ordered;
  for (const SafetensorsPlan::File& file : plan.files) {
    for (const NamedTensor& tensor : file.tensors) {
      ordered.push_back(std::move(by_name.at(tensor.name)));
    }
  }
  return ordered;
}

bool is_weights_file(const std::string& path) {
  return path == "model.safetensors.index.json" ||
         (path.starts_with("model") && path.ends_with(".safetensors") &&
          path.find('/') == std::string::npos);
}

// Writes the shards in the order of the plan, and the index last.
void write_folder(const fs::path& folder, const SafetensorsPlan& plan, GatheredTensors& tensors,
                  std::optional<DType> dtype) {
  std::size_t first = 0;
  for (const SafetensorsPlan::File& file : plan.files) {
    write_weights_file(folder / file.name, tensors, first, file.tensors.size(), dtype);
    first += file.tensors.size();
  }
  if (!plan.index.empty()) {
    OutputFile index(folder / "model.safetensors.index.json");
    index.write(plan.index);
    index.close();
  }
}

// Rank 0 writes; the other ranks take part in the gathers by `finish`, also if rank 0 has failed.
void export_folder(ModelState& model, const fs::path& path, const ExportOptions& options) {
  const auto arrays = weight_arrays(model);
  auto items = weight_items(model, arrays);
  const SafetensorsPlan plan = plan_folder(items, options);
  ProgressMeter meter(shows_progress(model), Component::runtime, "writing " + path.string(),
                      full_nbytes(arrays));
  GatheredTensors tensors(model, arrays, in_order_of(plan, std::move(items)), {.meter = &meter});
  Attempt attempt;
  attempt([&] {
    if (!is_rank_zero(model)) {
      return;
    }
    AtomicFolder folder(path, is_weights_file);
    folder.begin();
    try {
      folder.make();
      write_folder(folder.temporary(), plan, tensors, options.dtype);
      folder.commit();
    } catch (...) {
      folder.abandon();
      throw;
    }
  });
  tensors.finish();
  attempt.settle(model.context().groups, "writing " + path.string());
}

}  // namespace

// The extension decides: a file for .safetensors and .bin, otherwise a folder.
void export_weights(ModelState& model, const std::string& path, const ExportOptions& options) {
  const fs::path target(path);
  if (target.extension() == ".safetensors" || target.extension() == ".bin") {
    export_file(model, target, options.dtype);
  } else {
    export_folder(model, target, options);
  }
}

// A visit may throw, or skip tensors. `finish` keeps the gathers of all ranks aligned.
void state_dict(ModelState& model, const StateDictOptions& options, const VisitTensor& visit) {
  const auto arrays = weight_arrays(model);
  GatheredTensors tensors(model, arrays, weight_items(model, arrays),
                          {.every_rank = !options.rank0_only, .on_host = options.offload_to_cpu});
  Attempt attempt;
  attempt([&] {
    if (options.rank0_only && !is_rank_zero(model)) {
      return;
    }
    for (std::size_t i = 0; i < tensors.items().size(); ++i) {
      const FullItem& item = tensors.items()[i];
      visit({item.name, item.shape, item.dtype, tensors.bring(i)});
    }
  });
  tensors.finish();
  attempt.settle(model.context().groups, "visiting the state dict");
}

}  // namespace acc::state_dict
