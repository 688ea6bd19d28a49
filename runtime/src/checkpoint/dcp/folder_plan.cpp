#include "checkpoint/dcp/folder_plan.hpp"

#include "checkpoint/torch/torch_file.hpp"

#include <unordered_map>
#include <utility>

namespace acc::checkpoint::dcp {

namespace {

/// Sizes of archives of one tensor, of which a large world has many alike.
class ArchiveSizes {
 public:
  std::uint64_t operator()(Dtype dtype, const Shape& shape) {
    const auto found = known_.find(Key<const Shape&>{dtype, shape});
    return found != known_.end() ? found->second : add(dtype, shape);
  }

 private:
  static constexpr std::size_t kMaxKnown = std::size_t{1} << 16;
  template <typename S>
  struct Key {
    Dtype dtype;
    S shape;
  };
  // Transparent, so that looking up copies no shape.
  struct Hash {
    using is_transparent = void;
    template <typename S>
    std::size_t operator()(const Key<S>& key) const noexcept {
      auto hash = static_cast<std::uint64_t>(key.dtype);
      for (const std::int64_t extent : key.shape) {
        hash = (hash ^ static_cast<std::uint64_t>(extent)) * 0x9e3779b97f4a7c15U;
        hash ^= hash >> 32U;
      }
      return hash;
    }
  };
  struct Equal {
    using is_transparent = void;
    template <typename A, typename B>
    bool operator()(const Key<A>& a, const Key<B>& b) const noexcept {
      return a.dtype == b.dtype && a.shape == b.shape;
    }
  };

  std::uint64_t add(Dtype dtype, const Shape& shape) {
    if (known_.size() >= kMaxKnown) {
      known_.clear();
    }
    const std::uint64_t nbytes = static_cast<std::uint64_t>(numel_of(shape)) * size_of(dtype);
    const std::string pickle = torch::tensor_pickle({.dtype = dtype, .shape = shape});
    const std::uint64_t of_archive = torch::archive_layout(pickle.size(), {&nbytes, 1}).nbytes;
    known_.emplace(Key<Shape>{dtype, shape}, of_archive);
    return of_archive;
  }

  std::unordered_map<Key<Shape>, std::uint64_t, Hash, Equal> known_;
};

std::uint64_t nbytes_of(const PlannedValue& value) {
  return torch::archive_layout(value.pickle.size(), {}).nbytes;
}

}  // namespace

std::string file_name(int rank) {
  return "__" + std::to_string(rank) + "_0.distcp";
}

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
      file.value_slots.push_back(slot(i, nbytes_of(plan.values[i])));
    }
  }
  ArchiveSizes nbytes;
  for (std::size_t i = 0; i < file.chunks.size(); ++i) {
    const PlannedChunk& chunk = file.chunks[i];
    file.chunk_slots.push_back(slot(i, nbytes(plan.tensors[chunk.tensor].dtype, chunk.box.sizes)));
  }
  return file;
}

void write_metadata(const FolderPlan& plan, const std::function<void(std::string_view)>& write,
                    const std::string& save_id) {
  std::vector<EntryHead> entries;
  for (const PlannedTensor& tensor : plan.tensors) {
    entries.push_back({.name = tensor.name,
                       .path = tensor.path,
                       .is_tensor = true,
                       .dtype = tensor.dtype,
                       .shape = tensor.shape,
                       .value = {}});
  }
  // Where each rank's file has got to.
  std::vector<std::uint64_t> ends(static_cast<std::size_t>(plan.world_size));
  for (const PlannedValue& value : plan.values) {
    std::uint64_t& end = ends[static_cast<std::size_t>(value.rank)];
    const std::uint64_t nbytes = nbytes_of(value);
    entries.push_back({.name = value.name,
                       .path = value.path,
                       .is_tensor = false,
                       .dtype = {},
                       .shape = {},
                       .value = {file_name(value.rank), end, nbytes}});
    end += nbytes;
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
