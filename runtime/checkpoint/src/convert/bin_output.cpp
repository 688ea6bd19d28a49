// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"
#include "acc/checkpoint/accelerate/state_files.hpp"
#include "catalog/group_values.hpp"
#include "convert/output_set.hpp"
#include "convert/outputs.hpp"

#include <map>
#include <string_view>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

std::size_t check(const fs::path& path, const std::vector<OutputTensor>& tensors,
                  const Options& options) {
  Stored written;
  written.path = path;
  written.format = Format::torch_file;
  accelerate::read_torch_file(path, written.catalog, written.training, written.provenance);
  return check_written(written, tensors, options);
}

// Streams the weights into an archive, converted to their new dtype.
void write_weights(const fs::path& path, const std::vector<OutputTensor>& tensors,
                   TensorReader& reader, ProgressMeter& meter) {
  std::vector<accelerate::FullTensor> full;
  std::map<std::string_view, std::size_t> number;
  for (const OutputTensor& tensor : tensors) {
    number[tensor.name] = full.size();
    full.push_back({tensor.name, tensor.dtype, tensor.from->shape});
    if (!tensor.same_as.empty()) {
      full.back().same_as = number.at(tensor.same_as);
    }
  }
  accelerate::write_model_file(path, full, [&](std::size_t i, const torch::Sink& sink) {
    stream(reader, *tensors[i].from, {0, tensors[i].numel()}, tensors[i].dtype, meter, sink);
  });
}

/// Returns the moments, without the steps if the class of the optimizer has none.
std::vector<OutputTensor> optimizer_tensors(const Stored& stored) {
  std::vector<OutputTensor> tensors = moments_of(stored);
  if (!tensors.empty() && !counts_steps(optimizer_of(stored))) {
    std::erase_if(tensors, [](const OutputTensor& tensor) { return tensor.from->kind == "step"; });
  }
  return tensors;
}

void write_moments(const fs::path& path, const Stored& stored,
                   const std::vector<OutputTensor>& tensors, TensorReader& reader,
                   ProgressMeter& meter) {
  std::vector<accelerate::FullMoment> full;
  full.reserve(tensors.size());
  for (const OutputTensor& tensor : tensors) {
    full.push_back({tensor.name, tensor.from->kind, tensor.dtype, tensor.from->shape});
  }
  accelerate::write_optimizer_file(
      path, optimizer_of(stored), stored.training.step.value_or(0), stored.training.groups, full,
      [&](std::size_t i, const torch::Sink& sink) {
        stream(reader, *tensors[i].from, {0, tensors[i].numel()}, tensors[i].dtype, meter, sink);
      });
}

}  // namespace

Result write_bin(const Stored& stored, const fs::path& folder, const Options& options) {
  // For merge-weights, the state of an optimizer's folder, which has no weights, is written under
  // the name of the weights, as Accelerate does.
  const std::vector<OutputTensor> weights = weights_of(stored, options.dtype);
  const bool with_moments = !options.merge || weights.empty();
  const std::vector<OutputTensor> moments =
      with_moments ? optimizer_tensors(stored) : std::vector<OutputTensor>{};
  OutputSet files(folder);
  TensorReader reader(stored.catalog);
  check_sources(sources_of(weights), reader, options);
  check_sources(sources_of(moments), reader, options);
  Result result{{}, 0, nbytes_of(weights) + nbytes_of(moments), {}};
  ProgressMeter meter(options.progress, Component::launcher, "writing", result.nbytes);
  if (!weights.empty()) {
    check_replaces(stored, folder / kBinFile, options);
    const fs::path path = files.add(kBinFile);
    write_weights(path, weights, reader, meter);
    result.tensors += check(path, weights, options);
  }
  if (!moments.empty()) {
    const char* const name = options.merge ? kBinFile : "optimizer.bin";
    check_replaces(stored, folder / name, options);
    const fs::path path = files.add(name);
    write_moments(path, stored, moments, reader, meter);
    result.tensors += check(path, moments, options);
  }
  result.files = files.commit(stored.path);
  return result;
}

}  // namespace acc::checkpoint::conversion
