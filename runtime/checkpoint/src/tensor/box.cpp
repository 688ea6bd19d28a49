// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/tensor/box.hpp"

#include "acc/base/error.hpp"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

// Three algorithms share one idea: a row-major tensor is a nest of dimensions, and a box is
// contiguous in it exactly if it takes all of every dimension after the first one that it cuts. A
// "run" is such a contiguous stretch. RunVisitor and for_each_run list runs, boxes_of_range builds
// the fewest boxes that are one run each, and CoverCheck proves that boxes tile a shape.
namespace acc::checkpoint {
namespace {

constexpr std::int64_t kMaxNumel = std::int64_t{1} << 62;

// Number of elements between neighbouring indices of each dimension.
Shape strides_of(const Shape& shape) {
  Shape strides(shape.size());
  std::int64_t stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    strides[d] = stride;
    stride *= shape[d];
  }
  return strides;
}

std::string interval(std::int64_t begin, std::int64_t end) {
  return std::to_string(begin) + ":" + std::to_string(end);
}

// Visits the runs that a box of a tensor shares with the elements [begin, end) of that tensor.
class RunVisitor {
 public:
  RunVisitor(const Shape& shape, const Box& box, std::int64_t begin, std::int64_t end,
             const VisitRun& visit)
      : box_(box),
        in_tensor_(strides_of(shape)),
        in_box_(strides_of(box.sizes)),
        begin_(begin),
        end_(end),
        visit_(visit) {
    // A run covers all trailing dimensions of which the box has the full extent, and a stretch of
    // the dimension before them.
    run_dimension_ = shape.empty() ? 0 : shape.size() - 1;
    while (run_dimension_ > 0 && box.sizes[run_dimension_] == shape[run_dimension_]) {
      --run_dimension_;
    }
  }

  void operator()() const {
    if (box_.sizes.empty()) {
      visit_(0, 0, 1);
    } else {
      descend(0, 0, 0);
    }
  }

 private:
  // d: current dimension. in_tensor, in_box: element numbers at index 0 of dimension d and of those
  // after it, given the indices of the outer dimensions.
  void descend(std::size_t d, std::int64_t in_tensor, std::int64_t in_box) const {
    const std::int64_t first = box_.offsets[d];
    const std::int64_t last = first + box_.sizes[d];
    if (d == run_dimension_) {
      const std::int64_t start = in_tensor + first * in_tensor_[d];
      const std::int64_t from = std::max(start, begin_);
      const std::int64_t to = std::min(in_tensor + last * in_tensor_[d], end_);
      if (from < to) {
        visit_(in_box + (from - start), from - begin_, to - from);
      }
      return;
    }
    // Skips indices that lie before the range, without visiting them.
    const std::int64_t stride = in_tensor_[d];
    std::int64_t i = std::max(first, (std::max(begin_, in_tensor) - in_tensor) / stride);
    for (; i < last && in_tensor + i * stride < end_; ++i) {
      descend(d + 1, in_tensor + i * stride, in_box + (i - first) * in_box_[d]);
    }
  }

  const Box& box_;
  Shape in_tensor_, in_box_;
  std::int64_t begin_, end_;
  const VisitRun& visit_;
  std::size_t run_dimension_ = 0;
};

// Checks that boxes cover a shape exactly once. Cuts the current dimension at every border of a
// box. Between two neighbouring borders the set of boxes is constant, so that the check can recurse
// into the next dimension with that set. After the last dimension exactly one box must be left.
// `place_` is the part of the shape under examination, for the message.
class CoverCheck {
 public:
  CoverCheck(const Shape& shape, const std::vector<Box>& boxes)
      : boxes_(boxes), place_(whole(shape)) {}

