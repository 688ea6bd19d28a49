// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/runtime/types.hpp"
#include "kernels/update_rules.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// Arithmetic on contiguous arrays, compiled for the widest vector unit of this CPU. Pointers need
/// only the alignment of their elements. Operations are neither fused (FMA) nor reordered, so
/// results are bitwise equal on every CPU and for every alignment. Pure functions; any thread may
/// call them.
namespace acc::kernels {

/// result[i] = (accumulate ? destinations[0][i] : 0) + scale * (((s0[i] op s1[i]) op s2[i]) op …),
/// in the order of `sources`, in float32. The result is written to every destination. A destination
/// may be one of the sources; otherwise arrays do not overlap. At least one source and one
/// destination.
struct Reduction {
  std::span<const void* const> sources;  ///< each [numel] of `dtype`
  std::span<float* const> destinations;  ///< each [numel]
  std::size_t numel = 0;
  DType dtype = DType::float32;  ///< float32, bfloat16 or float16
  ReduceOp op = ReduceOp::sum;
  float scale = 1.0F;
  bool accumulate = false;
};

/// Type of the elements of a tensor. `boolean`: one byte, 0 or 1.
enum class Element : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  int8,
  int16,
  int32,
  int64,
  uint8,
  boolean
};
inline constexpr int kNumElements = 10;

/// Operation on tensors over ranks. For booleans, sum is "or" and product is "and". The average of
/// integers is rounded towards zero.
enum class ElementOp : std::uint8_t {
  sum,
  average,
  product,
  min,
  max,
  bitwise_and,
  bitwise_or,
  bitwise_xor
};
inline constexpr int kNumElementOps = 8;

constexpr std::size_t nbytes_of(Element element) noexcept {
  constexpr std::size_t kWidths[] = {4, 2, 2, 8, 1, 2, 4, 8, 1, 1};
  return element < Element{kNumElements} ? kWidths[static_cast<std::size_t>(element)] : 1;
}
std::string_view to_string(Element element) noexcept;
std::string_view to_string(ElementOp op) noexcept;

/// True if `op` is defined for `element`: bitwise operations are not for floating-point types, and
/// the average is not for booleans.
constexpr bool is_defined(Element element, ElementOp op) noexcept {
  const bool is_bitwise = op >= ElementOp::bitwise_and;
  return is_bitwise ? element >= Element::int8
                    : op != ElementOp::average || element != Element::boolean;
}

/// destination[i] = s0[i] op s1[i] op …, in the order of `sources`. 16-bit floating-point types are
/// computed in float32 and rounded once. The destination may be one of the sources; otherwise
/// arrays do not overlap. At least one source.
struct ElementReduction {
  std::span<const void* const> sources;  ///< each [numel]
  void* destination = nullptr;           ///< [numel]
  std::size_t numel = 0;
  Element element = Element::float32;
  ElementOp op = ElementOp::sum;
};

/// Returns the factor of torch's clip_grad_norm_: min(1, max_norm / (norm + 1e-6)); 1 if max_norm
/// is 0 (no clipping). A NaN norm gives NaN.
inline double clip_coefficient(double norm, double max_norm) noexcept {
  const double coefficient = max_norm > 0.0 ? max_norm / (norm + 1e-6) : 1.0;
  return coefficient > 1.0 ? 1.0 : coefficient;
}

/// Result of measuring a gradient, for the host and for the update.
struct ClipFigures {
  double norm;
  double coefficient;  ///< of `clip_coefficient`
  float factor;        ///< the coefficient in float32
};

/// Arrays of one shard for an optimizer step; each [shard numel]. Either weights and moments are
/// both float32, or weights have 16 bits and moments are bfloat16. The rules are computed in
/// float32.
struct UpdateArrays {
  void* weights;       ///< `weight_dtype`, updated in place
  const float* grads;  ///< not changed
  void* first;         ///< the rule's first state; null if it has none
  void* second;        ///< its second state; null if it has fewer
  void* third = nullptr;
  void* rounded;  ///< receives a copy of the new weights in `rounded_dtype`; may be null
  DType rounded_dtype = DType::bfloat16;
  DType weight_dtype = DType::float32;
  DType moment_dtype = DType::float32;
  /// Stochastic rounding of 16-bit weights: a value is rounded up or down at random, so that the
  /// expected result is the exact value. The random number is a hash of `noise_key` and the
  /// element's number, which is `noise_first` for element 0. So it is the same on every device and
  /// for every way to shard a parameter.
  bool stochastic = false;
  std::uint64_t noise_key = 0;
  std::uint32_t noise_first = 0;
  /// One more factor on each gradient, in memory of the device; null: none.
  const float* clip = nullptr;
};

/// Elements of a block of states in 8 bits (packed_states.hpp).
inline constexpr std::int64_t kPackedBlock = 256;
/// The largest number of states of a rule.
inline constexpr std::size_t kMostStates = 3;

/// Elements of one parameter in a shard that are updated together: whole blocks, of which the
/// parameter's last may be shorter, or a part of one block.
struct PackedRange {
  std::size_t begin = 0;  ///< in the arrays of the update
  std::size_t numel = 0;
  bool decays = true;                              ///< weight decay applies
  std::array<std::uint8_t*, kMostStates> codes{};  ///< by state, [numel]
  std::array<float*, kMostStates> scales{};        ///< by state, [number of blocks]
};

