// SPDX-License-Identifier: Apache-2.0
#include "convert/save_folder.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/accelerate/save_folder.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/dcp/plan_json.hpp"
#include "acc/checkpoint/files/input_file.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "convert/output_set.hpp"
#include "convert/outputs.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace acc::checkpoint::conversion {

namespace fs = std::filesystem;

namespace {

/// True for files of a save folder that are copied. A smaller world has no ranks for some of the
/// random states. A larger one has ranks without random states, which Accelerate skips.
bool is_other_state(const std::string& name, int num_processes) {
  constexpr std::string_view kOfRank = "random_states_";
  if (name.starts_with(kOfRank)) {
    return std::atoi(name.c_str() + kOfRank.size()) < num_processes;
  }
  return std::ranges::any_of(
      std::array<std::string_view, 6>{"scheduler", "scaler", "custom_checkpoint_", "sampler",
                                      "dl_state_dict", "acc_data_order"},
      [&](std::string_view start) { return name.starts_with(start); });
}

std::uint32_t crc32_of(const fs::path& path) {
  const InputFile file(path);
  return crc32_of(file, 0, file.nbytes());
}

/// Reads a written DCP folder back and compares it with the plan, by its stored names.
std::size_t check_part(const fs::path& path, const DcpFolder& part, const Options& options) {
  Stored written;
  written.path = path;
  written.format = Format::dcp;
  dcp::read_folder(path, written.catalog, written.training, written.provenance);
  std::map<std::string_view, const StoredTensor*> by_name;
  for (const StoredTensor& tensor : written.catalog.tensors) {
    by_name[tensor.stored_name] = &tensor;
  }
  for (const dcp::PlannedTensor& tensor : part.plan.tensors) {
    const auto found = by_name.find(tensor.name);
    if (found == by_name.end() || found->second->shape != tensor.shape ||
        found->second->dtype != tensor.dtype) {
      throw not_as_written(path, tensor.name);
    }
  }
  check_written_bytes(written, options);
  return part.plan.tensors.size();
}

}  // namespace

std::uint64_t DcpFolder::nbytes() const {
  std::uint64_t sum = 0;
  for (const dcp::PlannedTensor& tensor : plan.tensors) {
    sum += static_cast<std::uint64_t>(numel_of(tensor.shape)) * size_of(tensor.dtype);
  }
  return sum;
}

void DcpFolder::cut(int num_processes) {
  plan.world_size = num_processes;
  plan.rule = dcp::cut_by_rows(plan.tensors, num_processes);
}

// Writes the ranks' files in parallel, one thread per file. fsync of the folder comes last.
void write_dcp_folder(const std::filesystem::path& folder, const DcpFolder& from,
                      TensorReader& reader, int num_threads, ProgressMeter& meter) {
  const dcp::FillChunk fill = [&](const dcp::PlannedChunk& chunk, const torch::Sink& sink) {
    const StoredTensor* const source = from.sources[chunk.tensor];
    if (source == nullptr) {
      sink(std::as_bytes(std::span(&from.step, chunk.box.numel() > 0 ? 1 : 0)));
      return;
    }
    stream(reader, *source, {chunk.source_begin, chunk.source_begin + chunk.box.numel()},
           from.plan.tensors[chunk.tensor].dtype, meter, sink);
  };
  for_each_parallel(static_cast<std::size_t>(from.plan.world_size), num_threads,
                    [&](std::size_t rank, std::size_t) {
                      dcp::write_rank_file(folder, from.plan, static_cast<int>(rank), fill);
                    });
  dcp::write_metadata_file(folder, from.plan);
  sync_folder(folder);
}

// True for the files of a DCP folder, including those that a killed writer of torch leaves.
bool is_dcp_file(const std::string& path) {
  return path == dcp::kMetadataFile || path == std::string(dcp::kMetadataFile) + ".tmp" ||
         path == kManifestFile || (path.starts_with("__") && path.ends_with(".distcp"));
}

void SaveFolder::add(const std::string& name, DcpFolder folder, TensorReader& reader) {
  parts_.push_back({name, std::move(folder), &reader});
}

void SaveFolder::add_other_state() {
  const auto names =
      from_.names_of([num_processes = options_.num_processes](const std::string& name) {
        return is_other_state(name, num_processes);
      });
  for (const std::string& name : names) {
    if ((from_ / name).is_file()) {
      copies_.push_back(from_ / name);
    }
  }
}

// Everything happens in the temporary folder: tensors are written, other files copied, and all of
// it is read back. The manifest follows, because it lists the final files; then the folder is
// committed.
Result SaveFolder::write(std::optional<Manifest> manifest) {
  const bool alone = parts_.size() == 1 && parts_.front().name.empty();
  std::vector<std::string> names;
  Result result;
  for (Part& part : parts_) {
    if (manifest) {
      part.folder.plan.step = manifest->step;
    }
    check_sources(part.folder.sources, *part.reader, options_);
    result.nbytes += part.folder.nbytes();
    if (!part.name.empty()) {
      names.push_back(part.name);
    }
  }
  NewFolder folder(out_, alone ? is_dcp_file : accelerate::is_ours, options_.overwrite, names);
  {
    ProgressMeter meter(options_.progress, Component::launcher, "writing", result.nbytes);
    for (const Part& part : parts_) {
      write_dcp_folder(folder.path() / part.name, part.folder, *part.reader, options_.num_threads,
                       meter);
    }
  }
  for (const InputPath& from : copies_) {
    copy_flushed(from, folder.path() / from.filename());
  }
  for (const Part& part : parts_) {
    result.tensors += check_part(folder.path() / part.name, part.folder, options_);
  }
  if (manifest) {
    write_manifest(folder.path(), std::move(*manifest));
  }
  result.files = {folder.commit(from_)};
  return result;
}

void SaveFolder::write_manifest(const fs::path& folder, Manifest manifest) const {
  manifest.writer = options_.writer;
  manifest.world_size = options_.num_processes;
  manifest.plans.clear();
  for (const Part& part : parts_) {
    manifest.plans[part.name] = dcp::format_plan(part.folder.plan);
  }
  manifest.files.clear();
  const InputPath written = folder;
  for (const std::string& name : files_below(written)) {
    // Archives in .distcp files have their own checksums. All other files are small.
    const bool checks_itself = name.ends_with(".distcp");
    manifest.files.push_back(
        {.path = name,
         .nbytes = (written / name).nbytes(),
         .crc32 = checks_itself ? std::nullopt : std::optional(crc32_of(folder / name))});
  }
  std::sort(manifest.files.begin(), manifest.files.end(),
            [](const Manifest::File& a, const Manifest::File& b) { return a.path < b.path; });
  OutputFile file(folder / kManifestFile);
  file.write(format_manifest(manifest));
  file.close();
}

Manifest manifest_of(const Stored& stored) {
  Manifest manifest = stored.manifest.value_or(Manifest{});
  manifest.state_dict = "SHARDED_STATE_DICT";
  manifest.local_layout.clear();
  manifest.step = stored.training.step.value_or(manifest.step);
  manifest.skipped_steps = stored.training.skipped_steps;
  manifest.optimizer = known_optimizer(stored);
  manifest.loss_scaler = stored.training.loss_scaler;
  return manifest;
}

}  // namespace acc::checkpoint::conversion
