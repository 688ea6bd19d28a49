#include "cuda/kernels/kernels.hpp"
#include "cuda/kernels/tiles.cuh"

namespace acc::cuda {
namespace {

constexpr int kMaxRanges = 64;
constexpr unsigned kQuads = 2;  // of each array that a thread has in flight
constexpr std::int64_t kUpdateTile = std::int64_t{4} * kQuads * kThreads;

// Ranges that one launch updates, by value. Tiles are counted through all of them.
struct RangeTable {
  std::int64_t begin[kMaxRanges];
  std::int64_t numel[kMaxRanges];
  std::uint32_t first_tile[kMaxRanges + 1];
  std::uint64_t decays;  // a bit each
  int count;
};

// Nowhere: no rounded copy is wanted.
struct NotRounded {
  std::uint16_t bits;
};

template <typename Rounded>
struct Arrays {
  float* __restrict__ weights;
  const float* __restrict__ grads;
  float* __restrict__ first;
  float* __restrict__ second;
  Rounded* __restrict__ rounded;
};

// One element's rule; the CPU's are in kernels_body.inc and give the same bits.
struct AdamWStep {
  static constexpr int kStates = 2;
  kernels::AdamWCoefficients c;

  __device__ __forceinline__ float operator()(float weight, float scaled_from, float& first,
                                              float& second, bool decays) const {
    const float grad = scaled_from * c.grad_scale;
    const float m = first + c.beta1_complement * (grad - first);
    const float v = second * c.beta2 + c.beta2_complement * grad * grad;
    const float denominator = sqrtf(v) / c.sqrt_bias_correction2 + c.eps;
    first = m;
    second = v;
    return weight * (decays ? c.decay : 1.0F) - c.step_size * (m / denominator);
  }
};

template <bool with_momentum>
struct SgdStep {
  static constexpr int kStates = with_momentum ? 1 : 0;
  kernels::SgdCoefficients c;

  __device__ __forceinline__ float operator()(float weight, float scaled_from, float& first, float&,
                                              bool decays) const {
    const float grad = scaled_from * c.grad_scale + (decays ? c.weight_decay : 0.0F) * weight;
    if constexpr (with_momentum) {
      const float v = (c.first ? 0.0F : c.momentum) * first + grad;
      first = v;
      return weight -
             c.lr * ((c.nesterov ? 1.0F : 0.0F) * grad + (c.nesterov ? c.momentum : 1.0F) * v);
    } else {
      return weight - c.lr * grad;
    }
  }
};

__device__ __forceinline__ int range_of(const RangeTable& ranges, std::uint32_t tile) {
  int low = 0;
  int high = ranges.count;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (ranges.first_tile[middle] <= tile ? low : high) = middle;
  }
  return low;
}

template <typename Step, typename Rounded>
__device__ void update_tile(const Step& step, const Arrays<Rounded>& arrays, std::int64_t begin,
                            bool decays) {
  Quad<float> weights[kQuads];
  Quad<float> grads[kQuads];
  Quad<float> first[kQuads] = {};
  Quad<float> second[kQuads] = {};
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
  }
#pragma unroll
  for (unsigned i = 0; i < kQuads; ++i) {
    const std::size_t at = static_cast<std::size_t>(begin) + quad_offset(i);
    for (int j = 0; j < 4; ++j) {
      weights[i].values[j] = step(weights[i].values[j], grads[i].values[j], first[i].values[j],
                                  second[i].values[j], decays);
    }
    store_quad(arrays.weights + at, weights[i]);
    if constexpr (Step::kStates > 0) {
      store_quad(arrays.first + at, first[i]);
    }
    if constexpr (Step::kStates > 1) {
      store_quad(arrays.second + at, second[i]);
    }
    if constexpr (!std::is_same_v<Rounded, NotRounded>) {
      Quad<Rounded> rounded;
      for (int j = 0; j < 4; ++j) {
        rounded.values[j] = narrow<Rounded>(weights[i].values[j]);
      }
      store_quad(arrays.rounded + at, rounded);
    }
  }
}

