// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"

#include <filesystem>
#include <string>

/// DeepSpeed's ZeRO checkpoints, stages 1 to 3 (docs/formats/deepspeed.md).
namespace acc::checkpoint::deepspeed {

/// True if the path is a DeepSpeed checkpoint: a folder with `latest`, or the folder of a tag.
bool is_checkpoint(const InputPath& path);

/// Reads a checkpoint into a catalog: the fp32 master weights ("param"), exp_avg and exp_avg_sq,
/// frozen parameters, buffers and shared names. Each is a list of pieces of the ranks' flat arrays.
/// Also reads step, groups and loss scale. A checkpoint of stage 0 has only the 16- or 32-bit
/// module, without its optimizer. The state of the scheduler and the client state are not read.
/// Throws Error(config) with file and key if something is missing or inconsistent. A
/// tensor-parallel checkpoint (mp_rank_01) is refused by name.
void read_checkpoint(const InputPath& path, Catalog& catalog, TrainingState& training,
                     Provenance& provenance);

/// Form of a checkpoint that is written for DeepSpeed.
struct ExportOptions {
  int stage = 2;  ///< 1, 2 or 3
  int world_size = 1;
  std::string tag;  ///< "global_step<step>" if empty
};

/// Writes DIR/latest and DIR/TAG/… with fp32 master weights and, if there are any, moments.
/// DeepSpeed's zero_to_fp32.py reads the result. Its engine loads it in a run of the same stage and
/// world size whose groups have the same parameters in the same order. Parameters named in
/// `training.groups` are trained, `training.buffers` are buffers, and all others are frozen;
/// without groups all are trained. The folder must exist; the caller completes it (fsync and
/// rename). Throws Error(config).
void write_checkpoint(const std::filesystem::path& folder, const Catalog& catalog,
                      TensorReader& reader, const TrainingState& training,
                      const ExportOptions& options);

}  // namespace acc::checkpoint::deepspeed
