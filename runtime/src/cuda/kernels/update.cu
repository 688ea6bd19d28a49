// SPDX-License-Identifier: Apache-2.0
#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/tiles.cuh"

// Optimizer steps on a GPU: one kernel template, with the rule (a type of kernels::UpdateStep) and
// the dtypes of weights, moments and rounded copy as parameters. A launch gets up to 64 ranges of
// the shard as an argument and treats their tiles as one sequence.
namespace acc::cuda {
namespace {

constexpr int kMaxRanges = 64;
constexpr unsigned kQuads = 2;  // quads of each array that a thread loads before it computes
constexpr std::int64_t kUpdateTile = std::int64_t{4} * kQuads * kThreads;

// Ranges that one launch updates, passed by value as a kernel argument. Tiles are numbered over all
// ranges.
struct RangeTable {
  std::int64_t begin[kMaxRanges];
  std::int64_t numel[kMaxRanges];
  std::uint32_t first_tile[kMaxRanges + 1];  // [count] is the total number of tiles
  std::uint64_t decays;                      // bit i: weight decay applies to range i
  int count;
};

// Element type of `Arrays::rounded` if no rounded copy is wanted.
struct NotRounded {
  std::uint16_t bits;
};

// Parameters of stochastic rounding (UpdateArrays::noise_key and noise_first).
struct Chance {
  std::uint64_t key;
  std::uint32_t first;
};

template <typename Weight, typename Moment, typename Rounded>
struct Arrays {
  using WeightType = Weight;
  using MomentType = Moment;
  using RoundedType = Rounded;
  Weight* __restrict__ weights;
  const float* __restrict__ grads;
  Moment* __restrict__ first;
  Moment* __restrict__ second;
  Moment* __restrict__ third;
  Rounded* __restrict__ rounded;
  bool stochastic;
  Chance chance;
  const float* clip;  // UpdateArrays::clip
};

// noise_of, bits_of and narrow_by_chance compute the same bits as the CPU's functions (noise_of,
// to_bf16_by_chance and to_f16_by_chance in kernels_body.inc).
__device__ __forceinline__ std::uint32_t noise_of(std::uint64_t key, std::uint32_t index) {
  std::uint32_t x = index ^ static_cast<std::uint32_t>(key);
  x ^= x >> 16;
  x *= 0x21f0aaadU;
  x += static_cast<std::uint32_t>(key >> 32);
  x ^= x >> 15;
  x *= 0x735a2d97U;
  x ^= x >> 15;
  return x;
}

__device__ __forceinline__ std::uint32_t bits_of(float value) {
  std::uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

template <typename To>
__device__ __forceinline__ To narrow_by_chance(float value, std::uint32_t noise) {
  const std::uint32_t bits = bits_of(value);
  const std::uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude >= 0x7f800000U) {  // infinity, NaN
    return narrow<To>(value);
  }
  if constexpr (std::is_same_v<To, Bf16>) {
    return {static_cast<std::uint16_t>((bits + (noise >> 16)) >> 16)};
  } else {
    const std::uint32_t added = noise >> 19;
    std::uint32_t half;
    if (magnitude >= 0x47800000U) {  // 65536 and above
      half = 0x7c00U;
    } else if (magnitude < 0x38800000U) {  // below 2^-14: units of 2^-24
      const float units =
          fabsf(value) * 0x1p24F + static_cast<float>(static_cast<std::int32_t>(added)) * 0x1p-13F;
      half = static_cast<std::uint32_t>(static_cast<std::int32_t>(units));
    } else {
      half = (magnitude - 0x38000000U + added) >> 13;
    }
    return {static_cast<std::uint16_t>((bits >> 16 & 0x8000U) | half)};
  }
}

template <typename All>
__device__ __forceinline__ typename All::WeightType narrow_weight(const All& arrays, float value,
                                                                  std::size_t at) {
  using Weight = typename All::WeightType;
  if constexpr (!std::is_same_v<Weight, float>) {
    if (arrays.stochastic) {
      return narrow_by_chance<Weight>(
          value, noise_of(arrays.chance.key, arrays.chance.first + static_cast<std::uint32_t>(at)));
    }
  }
  return narrow<Weight>(value);
}

// Index of the range that contains a tile, by binary search.
__device__ __forceinline__ int range_of(const RangeTable& ranges, std::uint32_t tile) {
  int low = 0;
  int high = ranges.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (ranges.first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

// Updates a whole tile by quads. All loads come before the computation, so that many are in flight.
template <typename Step, typename All>
__device__ void update_tile(const Step& step, const All& arrays, float grad_scale,
                            std::int64_t begin, float decay) {
  using Moment = typename All::MomentType;
  using Rounded = typename All::RoundedType;
  Quad<typename All::WeightType> weights[kQuads];
  Quad<float> grads[kQuads];
  Quad<Moment> first[kQuads] = {};
  Quad<Moment> second[kQuads] = {};
  Quad<Moment> third[kQuads] = {};
#pragma unroll
  for (unsigned i = 0; i < kQuads; ++i) {
    const std::size_t at = static_cast<std::size_t>(begin) + quad_offset(i);
    weights[i] = load_quad(arrays.weights + at);
    grads[i] = load_quad(arrays.grads + at);
    if constexpr (Step::kStates > 0) {
      first[i] = load_quad(arrays.first + at);
    }
    if constexpr (Step::kStates > 1) {
      second[i] = load_quad(arrays.second + at);
    }
    if constexpr (Step::kStates > 2) {
      third[i] = load_quad(arrays.third + at);
    }
  }
#pragma unroll
  for (unsigned i = 0; i < kQuads; ++i) {
    const std::size_t at = static_cast<std::size_t>(begin) + quad_offset(i);
    Quad<Rounded> rounded;
    for (unsigned j = 0; j < 4; ++j) {
      float m = widen(first[i].values[j]);
      float v = widen(second[i].values[j]);
      float u = widen(third[i].values[j]);
      const float weight =
          step(widen(weights[i].values[j]), grads[i].values[j] * grad_scale, decay, m, v, u);
      first[i].values[j] = narrow<Moment>(m);
      second[i].values[j] = narrow<Moment>(v);
      third[i].values[j] = narrow<Moment>(u);
      weights[i].values[j] = narrow_weight(arrays, weight, at + j);
      if constexpr (!std::is_same_v<Rounded, NotRounded>) {
        rounded.values[j] = narrow<Rounded>(weight);
      }
    }
    store_quad(arrays.weights + at, weights[i]);
    if constexpr (Step::kStates > 0) {
      store_quad(arrays.first + at, first[i]);
    }
    if constexpr (Step::kStates > 1) {
      store_quad(arrays.second + at, second[i]);
    }
    if constexpr (Step::kStates > 2) {
      store_quad(arrays.third + at, third[i]);
    }
    if constexpr (!std::is_same_v<Rounded, NotRounded>) {
      store_quad(arrays.rounded + at, rounded);
    }
  }
}

// Updates one element, for the last, incomplete tile of a range.
template <typename Step, typename All>
__device__ void update_one(const Step& step, const All& arrays, float grad_scale, std::int64_t at,
                           float decay) {
  using Moment = typename All::MomentType;
  using Rounded = typename All::RoundedType;
  float first = Step::kStates > 0 ? widen(arrays.first[at]) : 0.0F;
  float second = Step::kStates > 1 ? widen(arrays.second[at]) : 0.0F;
  float third = Step::kStates > 2 ? widen(arrays.third[at]) : 0.0F;
  const float weight =
      step(widen(arrays.weights[at]), arrays.grads[at] * grad_scale, decay, first, second, third);
  arrays.weights[at] = narrow_weight(arrays, weight, static_cast<std::size_t>(at));
  if constexpr (Step::kStates > 0) {
    arrays.first[at] = narrow<Moment>(first);
  }
  if constexpr (Step::kStates > 1) {
    arrays.second[at] = narrow<Moment>(second);
  }
  if constexpr (Step::kStates > 2) {
    arrays.third[at] = narrow<Moment>(third);
  }
  if constexpr (!std::is_same_v<Rounded, NotRounded>) {
    arrays.rounded[at] = narrow<Rounded>(weight);
  }
}

template <typename Step, typename All>
__global__ void __launch_bounds__(kThreads)
    update_ranges(const __grid_constant__ Step step, const __grid_constant__ All arrays,
                  const __grid_constant__ RangeTable ranges) {
  const std::uint32_t tiles = ranges.first_tile[ranges.count];
  // No changed copy of `step`: nvcc 13.0 loses stores into copies of __grid_constant__ parameters.
  const float grad_scale = step.grad_scale * (arrays.clip != nullptr ? *arrays.clip : 1.0F);
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int range = range_of(ranges, tile);
    const std::int64_t offset = (tile - ranges.first_tile[range]) * kUpdateTile;
    const std::int64_t begin = ranges.begin[range] + offset;
    const std::int64_t left = ranges.numel[range] - offset;
    const float decay = (ranges.decays >> range & 1U) != 0 ? step.decay : Step::kNoDecay;
    if (left >= kUpdateTile) {
      update_tile(step, arrays, grad_scale, begin, decay);
    } else {
      for (std::int64_t i = threadIdx.x; i < left; i += kThreads) {
        update_one(step, arrays, grad_scale, begin + i, decay);
      }
    }
  }
}

// Numbers the tiles of up to kMaxRanges ranges.
RangeTable table_of(std::span<const device::UpdateRange> ranges) {
  RangeTable table{};
  for (const device::UpdateRange& range : ranges) {
    const int i = table.count++;
    table.begin[i] = range.begin;
    table.numel[i] = range.numel;
    table.decays |= static_cast<std::uint64_t>(range.decays) << i;
    table.first_tile[i + 1] =
        table.first_tile[i] +
        static_cast<std::uint32_t>((range.numel + kUpdateTile - 1) / kUpdateTile);
  }
  return table;
}

template <typename Weight, typename Moment, typename Rounded, typename Step>
cudaError_t launch_updates(const Step& step, const device::UpdateArrays& arrays,
                           std::span<const device::UpdateRange> ranges, const Launch& launch) {
  using All = Arrays<Weight, Moment, Rounded>;
  const All typed{static_cast<Weight*>(arrays.weights),
                  arrays.grads,
                  static_cast<Moment*>(arrays.first),
                  static_cast<Moment*>(arrays.second),
                  static_cast<Moment*>(arrays.third),
                  static_cast<Rounded*>(arrays.rounded),
                  arrays.stochastic,
                  {arrays.noise_key, arrays.noise_first},
                  arrays.clip};
  if (!quads_aligned(typed.weights) || !quads_aligned(typed.grads) || !quads_aligned(typed.first) ||
      !quads_aligned(typed.second) || !quads_aligned(typed.third) ||
      !quads_aligned(typed.rounded)) {
    return cudaErrorMisalignedAddress;
  }
  // More than kMaxRanges ranges take several launches, because a kernel's arguments are limited in
  // size.
  for (std::size_t done = 0; done < ranges.size(); done += kMaxRanges) {
    const auto part = ranges.subspan(done, std::min<std::size_t>(kMaxRanges, ranges.size() - done));
    const RangeTable table = table_of(part);
    if (table.first_tile[table.count] == 0) {
      continue;
    }
    const cudaLaunchConfig_t config =
        tile_grid(table.first_tile[table.count], launch.multiprocessors, launch.stream);
    const cudaError_t status =
        cudaLaunchKernelEx(&config, update_ranges<Step, All>, step, typed, table);
    if (status != cudaSuccess) {
      return status;
    }
  }
  return cudaSuccess;
}

template <typename Step>
cudaError_t update_floats(const Step& step, const device::UpdateArrays& arrays,
                          std::span<const device::UpdateRange> ranges, const Launch& launch) {
  if (arrays.rounded == nullptr) {
    return launch_updates<float, float, NotRounded>(step, arrays, ranges, launch);
  }
  return arrays.rounded_dtype == DType::bfloat16
             ? launch_updates<float, float, Bf16>(step, arrays, ranges, launch)
             : launch_updates<float, float, F16>(step, arrays, ranges, launch);
}

template <typename Step>
cudaError_t update_as(const Step& step, const device::UpdateArrays& arrays,
                      std::span<const device::UpdateRange> ranges, const Launch& launch) {
  for (const device::UpdateRange& range : ranges) {
    if (range.begin % 4 != 0) {
      return cudaErrorMisalignedAddress;
    }
  }
  if (arrays.weight_dtype == DType::float32 && arrays.moment_dtype == DType::float32) {
    return update_floats(step, arrays, ranges, launch);
  }
  if (arrays.moment_dtype != DType::bfloat16 || arrays.rounded != nullptr) {
    return cudaErrorInvalidValue;
  }
  switch (arrays.weight_dtype) {
    case DType::bfloat16:
      return launch_updates<Bf16, Bf16, NotRounded>(step, arrays, ranges, launch);
    case DType::float16: return launch_updates<F16, Bf16, NotRounded>(step, arrays, ranges, launch);
    default: return cudaErrorInvalidValue;
  }
}

}  // namespace

cudaError_t update(const kernels::UpdateStep& step, const device::UpdateArrays& arrays,
                   std::span<const device::UpdateRange> ranges, const Launch& launch) {
  return std::visit([&](const auto& each) { return update_as(each, arrays, ranges, launch); },
                    step);
}

}  // namespace acc::cuda
