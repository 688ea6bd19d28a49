// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/checkpoint/dcp/folder_plan.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

// The rules that decide which rank writes which box of which tensor. There are two:
//
// - RowRule cuts every tensor in rows, as FSDP's SHARDED_STATE_DICT does. Every rank writes
//   ceil(rows / ranks) rows, as far as there are rows.
// - ArrayRule cuts flat arrays. A tensor is a range of an array; a shard is an equal part of the
//   array; so a rank's share of a tensor is a range of its elements, which boxes_of_range turns
//   into the fewest boxes. If several ranks hold the same shard (replicas), they share the work:
//   all that the shard has of all tensors, in order, is a line of bytes, which is divided equally
//   among the replicas (see Line).
//
// Both answer two questions that must agree: what one rank writes in all tensors (`chunks`), and
// what all ranks write of one tensor (`for_each_chunk`). Neither answer enumerates the chunks of
// all ranks in all tensors, of which a large world has millions.
namespace acc::checkpoint::dcp {

namespace {

class RowRule final : public CutRule {
 public:
  RowRule(const std::vector<PlannedTensor>& tensors, int world_size) : world_size_(world_size) {
    for (const PlannedTensor& tensor : tensors) {
      shapes_.push_back(tensor.shape);
    }
  }

  std::vector<PlannedChunk> chunks(int rank) const override {
    std::vector<PlannedChunk> chunks;
    for (std::size_t tensor = 0; tensor < shapes_.size(); ++tensor) {
      if (auto chunk = chunk_of(tensor, rank)) {
        chunks.push_back(std::move(*chunk));
      }
    }
    return chunks;
  }

  void for_each_chunk(std::size_t tensor, const Visit& visit) const override {
    for (int rank = 0; rank < world_size_; ++rank) {
      const auto chunk = chunk_of(tensor, rank);
      if (!chunk) {
        return;
      }
      visit(rank, *chunk);
    }
  }

  void for_each_chunk(std::size_t tensor, std::int64_t begin, std::int64_t end,
                      const Visit& visit) const override {
    const Shape& shape = shapes_[tensor];
    const std::int64_t numel = numel_of(shape);
    if (begin >= end || numel == 0) {
      return;
    }
    const std::int64_t of_a_rank = row_box(shape, 0, world_size_)->numel();
    for (std::int64_t rank = begin / of_a_rank; rank <= (end - 1) / of_a_rank; ++rank) {
      visit(static_cast<int>(rank), *chunk_of(tensor, static_cast<int>(rank)));
    }
  }

 private:
  // Returns the rank's chunk of a tensor. A tensor with fewer rows than ranks has one empty chunk,
  // at its end; torch writes it too. Further ranks write nothing, because `.metadata` identifies a
  // chunk by its offsets, which would be the same for all of them.
  std::optional<PlannedChunk> chunk_of(std::size_t tensor, int rank) const {
    const Shape& shape = shapes_[tensor];
    auto box = row_box(shape, rank, world_size_);
    const auto before = rank > 0 ? row_box(shape, rank - 1, world_size_) : std::nullopt;
    if (!box || (box->numel() == 0 && before && (before->numel() == 0))) {
      return std::nullopt;
    }
    const std::int64_t begin =
        shape.empty() || shape[0] == 0 ? 0 : box->offsets[0] * (numel_of(shape) / shape[0]);
    return PlannedChunk{
        .tensor = tensor, .box = std::move(*box), .source = tensor, .source_begin = begin};
  }

  std::vector<Shape> shapes_;
  int world_size_;
};

/// A border between the parts of two replicas, given as an element of a tensor.
struct Cut {
  std::size_t tensor = 0;
  std::int64_t element = 0;
};

/// The line of a shard: its share of all tensors, one after the other, as a sequence of bytes that
/// its replicas write in equal parts. Built in one sweep over the tensors, by `add`. Replica k
/// writes from border k to border k + 1.
class Line {
 public:
  Line(int replicas, std::uint64_t nbytes)
      : replicas_(static_cast<std::uint64_t>(replicas)), nbytes_(nbytes) {}

  /// Appends the next piece of the line: elements [begin, end) of a tensor.
  void add(std::size_t tensor, const PlannedTensor& planned, std::int64_t begin, std::int64_t end);
  /// Returns the first of elements [begin, end) of a tensor that is not before the part of
  /// `replica`; `end` if all are before it.
  std::int64_t before(std::size_t replica, std::size_t tensor, std::int64_t begin,
                      std::int64_t end) const;
  /// Returns the replica whose part contains the element.
  std::size_t replica_of(std::size_t tensor, std::int64_t element) const;

