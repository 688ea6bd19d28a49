#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

/// Parts of tensors: boxes, and ranges of elements in row-major order. Pure arithmetic.
namespace acc::checkpoint {

/// Sizes, outermost first; empty for a scalar.
using Shape = std::vector<std::int64_t>;

/// torch's own limit for most of what it does with a tensor.
inline constexpr std::size_t kMaxDimensions = 64;

/// "[2, 3]"
std::string to_string(const Shape& shape);
std::int64_t numel_of(const Shape& shape) noexcept;
/// Throws Error(config), beginning with `what`, for a negative extent, more than kMaxDimensions,
/// and where the number of elements, extents of 0 counted as 1, exceeds 2^62. For shapes from
/// files.
void check_shape(const Shape& shape, const std::string& what);

/// Elements offsets[d] <= i[d] < offsets[d] + sizes[d] of a tensor; both as long as its shape.
struct Box {
  Shape offsets;
  Shape sizes;

  [[nodiscard]] std::int64_t numel() const noexcept { return numel_of(sizes); }
  bool operator==(const Box&) const = default;
};

/// All of a tensor.
Box whole(const Shape& shape);
/// Whether the box lies in the shape; on any numbers.
bool lies_in(const Box& box, const Shape& shape) noexcept;
/// "[0:2, 3:6]"
std::string to_string(const Box& box);

/// Elements [begin, end) of a tensor, row-major, as the fewest boxes, in order: at most 2n - 1 for
/// n dimensions. Each is contiguous in the tensor. Empty ranges give none. Throws Error(internal)
/// for a range that is not in the tensor.
std::vector<Box> boxes_of_range(const Shape& shape, std::int64_t begin, std::int64_t end);

/// Rows [rank * c, (rank + 1) * c) of dimension 0, c = ceil(rows / ranks), as FSDP 2 and FSDP 1's
/// sharded state dict cut; may have no rows. A scalar is rank 0's; the others have nothing of it.
std::optional<Box> row_box(const Shape& shape, int rank, int ranks);

/// Runs of elements that lie together in two places: from which element on in either, how many.
/// They rise in both and are as long as they can be.
using VisitRun =
    std::function<void(std::int64_t in_first, std::int64_t in_second, std::int64_t numel)>;
/// What a box, stored contiguously, shares with elements [begin, end) of its tensor; the second
/// count is from `begin`.
void for_each_run(const Shape& shape, const Box& box, std::int64_t begin, std::int64_t end,
                  const VisitRun& visit);
/// What two boxes of a tensor share, each stored contiguously.
void for_each_run(const Box& first, const Box& second, const VisitRun& visit);

/// The number in the tensor of element `index` of a box.
std::int64_t element_in_tensor(const Shape& shape, const Box& box, std::int64_t index) noexcept;

/// Empty where the boxes cover the shape exactly once, else a sentence that says where not ("rows
/// 3:5 are in no piece", "box [..] and box [..] overlap"). O(n log n) for boxes cut from ranges or
/// rows; boxes without elements count for nothing.
std::string cover_fault(const Shape& shape, const std::vector<Box>& boxes);

}  // namespace acc::checkpoint
