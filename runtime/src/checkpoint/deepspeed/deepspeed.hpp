#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/catalog/tensor_reader.hpp"

#include <filesystem>
#include <string>

/// DeepSpeed's ZeRO checkpoints, stages 1 to 3 (checkpoint-formats 5).
namespace acc::checkpoint::deepspeed {

/// Whether it is such a checkpoint: the folder with `latest`, or the one of a tag.
bool is_checkpoint(const std::filesystem::path& path);

/// The fp32 masters (param), exp_avg and exp_avg_sq, frozen parameters, buffers and shared names,
/// each as the pieces of the ranks' flats that hold it, and step, groups and loss scale. Stage 0 is
/// the 16- or 32-bit module alone, without its optimizer. The scheduler's and the program's own
/// values are not read. Throws Error(config) that names file and key for whatever is missing
/// or does not add up; a tensor-parallel one (mp_rank_01) is refused by name.
void read_checkpoint(const std::filesystem::path& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance);

/// How a checkpoint is written for DeepSpeed.
struct ExportOptions {
  int stage = 2;  ///< 1, 2 or 3
  int world_size = 1;
  std::string tag;  ///< "global_step<step>" where empty
};

/// Writes DIR/latest and DIR/TAG/… with fp32 masters and, where they are there, moments, so that
/// DeepSpeed's own zero_to_fp32.py reads them, and its engine loads them in a run of that stage and
/// world whose groups hold the same parameters in the same order. Names in `training.groups` are
/// trained, buffers are in `training.buffers`, others frozen; without groups all are trained. The
/// folder exists and is the caller's to complete. Throws Error(config).
void write_checkpoint(const std::filesystem::path& folder, const Catalog& catalog,
                      TensorReader& reader, const TrainingState& training,
                      const ExportOptions& options);

}  // namespace acc::checkpoint::deepspeed
