// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Parts of tensors: boxes, and ranges of elements in row-major order. Pure arithmetic without
/// input or output.
namespace acc::checkpoint {

/// Extents of the dimensions, outermost first; empty for a scalar.
using Shape = std::vector<std::int64_t>;

/// Largest number of dimensions. torch has the same limit for most operations.
inline constexpr std::size_t kMaxDimensions = 64;

/// Returns text such as "[2, 3]".
std::string to_string(const Shape& shape);
/// Returns the number of elements. The shape must have passed check_shape if it comes from a file.
std::int64_t numel_of(const Shape& shape) noexcept;
/// Checks a shape from a file. Throws Error(config) that begins with `what` if an extent is
/// negative, if there are more than kMaxDimensions, or if the number of elements (extents of 0
/// counted as 1) exceeds 2^62.
void check_shape(const Shape& shape, const std::string& what);

/// The elements with offsets[d] <= i[d] < offsets[d] + sizes[d] of a tensor. Both lists are as long
/// as the tensor's shape.
struct Box {
  Shape offsets;
  Shape sizes;

  [[nodiscard]] std::int64_t numel() const noexcept { return numel_of(sizes); }
  bool operator==(const Box&) const = default;
};

/// Returns the box of all elements.
Box whole(const Shape& shape);
/// True if the box lies in the shape. Safe for arbitrary numbers.
bool lies_in(const Box& box, const Shape& shape) noexcept;
/// Returns text such as "[0:2, 3:6]".
std::string to_string(const Box& box);

/// Returns elements [begin, end) of a tensor, in row-major order, as the fewest boxes. There are at
/// most 2n - 1 for n dimensions. Each box is contiguous in the tensor, and they are in the order of
/// their elements. An empty range gives none. Throws Error(internal) if the range is not in the
/// tensor.
std::vector<Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end);

/// Returns rows [rank * c, (rank + 1) * c) of dimension 0 with c = ceil(rows / ranks), as FSDP 2
/// and the sharded state dict of FSDP 1 cut a parameter. The box may have no rows. A scalar belongs
/// to rank 0, and the other ranks get nothing.
std::optional<Box> row_box(const Shape& shape, int rank, int ranks);

/// Receives a run: `numel` elements that are contiguous in two places, with the number of the first
/// element in each. Runs are visited in rising order in both places and are as long as possible.
using VisitRun =
    std::function<void(std::int64_t in_first, std::int64_t in_second, std::int64_t numel)>;
/// Visits what a box, stored contiguously, shares with elements [begin, end) of its tensor.
/// `in_first` counts from the beginning of the box, `in_second` from `begin`.
void for_each_run(const Shape& shape, const Box& box, std::int64_t begin, std::int64_t end,
                  const VisitRun& visit);
/// Visits what two boxes of a tensor share. Both are stored contiguously.
void for_each_run(const Box& first, const Box& second, const VisitRun& visit);

/// Returns the number of elements from the first to the last one of a strided tensor. Empty strides
/// mean row-major order. Nothing if it exceeds 2^62. Strides are not negative.
std::optional<std::int64_t> stored_numel(const Shape& shape, const Shape& strides) noexcept;
/// Copies elements [begin, begin + numel) of a strided tensor, in row-major order. from: its first
/// element; nbytes: size of an element; out: [numel].
void gather_strided(const std::byte* from, const Shape& shape, const Shape& strides,
                    std::size_t nbytes, std::int64_t begin, std::int64_t numel, std::byte* out);

/// Returns the number in the tensor of element `index` of a box.
std::int64_t element_in_tensor(const Shape& shape, const Box& box, std::int64_t index) noexcept;

/// Returns "" if the boxes cover the shape exactly once, else a sentence with the first fault
/// ("rows 3:5 are in no piece", "box [..] and box [..] overlap"). O(n log n) for boxes that were
/// cut from ranges or rows. Boxes without elements are ignored.
std::string cover_fault(const Shape& shape, const std::vector<Box>& boxes);

}  // namespace acc::checkpoint