template <typename Step, typename Rounded>
__device__ void update_one(const Step& step, const Arrays<Rounded>& arrays, std::int64_t at,
                           bool decays) {
  float first = Step::kStates > 0 ? arrays.first[at] : 0.0F;
  float second = Step::kStates > 1 ? arrays.second[at] : 0.0F;
  const float weight = step(arrays.weights[at], arrays.grads[at], first, second, decays);
  arrays.weights[at] = weight;
  if constexpr (Step::kStates > 0) {
    arrays.first[at] = first;
  }
  if constexpr (Step::kStates > 1) {
    arrays.second[at] = second;
  }
  if constexpr (!std::is_same_v<Rounded, NotRounded>) {
    arrays.rounded[at] = narrow<Rounded>(weight);
  }
}

template <typename Step, typename Rounded>
__global__ void __launch_bounds__(kThreads)
    update_ranges(const __grid_constant__ Step step, const __grid_constant__ Arrays<Rounded> arrays,
                  const __grid_constant__ RangeTable ranges) {
  const std::uint32_t tiles = ranges.first_tile[ranges.count];
  for (std::uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int range = range_of(ranges, tile);
    const std::int64_t offset = (tile - ranges.first_tile[range]) * kUpdateTile;
    const std::int64_t begin = ranges.begin[range] + offset;
    const std::int64_t left = ranges.numel[range] - offset;
    const bool decays = (ranges.decays >> range & 1U) != 0;
    if (left >= kUpdateTile) {
      update_tile(step, arrays, begin, decays);
    } else {
      for (std::int64_t i = threadIdx.x; i < left; i += kThreads) {
        update_one(step, arrays, begin + i, decays);
      }
    }
  }
}

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

template <typename Rounded, typename Step>
cudaError_t launch_updates(const Step& step, const device::UpdateArrays& arrays,
                           std::span<const device::UpdateRange> ranges, const Launch& launch) {
  const Arrays<Rounded> typed{arrays.weights, arrays.grads, arrays.first, arrays.second,
                              static_cast<Rounded*>(arrays.rounded)};
  if (!quads_aligned(typed.weights) || !quads_aligned(typed.grads) || !quads_aligned(typed.first) ||
      !quads_aligned(typed.second) || !quads_aligned(typed.rounded)) {
    return cudaErrorMisalignedAddress;
  }
  for (std::size_t done = 0; done < ranges.size(); done += kMaxRanges) {
    const auto part = ranges.subspan(done, std::min<std::size_t>(kMaxRanges, ranges.size() - done));
    const RangeTable table = table_of(part);
    if (table.first_tile[table.count] == 0) {
      continue;
    }
    const cudaLaunchConfig_t config =
        tile_grid(table.first_tile[table.count], launch.multiprocessors, launch.stream);
    const cudaError_t status =
        cudaLaunchKernelEx(&config, update_ranges<Step, Rounded>, step, typed, table);
    if (status != cudaSuccess) {
      return status;
    }
  }
  return cudaSuccess;
}

template <typename Step>
cudaError_t update(const Step& step, const device::UpdateArrays& arrays,
                   std::span<const device::UpdateRange> ranges, const Launch& launch) {
  for (const device::UpdateRange& range : ranges) {
    if (range.begin % 4 != 0) {
      return cudaErrorMisalignedAddress;
    }
  }
  if (arrays.rounded == nullptr) {
    return launch_updates<NotRounded>(step, arrays, ranges, launch);
  }
  return arrays.rounded_dtype == DType::bfloat16
             ? launch_updates<Bf16>(step, arrays, ranges, launch)
             : launch_updates<F16>(step, arrays, ranges, launch);
}

}  // namespace

cudaError_t adamw(const kernels::AdamWCoefficients& coefficients,
                  const device::UpdateArrays& arrays, std::span<const device::UpdateRange> ranges,
                  const Launch& launch) {
  return update(AdamWStep{coefficients}, arrays, ranges, launch);
}

cudaError_t sgd(const kernels::SgdCoefficients& coefficients, const device::UpdateArrays& arrays,
                std::span<const device::UpdateRange> ranges, const Launch& launch) {
  if (arrays.first == nullptr) {
    return update(SgdStep<false>{coefficients}, arrays, ranges, launch);
  }
  return update(SgdStep<true>{coefficients}, arrays, ranges, launch);
}

}  // namespace acc::cuda
