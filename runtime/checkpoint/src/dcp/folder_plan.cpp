// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/dcp/folder_plan.hpp"

#include "acc/base/hash.hpp"
#include "dcp/archive_sizes.hpp"

namespace acc::checkpoint::dcp {

std::string file_name(int rank) {
  return "__" + std::to_string(rank) + "_0.distcp";
}

std::uint64_t mark_of(const FolderPlan& plan, std::string_view name, const Box& box) {
  if (!plan.step) {
    return 0;
  }
  std::uint64_t mark = fnv1a(name, fnv1a_step(kFnv1aStart, static_cast<std::uint64_t>(*plan.step)));
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    mark = fnv1a_step(mark, static_cast<std::uint64_t>(box.offsets[d]));
    mark = fnv1a_step(mark, static_cast<std::uint64_t>(box.sizes[d]));
  }
  return mark == 0 ? 1 : mark;
}

std::string joined_by_dots(const Path& path) {
  std::string text;
  for (const auto& step : path) {
    const auto* const key = std::get_if<std::string>(&step);
    text += (&step == &path.front() ? "" : ".") +
            (key != nullptr ? *key : std::to_string(std::get<std::int64_t>(step)));
  }
  return text;
}

// The file is the concatenation of its archives, so each begins where the one before ends.
FilePlan plan_file(const FolderPlan& plan, int rank) {
  FilePlan file{.name = file_name(rank),
                .chunks = plan.rule->chunks(rank),
                .value_slots = {},
                .chunk_slots = {},
                .nbytes = 0};
  const auto slot = [&](std::size_t index, std::uint64_t nbytes) {
    const FilePlan::Slot made{.index = index, .offset = file.nbytes, .nbytes = nbytes};
    file.nbytes += nbytes;
    return made;
  };
  for (std::size_t i = 0; i < plan.values.size(); ++i) {
    if (plan.values[i].rank == rank) {
      file.value_slots.push_back(slot(i, archive_nbytes(plan.values[i])));
    }
  }
  ArchiveSizes nbytes;
  for (std::size_t i = 0; i < file.chunks.size(); ++i) {
    const PlannedChunk& chunk = file.chunks[i];
    file.chunk_slots.push_back(slot(i, nbytes(plan.tensors[chunk.tensor].dtype, chunk.box.sizes)));
  }
  return file;
}

std::map<int, std::uint64_t> values_nbytes(const FolderPlan& plan) {
  std::map<int, std::uint64_t> nbytes;
  for (const PlannedValue& value : plan.values) {
    nbytes[value.rank] += archive_nbytes(value);
  }
  return nbytes;
}

std::vector<Entry> entries_of(const FolderPlan& plan) {
  std::vector<Entry> entries;
  for (const PlannedTensor& tensor : plan.tensors) {
    entries.push_back({.name = tensor.name,
                       .path = tensor.path,
                       .is_tensor = true,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .chunks = {},
                       .value = {}});
  }
  // A rank's file begins with its values, in the order of the plan.
  std::map<int, std::uint64_t> ends;
  for (const PlannedValue& value : plan.values) {
    const std::uint64_t nbytes = archive_nbytes(value);
    entries.push_back(
        {.name = value.name,
         .path = value.path,
         .is_tensor = false,
         .dtype = {},
         .shape = {},
         .chunks = {},
         .value = {file_name(value.rank), ends[value.rank], nbytes, mark_of(plan, value.name)}});
    ends[value.rank] += nbytes;
  }
  return entries;
}

void write_metadata(const FolderPlan& plan, const std::function<void(std::string_view)>& write,
                    const std::string& save_id) {
  const std::vector<Entry> entries = entries_of(plan);
  // The end of each rank's file so far. All chunks are visited in the order in which the ranks
  // write them, so one cursor per rank gives every offset. This is why a rank's file has its chunks
  // in the order of the tensors.
  std::vector<std::uint64_t> ends(static_cast<std::size_t>(plan.world_size));
  for (const auto& [rank, nbytes] : values_nbytes(plan)) {
    ends[static_cast<std::size_t>(rank)] = nbytes;
  }
  ArchiveSizes sizes;
  const VisitBoxes boxes = [&](std::size_t entry, const auto& visit) {
    plan.rule->for_each_chunk(entry, [&](int, const PlannedChunk& chunk) { visit(chunk.box); });
  };
  const VisitChunks chunks = [&](std::size_t entry, const auto& visit) {
    plan.rule->for_each_chunk(entry, [&](int rank, const PlannedChunk& chunk) {
      std::uint64_t& end = ends[static_cast<std::size_t>(rank)];
      const std::uint64_t nbytes = sizes(plan.tensors[entry].dtype, chunk.box.sizes);
      visit(Chunk{.box = chunk.box, .place = {file_name(rank), end, nbytes}});
      end += nbytes;
    });
  };
  format_metadata(entries, boxes, chunks, write, save_id);
}

}  // namespace acc::checkpoint::dcp