/// c = alpha * (a b) + beta * added, float32. Each element is a sum over `inner` in order, by fused
/// multiply-add from 0, whatever the vector unit. Element (i, k) of `a` is a[i * a_row + k *
/// a_column]; likewise `b`. `added` and `c` are [rows][columns] without gaps and may be the same.
struct Product {
  const float* a = nullptr;  ///< [rows][inner]
  std::size_t a_row = 0;
  std::size_t a_column = 1;
  const float* b = nullptr;  ///< [inner][columns]
  std::size_t b_row = 0;
  std::size_t b_column = 1;
  const float* added = nullptr;  ///< null: nothing is added
  float* c = nullptr;
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::size_t inner = 0;
  float alpha = 1.0F;
  float beta = 0.0F;
  /// The product is symmetric: blocks that lie completely above the diagonal are not computed.
  bool symmetric = false;
  float* scratch = nullptr;  ///< [scratch_numel(rows, inner)]

  /// Sizes of the blocks of `c` that are computed at a time.
  static constexpr std::size_t kBlockRows = 12;
  static constexpr std::size_t kBlockColumns = 32;
  static constexpr std::size_t scratch_numel(std::size_t rows, std::size_t inner) noexcept {
    const std::size_t padded = (rows + kBlockRows - 1) / kBlockRows * kBlockRows;
    return (padded + kBlockColumns) * inner;
  }
};

/// The functions of one variant, compiled from kernels_body.inc.
struct Kernels {
  const char* name;

  void (*reduce)(const Reduction&);
  void (*reduce_elements)(const ElementReduction&);
  /// Sum of squares in double: 16 interleaved partial sums, which are then added in order.
  double (*squared_norm)(const float* values, std::size_t numel);
  void (*scale)(float* values, float factor, std::size_t numel);
  /// values[i] = factor * values[i], clamped to [-limit, limit]; NaN stays NaN.
  void (*scale_clamped)(float* values, float factor, float limit, std::size_t numel);

  /// Rounds to nearest, ties to even; NaN stays NaN.
  void (*f32_to_bf16)(const float* from, std::uint16_t* to, std::size_t numel);
  void (*bf16_to_f32)(const std::uint16_t* from, float* to, std::size_t numel);
  void (*f32_to_f16)(const float* from, std::uint16_t* to, std::size_t numel);
  void (*f16_to_f32)(const std::uint16_t* from, float* to, std::size_t numel);

  /// One block of `encode` and `decode` (block_code.hpp). values: [kCodeBlock]; coded:
  /// [code_block_nbytes].
  void (*encode_block)(BlockCode code, const float* values, std::byte* coded);
  void (*decode_block)(BlockCode code, const std::byte* coded, float* values);
  /// States in 8 bits (packed_states.hpp). scale: of the block in which the elements lie, above
  /// half of the magnitude of each finite value.
  void (*unpack)(const std::uint8_t* codes, bool is_signed, float scale, float* to,
                 std::size_t numel);
  void (*pack)(const float* values, bool is_signed, float scale, std::uint8_t* to,
               std::size_t numel);
  /// The largest value and the largest negated value, at least 0 each. If an element is NaN, both.
  void (*extremes)(const float* values, std::size_t numel, float* highest, float* lowest);

  /// Columns [first, first + count) of a product; `first` is a multiple of kBlockColumns.
  void (*multiply)(const Product&, std::size_t first, std::size_t count);

  /// Optimizer steps in one pass over elements [begin, begin + numel) of the arrays, which do not
  /// overlap. By the index of UpdateStep; step: the value that it holds. `update` calls them.
  using Update = void (*)(const void* step, const UpdateArrays&, std::size_t begin,
                          std::size_t numel);
  std::array<Update, std::variant_size_v<UpdateStep>> updates;

  /// The same with states in 8 bits, of the first `numel` elements of a range, which are whole
  /// blocks. Null for rules without such states.
  using UpdatePacked = void (*)(const void* step, const UpdateArrays&, const PackedRange&,
                                std::size_t numel);
  std::array<UpdatePacked, std::variant_size_v<UpdateStep>> packed_updates;

  void update(const UpdateStep& step, const UpdateArrays& arrays, std::size_t begin,
              std::size_t numel) const;
  void update_packed(const UpdateStep& step, const UpdateArrays& arrays, const PackedRange& range,
                     std::size_t numel) const;
};

/// The step of elements with or without weight decay, with one more factor on the gradient. clip:
/// UpdateArrays::clip.
UpdateStep adjusted(const UpdateStep& step, const float* clip, bool decays);

/// The fastest variant that this CPU supports; chosen at the first call.
const Kernels& kernels() noexcept;

/// All variants that this CPU supports, fastest first.
std::span<const Kernels* const> available_kernels() noexcept;

/// Converts between float32, bfloat16 and float16, rounding to nearest even; NaN and infinity are
/// kept. Between the two 16-bit dtypes, values are converted through float32. Equal dtypes: a copy,
/// in which `to` may be `from`. Otherwise the arrays do not overlap. Throws Error(internal) for
/// other dtypes.
void cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel);

/// Sets element i of every destination to s0[i] op s1[i] op …, in the order of `sources`, in
/// double. Not vectorized: for a few values.
void reduce_doubles(ReduceOp op, std::span<const double* const> sources,
                    std::span<double* const> destinations, std::size_t numel) noexcept;

}  // namespace acc::kernels
