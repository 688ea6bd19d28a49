// SPDX-License-Identifier: Apache-2.0
#include "convert/output_set.hpp"
#include "convert/outputs.hpp"
#include "deepspeed/deepspeed.hpp"
#include "deepspeed/export_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

/// True for files of a DeepSpeed checkpoint. The tag's folder may have any name.
bool is_deepspeed_file(const std::string& path) {
  return path == "latest" || path == "zero_to_fp32.py" || path == "zero_to_torch.py" ||
         path.ends_with("_states.pt");
}

/// The master weights and moments of DeepSpeed are fp32, whatever dtype the source has. Frozen
/// weights and buffers keep theirs.
std::vector<OutputTensor> in_dtypes_of(const deepspeed::ExportPlan& plan,
                                       std::vector<OutputTensor> tensors) {
  const std::set<std::string> masters = deepspeed::names_of_masters(plan);
  for (OutputTensor& tensor : tensors) {
    if (is_real(tensor.dtype) && (!tensor.from->is_weight() || masters.contains(tensor.name))) {
      tensor.dtype = Dtype::f32;
    }
  }
  return tensors;
}

/// Returns what DeepSpeed cannot store: its flat arrays have one step and one dtype.
std::vector<std::string> left_out(const Stored& stored, const std::vector<OutputTensor>& tensors) {
  std::vector<std::string> text;
  const TrainingState& training = stored.training;
  if (training.fewest_steps && training.fewest_steps != training.step) {
    text.push_back(fmt::format(
        "the steps of parameters that were updated less than {} times (the fewest is {}), because "
        "DeepSpeed has one number for all",
        *training.step, *training.fewest_steps));
  }
  const auto doubles = std::ranges::count_if(tensors, [](const OutputTensor& each) {
    return each.from->dtype == Dtype::f64 && each.dtype != Dtype::f64;
  });
  if (doubles > 0) {
    text.push_back(fmt::format("digits of {} float64 tensor{}, which DeepSpeed has in fp32",
                               doubles, doubles == 1 ? "" : "s"));
  }
  return text;
}

}  // namespace

Result write_deepspeed(const Stored& stored, const fs::path& out, const Options& options) {
  if (options.dtype && *options.dtype != Dtype::f32) {
    throw Error(Errc::not_supported,
                "--dtype " + std::string(torch_name(*options.dtype)) +
                    ": a DeepSpeed checkpoint holds fp32 masters; leave it out");
  }
  std::vector<OutputTensor> tensors = weights_of(stored, std::nullopt);
  std::ranges::move(moments_of(stored), std::back_inserter(tensors));
  std::erase_if(tensors, [](const OutputTensor& each) { return each.from->kind == "step"; });
  tensors =
      in_dtypes_of(deepspeed::plan_export(stored.catalog, stored.training), std::move(tensors));
  NewFolder folder(out, is_deepspeed_file, options.overwrite);
  Result result{{}, 0, nbytes_of(tensors), left_out(stored, tensors)};
  TrainingState training = stored.training;
  if (has_optimizer(stored)) {
    training.optimizer = optimizer_of(stored);
  }
  {
    TensorReader reader(stored.catalog);
    check_sources(sources_of(tensors), reader, options);
    ProgressMeter meter(options.progress, Component::launcher, "writing", result.nbytes);
    reader.count_into(&meter);
    deepspeed::write_checkpoint(folder.path(), stored.catalog, reader, training,
                                {options.zero_stage, options.num_processes, {}});
  }
  Stored written;
  written.path = folder.path();
  written.format = Format::deepspeed;
  deepspeed::read_checkpoint(folder.path(), written.catalog, written.training, written.provenance);
  result.tensors = check_written(written, tensors, options);
  result.files = {folder.commit(stored.path)};
  return result;
}

}  // namespace acc::checkpoint::conversion