 private:
  // Returns the place of the border before replica k's part, in bytes from the beginning of the
  // line: nbytes * k / replicas, without overflow.
  std::uint64_t border(std::size_t k) const {
    return nbytes_ / replicas_ * k + nbytes_ % replicas_ * k / replicas_;
  }
  std::int64_t settle(const PlannedTensor& planned, std::int64_t begin, std::int64_t end,
                      std::int64_t element) const;

  static constexpr std::int64_t kAlignment = 16;  // elements; keeps copies from a border aligned

  std::uint64_t replicas_, nbytes_, position_ = 0;
  std::vector<Cut> cuts_;  // the borders before replica 1, 2, …
};

// Moves a border to a place where it does not cut a box: the beginning or the end of the piece, or
// the next border of a row, if one is within 1/64 of a replica's part. A border inside of a row
// costs up to two more boxes, each of which is an archive with about 1.5 KiB of overhead. The
// result depends only on the arguments, so that all ranks agree.
std::int64_t Line::settle(const PlannedTensor& planned, std::int64_t begin, std::int64_t end,
                          std::int64_t element) const {
  const auto reach = static_cast<std::int64_t>(nbytes_ / replicas_ / 64 / size_of(planned.dtype));
  if (element - begin <= reach) {
    return begin;
  }
  if (end - element <= reach) {
    return end;
  }
  std::int64_t stride = numel_of(planned.shape);
  for (const std::int64_t extent : planned.shape) {
    stride /= extent;
    if (stride <= reach) {
      break;
    }
  }
  if (stride == 1 && reach >= kAlignment) {
    stride = kAlignment;
  }
  return stride > reach ? element
                        : std::clamp((element + stride / 2) / stride * stride, begin, end);
}

// Adds the borders that fall into the piece.
void Line::add(std::size_t tensor, const PlannedTensor& planned, std::int64_t begin,
               std::int64_t end) {
  const std::uint64_t size = size_of(planned.dtype);
  const std::uint64_t next = position_ + static_cast<std::uint64_t>(end - begin) * size;
  while (cuts_.size() + 1 < replicas_ && border(cuts_.size() + 1) < next) {
    const std::uint64_t at = border(cuts_.size() + 1) - position_;
    cuts_.push_back(
        {tensor, settle(planned, begin, end, begin + static_cast<std::int64_t>(at / size))});
  }
  position_ = next;
}

std::int64_t Line::before(std::size_t replica, std::size_t tensor, std::int64_t begin,
                          std::int64_t end) const {
  if (replica == 0) {
    return begin;
  }
  if (replica > cuts_.size() || cuts_[replica - 1].tensor > tensor) {
    return end;
  }
  const Cut& cut = cuts_[replica - 1];
  return cut.tensor < tensor ? begin : std::clamp(cut.element, begin, end);
}

std::size_t Line::replica_of(std::size_t tensor, std::int64_t element) const {
  const auto after =
      std::ranges::upper_bound(cuts_, std::pair(tensor, element), {},
                               [](const Cut& cut) { return std::pair(cut.tensor, cut.element); });
  return static_cast<std::size_t>(after - cuts_.begin());
}

class ArrayRule final : public CutRule {
 public:
  ArrayRule(const std::vector<CutArray>& arrays, const std::vector<PlannedTensor>& tensors,
            int world_size);

  std::vector<PlannedChunk> chunks(int rank) const override;
  void for_each_chunk(std::size_t tensor, const Visit& visit) const override;
  void for_each_chunk(std::size_t tensor, std::int64_t begin, std::int64_t end,
                      const Visit& visit) const override;
  [[nodiscard]] const std::vector<CutArray>* arrays() const override { return &arrays_; }

 private:
  /// Place of a tensor: an array and an offset in it.
  struct Home {
    std::size_t array = 0;
    std::int64_t offset = 0;
    std::int64_t numel = 0;
    std::int64_t shard_numel = 0;
    int shards = 0;  // 0: written whole by rank 0
  };
  struct Range {
    std::int64_t begin = 0, end = 0;
  };