  // `there`: numbers of the boxes that cover `place_` in all dimensions before d. Returns "" or a
  // sentence that describes the first fault.
  std::string operator()(std::vector<std::size_t> there, std::size_t d) {
    if (there.empty()) {
      return hole(d);
    }
    if (d == place_.sizes.size()) {
      return there.size() == 1 ? ""
                               : "box " + to_string(boxes_[there[0]]) + " and box " +
                                     to_string(boxes_[there[1]]) + " overlap";
    }
    const auto begin_of = [&](std::size_t i) { return boxes_[i].offsets[d]; };
    std::ranges::sort(there, {}, begin_of);
    const std::int64_t extent = place_.sizes[d];
    // A sweep along dimension d: `active` are the boxes at `position`.
    std::vector<std::size_t> active;
    std::size_t next = 0;
    std::string fault;
    for (std::int64_t position = 0; position < extent && fault.empty();) {
      std::erase_if(active, [&](std::size_t i) { return end_of(i, d) <= position; });
      for (; next < there.size() && begin_of(there[next]) == position; ++next) {
        active.push_back(there[next]);
      }
      std::int64_t border = next < there.size() ? begin_of(there[next]) : extent;
      for (const std::size_t i : active) {
        border = std::min(border, end_of(i, d));
      }
      place_.offsets[d] = position;
      place_.sizes[d] = border - position;
      fault = active.empty() ? hole(d) : (*this)(active, d + 1);
      position = border;
    }
    place_.offsets[d] = 0;
    place_.sizes[d] = extent;
    return fault;
  }

 private:
  [[nodiscard]] std::int64_t end_of(std::size_t i, std::size_t d) const {
    return boxes_[i].offsets[d] + boxes_[i].sizes[d];
  }
  [[nodiscard]] std::string hole(std::size_t d) const {
    if (d == 0 && !place_.sizes.empty()) {
      return "rows " + interval(place_.offsets[0], place_.offsets[0] + place_.sizes[0]) +
             " are in no piece";
    }
    return "box " + to_string(place_) + " is in no piece";
  }

  const std::vector<Box>& boxes_;
  Box place_;
};

}  // namespace

std::string to_string(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return text + "]";
}

std::int64_t numel_of(const Shape& shape) noexcept {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

void check_shape(const Shape& shape, const std::string& what) {
  if (shape.size() > kMaxDimensions) {
    throw Error(Errc::config, what + ": expected a shape of at most " +
                                  std::to_string(kMaxDimensions) + " dimensions, found " +
                                  std::to_string(shape.size()));
  }
  std::int64_t numel = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0) {
      throw Error(Errc::config, what + ": shape " + to_string(shape) + " has a negative extent");
    }
    // An extent of 0 counts as 1: strides and sizes of the other dimensions must not overflow.
    if (__builtin_mul_overflow(numel, std::max<std::int64_t>(extent, 1), &numel) ||
        numel > kMaxNumel) {
      throw Error(Errc::config,
                  what + ": shape " + to_string(shape) + " has more elements than can be counted");
    }
  }
}

Box whole(const Shape& shape) {
  return {Shape(shape.size(), 0), shape};
}

bool lies_in(const Box& box, const Shape& shape) noexcept {
  if (box.offsets.size() != shape.size() || box.sizes.size() != shape.size()) {
    return false;
  }
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (box.offsets[d] < 0 || box.sizes[d] < 0 || box.sizes[d] > shape[d] ||
        box.offsets[d] > shape[d] - box.sizes[d]) {
      return false;
    }
  }
  return true;
}

std::string to_string(const Box& box) {
  std::string text = "[";
  for (std::size_t d = 0; d < box.offsets.size(); ++d) {
    text += (d == 0 ? "" : ", ") + interval(box.offsets[d], box.offsets[d] + box.sizes[d]);
  }
  return text + "]";
}

std::vector<Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end) {
  if (begin < 0 || end > numel_of(shape)) {
    throw Error(Errc::internal, "elements " + interval(begin, end) +
                                    " asked of a tensor of shape " + to_string(shape));
  }
  const Shape strides = strides_of(shape);
  std::vector<Box> boxes;
  while (begin < end) {
    // Finds the outermost dimension d such that the range begins at a whole index of d and holds at
    // least one of them. The box takes as many indices of d as fit. Only a scalar has none.
    std::size_t d = 0;
    while (d < shape.size() && (begin % strides[d] != 0 || end - begin < strides[d])) {
      ++d;
    }
    Box box = whole(shape);
    for (std::size_t i = 0; i <= d && i < shape.size(); ++i) {
      box.offsets[i] = begin / strides[i] % shape[i];
      box.sizes[i] = 1;
    }
    if (d < shape.size()) {
      box.sizes[d] = std::min(shape[d] - box.offsets[d], (end - begin) / strides[d]);
    }
    begin += box.numel();
    boxes.push_back(std::move(box));
  }
  return boxes;
}

