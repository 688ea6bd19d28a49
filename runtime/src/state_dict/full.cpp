// SPDX-License-Identifier: Apache-2.0
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "acc/checkpoint/safetensors/header.hpp"
#include "state_dict/forms.hpp"
#include "state_dict/gathered.hpp"

#include <algorithm>
#include <vector>

namespace acc::state_dict {
namespace {

using torch::Sink;

/// Number of elements that are converted at once. They stay in the cache.
constexpr std::size_t kTile = 1 << 16;

// Passes a tensor to `sink`, converted tile by tile if its dtype changes.
void emit(GatheredTensors& tensors, std::size_t index, Dtype to, const Sink& sink) {
  const FullItem& item = tensors.items()[index];
  const Dtype from = stored_dtype(item.dtype, item.name);
  const std::byte* values = tensors.bring(index);
  const auto numel = static_cast<std::size_t>(numel_of(item.shape));
  if (from == to) {
    sink({values, numel * size_of(from)});
    return;
  }
  std::vector<std::byte> tile(std::min(numel, kTile) * size_of(to));
  for (std::size_t at = 0; at < numel; at += kTile) {
    const std::size_t count = std::min(kTile, numel - at);
    convert(values + at * size_of(from), from, tile.data(), to, count);
    sink({tile.data(), count * size_of(to)});
  }
}

}  // namespace

// The requested dtype applies to parameters only; buffers keep theirs.
Dtype written_dtype(const FullItem& item, std::optional<DType> dtype) {
  return stored_dtype(item.buffer == nullptr ? dtype.value_or(item.dtype) : item.dtype, item.name);
}

// All headers are written first, so dtypes and shapes must be known before the first tensor is
// gathered.
void write_weights_file(const std::filesystem::path& path, GatheredTensors& tensors,
                        std::size_t first, std::size_t count, std::optional<DType> dtype) {
  const auto dtype_at = [&](std::size_t i) {
    return written_dtype(tensors.items()[first + i], dtype);
  };
  if (path.extension() != ".safetensors") {
    std::vector<accelerate::FullTensor> list;
    for (std::size_t i = 0; i < count; ++i) {
      const FullItem& item = tensors.items()[first + i];
      list.push_back({item.name, dtype_at(i), item.shape});
    }
    accelerate::write_model_file(path, list, [&](std::size_t i, const Sink& sink) {
      emit(tensors, first + i, dtype_at(i), sink);
    });
    return;
  }
  std::vector<NamedTensor> list;
  for (std::size_t i = 0; i < count; ++i) {
    const FullItem& item = tensors.items()[first + i];
    list.push_back({item.name, dtype_at(i), item.shape});
  }
  const SafetensorsLayout layout = lay_out_safetensors(list, {{"format", "pt"}});
  OutputFile file(path);
  file.reserve(layout.nbytes);
  file.write(layout.header);
  for (std::size_t i = 0; i < count; ++i) {
    emit(tensors, first + i, dtype_at(i),
         [&file](std::span<const std::byte> bytes) { file.write(bytes); });
  }
  file.close();
}

void write_full_model(detail::ModelState& model, const std::filesystem::path& path,
                      std::optional<DType> dtype, Attempt& attempt, ProgressMeter& meter) {
  const auto arrays = weight_arrays(model);
  GatheredTensors tensors(model, arrays, weight_items(model, arrays), {.meter = &meter});
  attempt([&] {
    // Other ranks only take part in the gathers, by `finish`.
    if (is_rank_zero(model)) {
      write_weights_file(path, tensors, 0, tensors.items().size(), dtype);
    }
  });
  tensors.finish();
}

// Moments are gathered in the order of the arrays, and written in the same order, while the pickle
// groups them by parameter.
void write_full_optimizer(const Part& part, const std::filesystem::path& path, Attempt& attempt,
                          ProgressMeter& meter) {
  const auto arrays = moment_arrays(*part.model, *part.optimizer);
  GatheredTensors tensors(*part.model, arrays, moment_items(arrays), {.meter = &meter});
  attempt([&] {
    if (!is_rank_zero(*part.model)) {
      return;
    }
    std::vector<accelerate::FullMoment> moments;
    for (const FullItem& item : tensors.items()) {
      moments.push_back({item.name, item.kind, stored_dtype(item.dtype), item.shape});
    }
    accelerate::write_optimizer_file(
        path, part.optimizer->name(), part.optimizer->steps, stored_groups(*part.optimizer),
        moments, [&](std::size_t index, const torch::Sink& sink) {
          const FullItem& item = tensors.items()[index];
          sink({tensors.bring(index),
                static_cast<std::size_t>(numel_of(item.shape)) * nbytes_of(item.dtype)});
        });
  });
  tensors.finish();
}

}  // namespace acc::state_dict