  static void check(const CutArray& array, int world_size);
  void settle_homes(const std::vector<CutArray>& arrays);
  void cut_lines(int world_size);
  /// Returns the range of the tensor's elements that is in a shard; empty if there is none.
  static Range in_shard(const Home& home, std::int64_t shard);
  template <typename VisitPiece>
  void for_each_shard(const Home& home, const VisitPiece& visit) const;
  template <typename VisitChunk>
  void visit_range(std::size_t tensor, Range range, const VisitChunk& visit) const;

  std::vector<CutArray> arrays_;
  std::vector<PlannedTensor> tensors_;      // without names and paths
  std::vector<Home> homes_;                 // one per tensor
  std::map<int, std::vector<Line>> lines_;  // key: number of shards; one line per shard
};

void ArrayRule::check(const CutArray& array, int world_size) {
  if (array.shards < 1 || world_size % array.shards != 0 ||
      array.padded_numel % array.shards != 0) {
    throw Error(Errc::internal, "an array of " + std::to_string(array.padded_numel) +
                                    " elements cannot be cut into " + std::to_string(array.shards) +
                                    " equal shards for " + std::to_string(world_size) + " ranks");
  }
}

// Finds the place of every tensor, and checks that each is in exactly one array.
void ArrayRule::settle_homes(const std::vector<CutArray>& arrays) {
  std::vector<int> times(tensors_.size());
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    const CutArray& array = arrays[i];
    for (const CutArray::Member& member : array.members) {
      const std::int64_t numel = numel_of(tensors_.at(member.tensor).shape);
      if (member.offset < 0 || member.offset + numel > array.padded_numel) {
        throw Error(Errc::internal, "tensor number " + std::to_string(member.tensor) +
                                        " does not lie in its array");
      }
      ++times[member.tensor];
      homes_[member.tensor] = {.array = i,
                               .offset = member.offset,
                               .numel = numel,
                               .shard_numel = array.padded_numel / array.shards,
                               .shards = array.rank_zero_only || numel == 0 ? 0 : array.shards};
    }
  }
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] != 1) {
      throw Error(Errc::internal, "tensor number " + std::to_string(i) + " is in " +
                                      std::to_string(times[i]) + " arrays, expected one");
    }
  }
}

ArrayRule::Range ArrayRule::in_shard(const Home& home, std::int64_t shard) {
  const std::int64_t first = shard * home.shard_numel - home.offset;
  return {.begin = std::clamp<std::int64_t>(first, 0, home.numel),
          .end = std::clamp<std::int64_t>(first + home.shard_numel, 0, home.numel)};
}

// Visits the shards that hold elements of a tensor.
template <typename VisitPiece>
void ArrayRule::for_each_shard(const Home& home, const VisitPiece& visit) const {
  const std::int64_t last = (home.offset + home.numel - 1) / home.shard_numel;
  for (std::int64_t shard = home.offset / home.shard_numel; shard <= last; ++shard) {
    visit(static_cast<std::size_t>(shard), in_shard(home, shard));
  }
}

// Builds the lines of all shards with replicas. The first pass measures them, the second cuts them.
void ArrayRule::cut_lines(int world_size) {
  std::map<int, std::vector<std::uint64_t>> nbytes;
  const auto for_each_piece = [&](const auto& visit) {
    for (std::size_t i = 0; i < homes_.size(); ++i) {
      if (homes_[i].shards > 0 && homes_[i].shards < world_size) {
        for_each_shard(homes_[i], [&](std::size_t shard, Range range) {
          visit(i, homes_[i].shards, shard, range);
        });
      }
    }
  };
  for_each_piece([&](std::size_t i, int shards, std::size_t shard, Range range) {
    auto& line = nbytes.try_emplace(shards, static_cast<std::size_t>(shards)).first->second;
    line[shard] += static_cast<std::uint64_t>(range.end - range.begin) * size_of(tensors_[i].dtype);
  });
  for (const auto& [shards, lengths] : nbytes) {
    for (const std::uint64_t length : lengths) {
      lines_[shards].emplace_back(world_size / shards, length);
    }
  }
  for_each_piece([&](std::size_t i, int shards, std::size_t shard, Range range) {
    lines_[shards][shard].add(i, tensors_[i], range.begin, range.end);
  });
}