std::optional<Box> row_box(const Shape& shape, int rank, int ranks) {
  if (shape.empty()) {
    return rank == 0 ? std::optional(Box{}) : std::nullopt;
  }
  const std::int64_t rows = shape[0];
  // ceil(rows / ranks) without overflow.
  const std::int64_t share = rows / ranks + (rows % ranks != 0 ? 1 : 0);
  Box box = whole(shape);
  box.offsets[0] = std::min(rows, rank * share);
  box.sizes[0] = std::min(share, rows - box.offsets[0]);
  return box;
}

void for_each_run(const Shape& shape, const Box& box, std::int64_t begin, std::int64_t end,
                  const VisitRun& visit) {
  if (begin < end && box.numel() > 0) {
    RunVisitor(shape, box, begin, end, visit)();
  }
}

void for_each_run(const Box& first, const Box& second, const VisitRun& visit) {
  // Moves the common part of both boxes into each box's own coordinates, finds the longest run that
  // is contiguous in both, and visits the runs one by one.
  const std::size_t dimensions = first.sizes.size();
  Box common = first;
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::int64_t end =
        std::min(first.offsets[d] + first.sizes[d], second.offsets[d] + second.sizes[d]);
    common.offsets[d] = std::max(first.offsets[d], second.offsets[d]);
    common.sizes[d] = end - common.offsets[d];
    if (common.sizes[d] <= 0) {
      return;
    }
  }
  const auto relative_to = [&](const Box& box) {
    Box moved = common;
    std::ranges::transform(common.offsets, box.offsets, moved.offsets.begin(), std::minus<>());
    return moved;
  };
  const Box in_first = relative_to(first), in_second = relative_to(second);
  std::size_t run_dimension = dimensions == 0 ? 0 : dimensions - 1;
  while (run_dimension > 0 && common.sizes[run_dimension] == first.sizes[run_dimension] &&
         common.sizes[run_dimension] == second.sizes[run_dimension]) {
    --run_dimension;
  }
  std::int64_t run = 1;
  for (std::size_t d = run_dimension; d < dimensions; ++d) {
    run *= common.sizes[d];
  }
  for (std::int64_t i = 0, numel = common.numel(); i < numel; i += run) {
    visit(element_in_tensor(first.sizes, in_first, i),
          element_in_tensor(second.sizes, in_second, i), run);
  }
}

std::int64_t element_in_tensor(const Shape& shape, const Box& box, std::int64_t index) noexcept {
  std::int64_t element = 0, stride = 1;
  for (std::size_t d = shape.size(); d-- > 0;) {
    element += (box.offsets[d] + index % box.sizes[d]) * stride;
    index /= box.sizes[d];
    stride *= shape[d];
  }
  return element;
}

std::string cover_fault(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<std::size_t> filled;
  for (std::size_t i = 0; i < boxes.size(); ++i) {
    if (!lies_in(boxes[i], shape)) {
      return "box " + to_string(boxes[i]) + " does not lie in shape " + to_string(shape);
    }
    if (boxes[i].numel() > 0) {
      filled.push_back(i);
    }
  }
  return numel_of(shape) == 0 ? "" : CoverCheck(shape, boxes)(std::move(filled), 0);
}

std::optional<std::int64_t> stored_numel(const Shape& shape, const Shape& strides) noexcept {
  if (strides.empty() || numel_of(shape) == 0) {
    return numel_of(shape);
  }
  constexpr std::int64_t kMost = std::int64_t{1} << 62;
  std::int64_t last = 0;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(shape[d] - 1, strides[d], &reach) || reach > kMost - 1 - last) {
      return std::nullopt;
    }
    last += reach;
  }
  return last + 1;
}

// Counts the indices of all dimensions, and moves on in the last one.
void gather_strided(const std::byte* from, const Shape& shape, const Shape& strides,
                    std::size_t nbytes, std::int64_t begin, std::int64_t numel, std::byte* out) {
  const std::size_t n = shape.size();
  Shape index(n);
  std::int64_t at = 0;
  for (std::size_t d = n; d-- > 0;) {
    index[d] = begin % shape[d];
    begin /= shape[d];
    at += index[d] * strides[d];
  }
  for (; numel > 0; --numel, out += nbytes) {
    std::memcpy(out, from + static_cast<std::size_t>(at) * nbytes, nbytes);
    for (std::size_t d = n; d-- > 0;) {
      at += strides[d];
      if (++index[d] < shape[d]) {
        break;
      }
      at -= shape[d] * strides[d];
      index[d] = 0;
    }
  }
}

}  // namespace acc::checkpoint
