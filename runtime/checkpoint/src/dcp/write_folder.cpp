// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "acc/checkpoint/dcp/folder.hpp"
#include "acc/checkpoint/files/crc32.hpp"

#include <fstream>
#include <span>

namespace acc::checkpoint::dcp {

namespace {

// Positions must match the plan, because rank 0 writes them into `.metadata` without having seen
// this file.
void check_position(const OutputFile& out, std::uint64_t expected, const std::string& what) {
  if (out.position() != expected) {
    throw Error(Errc::internal, out.path().string() + ": " + what + " ends at byte " +
                                    std::to_string(out.position()) +
                                    ", planned: " + std::to_string(expected));
  }
}

// An empty chunk is written too: torch expects an entry for it.
void write_chunk(OutputFile& out, const PlannedTensor& tensor, const PlannedChunk& chunk,
                 const FillChunk& fill, std::uint64_t mark) {
  const auto nbytes = static_cast<std::uint64_t>(chunk.box.numel()) * size_of(tensor.dtype);
  torch::TorchFileWriter writer(
      out, torch::tensor_pickle({.dtype = tensor.dtype, .shape = chunk.box.sizes}));
  writer.storage(nbytes, [&](const torch::Sink& sink) {
    if (nbytes > 0) {
      fill(chunk, sink);
    }
  });
  writer.finish(mark);
}

// Returns a random UUID of the kernel (random(4)). torch gives each save one.
std::string random_uuid() {
  std::string text;
  std::ifstream("/proc/sys/kernel/random/uuid") >> text;
  return text;
}

}  // namespace

// Reserves the disk space first, so that a full disk is found before any tensor is copied.
std::uint64_t write_rank_file(const std::filesystem::path& folder, const FolderPlan& plan, int rank,
                              const FillChunk& fill) {
  const FilePlan file = plan_file(plan, rank);
  OutputFile out(folder / file.name);
  out.reserve(file.nbytes);
  for (const FilePlan::Slot& slot : file.value_slots) {
    const PlannedValue& value = plan.values[slot.index];
    torch::TorchFileWriter(out, value.pickle).finish(mark_of(plan, value.name));
    check_position(out, slot.offset + slot.nbytes, "'" + value.name + "'");
  }
  for (const FilePlan::Slot& slot : file.chunk_slots) {
    const PlannedChunk& chunk = file.chunks[slot.index];
    const PlannedTensor& tensor = plan.tensors[chunk.tensor];
    write_chunk(out, tensor, chunk, fill, mark_of(plan, tensor.name, chunk.box));
    check_position(out, slot.offset + slot.nbytes, "a piece of '" + tensor.name + "'");
  }
  out.close();
  return file.nbytes;
}

// The CRC is computed on the way for the manifest, because `.metadata` has no checksum of its own.
WrittenMetadata write_metadata_file(const std::filesystem::path& folder, const FolderPlan& plan) {
  OutputFile out(folder / kMetadataFile);
  WrittenMetadata written;
  write_metadata(
      plan,
      [&](std::string_view text) {
        const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
        written.crc32 = crc32(written.crc32, bytes);
        written.nbytes += bytes.size();
        out.write(bytes);
      },
      random_uuid());
  out.close();
  return written;
}

}  // namespace acc::checkpoint::dcp