ArrayRule::ArrayRule(const std::vector<CutArray>& arrays, const std::vector<PlannedTensor>& tensors,
                     int world_size)
    : arrays_(arrays), homes_(tensors.size()) {
  for (const PlannedTensor& tensor : tensors) {
    tensors_.push_back({.name = {}, .path = {}, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  for (const CutArray& array : arrays) {
    check(array, world_size);
  }
  settle_homes(arrays);
  cut_lines(world_size);
}

// Emits the chunks of a range. They are contiguous in the array, so that a chunk's source is a
// range of it, too.
template <typename VisitChunk>
void ArrayRule::visit_range(std::size_t tensor, Range range, const VisitChunk& visit) const {
  std::int64_t begin = range.begin;
  for (Box& box : boxes_of_range(tensors_[tensor].shape, range.begin, range.end)) {
    PlannedChunk chunk{.tensor = tensor,
                       .box = std::move(box),
                       .source = homes_[tensor].array,
                       .source_begin = homes_[tensor].offset + begin};
    begin += chunk.box.numel();
    visit(std::move(chunk));
  }
}

// A rank looks up its range of each tensor: its shard of the array, then its replica's part of it.
std::vector<PlannedChunk> ArrayRule::chunks(int rank) const {
  std::vector<PlannedChunk> chunks;
  const auto keep = [&](PlannedChunk&& chunk) { chunks.push_back(std::move(chunk)); };
  for (std::size_t i = 0; i < homes_.size(); ++i) {
    const Home& home = homes_[i];
    if (home.shards == 0) {
      if (rank == 0) {
        keep({.tensor = i,
              .box = whole(tensors_[i].shape),
              .source = home.array,
              .source_begin = home.offset});
      }
      continue;
    }
    Range range = in_shard(home, rank % home.shards);
    if (const auto lines = lines_.find(home.shards); lines != lines_.end()) {
      const Line& line = lines->second[static_cast<std::size_t>(rank % home.shards)];
      const auto replica = static_cast<std::size_t>(rank / home.shards);
      range = {.begin = line.before(replica, i, range.begin, range.end),
               .end = line.before(replica + 1, i, range.begin, range.end)};
    }
    visit_range(i, range, keep);
  }
  return chunks;
}

void ArrayRule::for_each_chunk(std::size_t tensor, const Visit& visit) const {
  const Home& home = homes_[tensor];
  if (home.shards == 0) {
    visit(0, {.tensor = tensor,
              .box = whole(tensors_[tensor].shape),
              .source = home.array,
              .source_begin = home.offset});
  } else {
    for_each_chunk(tensor, 0, home.numel, visit);
  }
}

// The same from the side of a tensor: walks the shards that the range touches, and in each the
// replicas, from the one that holds the first wanted element.
void ArrayRule::for_each_chunk(std::size_t tensor, std::int64_t begin, std::int64_t end,
                               const Visit& visit) const {
  const Home& home = homes_[tensor];
  if (begin >= end) {
    return;
  }
  if (home.shards == 0) {
    for_each_chunk(tensor, visit);
    return;
  }
  const auto visit_part = [&](std::int64_t rank, Range part) {
    visit_range(tensor, part, [&](PlannedChunk&& chunk) { visit(static_cast<int>(rank), chunk); });
  };
  const auto lines = lines_.find(home.shards);
  const std::int64_t last = (home.offset + end - 1) / home.shard_numel;
  for (std::int64_t shard = (home.offset + begin) / home.shard_numel; shard <= last; ++shard) {
    const Range range = in_shard(home, shard);
    if (lines == lines_.end()) {
      visit_part(shard, range);
      continue;
    }
    const Line& line = lines->second[static_cast<std::size_t>(shard)];
    std::size_t replica = line.replica_of(tensor, std::max(begin, range.begin));
    std::int64_t at = line.before(replica, tensor, range.begin, range.end);
    for (; at < std::min(end, range.end); ++replica) {
      const Range part{.begin = at,
                       .end = line.before(replica + 1, tensor, range.begin, range.end)};
      visit_part(shard + static_cast<std::int64_t>(replica) * home.shards, part);
      at = part.end;
    }
  }
}

}  // namespace

std::unique_ptr<CutRule> cut_by_rows(const std::vector<PlannedTensor>& tensors, int world_size) {
  return std::make_unique<RowRule>(tensors, world_size);
}

std::unique_ptr<CutRule> cut_arrays(const std::vector<CutArray>& arrays,
                                    const std::vector<PlannedTensor>& tensors, int world_size) {
  return std::make_unique<ArrayRule>(arrays, tensors, world_size);
}

}  // namespace acc::checkpoint::dcp
