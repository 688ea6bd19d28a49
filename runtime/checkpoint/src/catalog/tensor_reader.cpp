// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/catalog/tensor_reader.hpp"

#include "acc/base/error.hpp"
#include "catalog/piece_reader.hpp"

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace acc::checkpoint {
namespace {

// Returns the first and the last element of a box, which must have some, as numbers in its tensor.
std::pair<std::int64_t, std::int64_t> ends_of(const Shape& shape, const Box& box) {
  return {element_in_tensor(shape, box, 0), element_in_tensor(shape, box, box.numel() - 1)};
}

// Boxes overlap if their intervals overlap in every dimension.
bool overlap(const Box& a, const Box& b) {
  for (std::size_t d = 0; d < a.sizes.size(); ++d) {
    if (a.offsets[d] >= b.offsets[d] + b.sizes[d] || b.offsets[d] >= a.offsets[d] + a.sizes[d]) {
      return false;
    }
  }
  return true;
}

bool contains(const Box& outer, const Box& inner) {
  for (std::size_t d = 0; d < inner.sizes.size(); ++d) {
    if (inner.offsets[d] < outer.offsets[d] ||
        inner.offsets[d] + inner.sizes[d] > outer.offsets[d] + outer.sizes[d]) {
      return false;
    }
  }
  return true;
}

void check_dtype(const StoredTensor& tensor, Dtype dtype) {
  if (dtype != tensor.dtype && !(is_real(dtype) && is_real(tensor.dtype))) {
    throw Error(Errc::config, "tensor '" + tensor.name + "' is " +
                                  std::string(torch_name(tensor.dtype)) +
                                  ", which cannot be read as " + std::string(torch_name(dtype)));
  }
}

// The pieces must have delivered every element that was asked for. Formats check that pieces cover
// their tensors; this finds mistakes in a rule.
void check_complete(const StoredTensor& tensor, const Box* box, std::int64_t expected,
                    std::int64_t found) {
  if (found != expected) {
    throw Error(Errc::config, "tensor '" + tensor.name + "' of shape " + to_string(tensor.shape) +
                                  (box != nullptr ? ", box " + to_string(*box) : "") + ": " +
                                  std::to_string(expected) + " elements wanted, its pieces hold " +
                                  std::to_string(found));
  }
}

}  // namespace

class TensorReader::State {
 public:
  explicit State(const Catalog& catalog) : sources_(catalog) {}

  /// Walks the wanted runs of a piece: visit(in_piece, in_out, numel).
  using ForEachRun = std::function<void(const VisitRun& visit)>;

  // Reads the runs and returns the number of elements. The source is looked up at the first run, so
  // that a piece without wanted elements costs nothing.
  std::int64_t read_piece(const StoredTensor& tensor, const StoredPiece& piece, bool all,
                          Dtype dtype, std::byte* out, const ForEachRun& for_each) {
    std::optional<PieceReader> reader;
    StridedBytes strided;
    std::int64_t done = 0;
    for_each([&](std::int64_t in_piece, std::int64_t in_out, std::int64_t numel) {
      std::byte* const to = out + static_cast<std::size_t>(in_out) * size_of(dtype);
      if (!reader && !strided) {
        PieceSource source = sources_.find(tensor, piece);
        if (source.strides.empty()) {
          reader.emplace(std::move(source), tensor, piece, all, scratch_);
        } else {
          strided = strided_bytes(std::move(source), tensor, piece);
        }
      }
      if (strided) {
        read_strided(*strided, tensor, piece, {in_piece, numel}, dtype, to);
      } else {
        reader->read(in_piece, numel, dtype, to);
      }
      done += numel;
      if (meter_ != nullptr) {
        meter_->add(static_cast<std::uint64_t>(numel) * size_of(tensor.dtype));
      }
    });
    if (reader) {
      reader->finish();
    }
    return done;
  }

  void count_into(ProgressMeter* meter) noexcept { meter_ = meter; }

  // True if each part can be checked alone (blocks of checksums, or a record of at most one block),
  // or if there are no checksums.
  bool checks_parts(const StoredTensor& tensor, const StoredPiece& piece) {
    const PieceSource source = sources_.find(tensor, piece);
    return !source.has_record || !source.blocks.empty() || source.record_nbytes <= torch::kBlock ||
           (!source.strides.empty() && source.nbytes == source.record_nbytes);
  }

  bool verify_piece(const StoredTensor& tensor, const StoredPiece& piece) {
    PieceSource source = sources_.find(tensor, piece);
    const bool in_parts =
        source.has_record && source.blocks.empty() && source.nbytes != source.record_nbytes;
    const std::pair place(piece.file, source.record_offset);
    if (in_parts) {  // verifying one tensor of the record verifies all, so it is done only once
      const std::lock_guard lock(mutex_);
      if (verified_.contains(place)) {
        return true;
      }
    }
    const bool is_checked = PieceReader(std::move(source), tensor, piece, true, scratch_).verify();
    if (in_parts) {
      const std::lock_guard lock(mutex_);
      verified_.insert(place);
    }
    return is_checked;
  }

 private:
  /// A piece in another order than row-major, whole in memory.
  struct Strided {
    Shape strides;
    std::vector<std::byte> bytes;
  };
  using StridedBytes = std::shared_ptr<const Strided>;

  // Any run may need bytes from all of the piece, and a piece is read in many calls, so the last
  // few pieces are kept.
  StridedBytes strided_bytes(PieceSource source, const StoredTensor& tensor,
                             const StoredPiece& piece) {
    constexpr std::size_t kMaxKept = 4;
    const std::pair place(piece.file, source.offset);
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [at, kept] : strided_) {
        if (at == place && kept->strides == source.strides) {
          return kept;
        }
      }
    }
    auto made = std::make_shared<Strided>();
    made->strides = source.strides;
    made->bytes.resize(source.nbytes);
    const auto numel = static_cast<std::int64_t>(source.nbytes / size_of(tensor.dtype));
    PieceReader reader(std::move(source), tensor, piece, true, scratch_);
    reader.read(0, numel, tensor.dtype, made->bytes.data());
    reader.finish();
    const std::lock_guard lock(mutex_);
    if (strided_.size() == kMaxKept) {
      strided_.pop_front();
    }
    strided_.emplace_back(place, made);
    return made;
  }

  struct Elements {
    std::int64_t begin, numel;
  };
  static void read_strided(const Strided& from, const StoredTensor& tensor,
                           const StoredPiece& piece, Elements wanted, Dtype dtype, std::byte* out) {
    constexpr std::int64_t kAtOnce = 4096;
    const std::size_t size = size_of(tensor.dtype);
    std::vector<std::byte> values(static_cast<std::size_t>(std::min(wanted.numel, kAtOnce)) * size);
    for (std::int64_t done = 0; done < wanted.numel; done += kAtOnce) {
      const std::int64_t count = std::min(kAtOnce, wanted.numel - done);
      gather_strided(from.bytes.data(), piece.box.sizes, from.strides, size, wanted.begin + done,
                     count, values.data());
      convert(values.data(), tensor.dtype, out + static_cast<std::size_t>(done) * size_of(dtype),
              dtype, static_cast<std::size_t>(count));
    }
  }

  PieceSources sources_;
  Scratch scratch_;
  ProgressMeter* meter_ = nullptr;
  std::mutex mutex_;                                            // guards the members below
  using Place = std::pair<std::uint32_t, std::uint64_t>;        ///< file, offset
  std::deque<std::pair<Place, StridedBytes>> strided_;          ///< oldest first
  std::set<std::pair<std::uint32_t, std::uint64_t>> verified_;  ///< records: file, offset
};

