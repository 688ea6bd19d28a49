// SPDX-License-Identifier: Apache-2.0
#include "convert/dcp_folder.hpp"

#include "acc/base/atomic_file.hpp"
#include "acc/checkpoint/convert/parallel.hpp"
#include "acc/checkpoint/files/manifest.hpp"
#include "convert/outputs.hpp"

namespace acc::checkpoint::conversion {

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

}  // namespace acc::checkpoint::conversion