TensorReader::TensorReader(const Catalog& catalog) : state_(std::make_unique<State>(catalog)) {}

TensorReader::~TensorReader() = default;

void TensorReader::count_into(ProgressMeter* meter) noexcept {
  state_->count_into(meter);
}

void TensorReader::read(const StoredTensor& tensor, std::int64_t begin, std::int64_t numel,
                        Dtype dtype, void* out) {
  if (begin < 0 || numel < 0 || numel > numel_of(tensor.shape) - begin) {
    throw Error(Errc::internal, "elements " + std::to_string(begin) + " to " +
                                    std::to_string(begin + numel) + " asked of '" + tensor.name +
                                    "' of shape " + to_string(tensor.shape));
  }
  check_dtype(tensor, dtype);
  const std::int64_t end = begin + numel;
  std::int64_t done = 0;
  tensor.for_each_piece(begin, end, [&](const StoredPiece& piece) {
    const auto [first, last] = ends_of(tensor.shape, piece.box);
    done += state_->read_piece(
        tensor, piece, first >= begin && last < end, dtype, static_cast<std::byte*>(out),
        [&](const VisitRun& visit) { for_each_run(tensor.shape, piece.box, begin, end, visit); });
  });
  check_complete(tensor, nullptr, numel, done);
}

void TensorReader::read(const StoredTensor& tensor, const Box& box, Dtype dtype, void* out) {
  if (!lies_in(box, tensor.shape)) {
    throw Error(Errc::internal, "box " + to_string(box) + " asked of '" + tensor.name +
                                    "' of shape " + to_string(tensor.shape));
  }
  check_dtype(tensor, dtype);
  if (box.numel() == 0) {
    return;
  }
  std::int64_t done = 0;
  const auto [begin, last] = ends_of(tensor.shape, box);
  tensor.for_each_piece(begin, last + 1, [&](const StoredPiece& piece) {
    if (overlap(piece.box, box)) {
      done += state_->read_piece(
          tensor, piece, contains(box, piece.box), dtype, static_cast<std::byte*>(out),
          [&](const VisitRun& visit) { for_each_run(piece.box, box, visit); });
    }
  });
  check_complete(tensor, &box, box.numel(), done);
}

bool TensorReader::checks_parts(const StoredTensor& tensor) {
  return std::ranges::all_of(tensor.pieces, [&](const StoredPiece& piece) {
    return piece.box.numel() == 0 || state_->checks_parts(tensor, piece);
  });
}

bool TensorReader::verify(const StoredTensor& tensor) {
  bool all = true;
  tensor.for_each_piece(0, numel_of(tensor.shape),
                        [&](const StoredPiece& piece) { all = verify(tensor, piece) && all; });
  return all;
}

bool TensorReader::verify(const StoredTensor& tensor, const StoredPiece& piece) {
  return piece.box.numel() == 0 || state_->verify_piece(tensor, piece);
}

}  // namespace acc::checkpoint
