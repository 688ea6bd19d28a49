#pragma once

#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

/// The loops of device.hpp on a GPU. All are bound by memory: whole tiles move in 16-byte pieces.
/// Nothing is fused, so that results equal the CPU's bit for bit (NaNs aside, which stay NaNs but
/// may lose their payload). Each call queues its work and returns what the launch returned.
namespace acc::cuda {

struct Launch {
  cudaStream_t stream;
  int multiprocessors;  ///< of the stream's GPU
};

/// Between different ones of float32, bfloat16 and float16. cudaErrorInvalidValue for others.
cudaError_t cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
                 const Launch& launch);

cudaError_t add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                       float scale, bool accumulate, const Launch& launch);

/// values = scale * values, brought into [-limit, limit].
cudaError_t scale_clamped(float* values, std::size_t numel, float scale, float limit,
                          const Launch& launch);

/// Doubles that `add_squared_norm` works in.
inline constexpr std::size_t kNormPartials = 2048;
/// *sum += the sum of squares. partials: [kNormPartials], of this stream alone.
cudaError_t add_squared_norm(const float* values, std::size_t numel, double* sum, double* partials,
                             const Launch& launch);

/// Arrays lie at multiples of 4 elements' bytes, ranges begin at multiples of 4 elements;
/// cudaErrorMisalignedAddress where one does not; cudaErrorInvalidValue for dtypes that
/// UpdateArrays does not name.
cudaError_t adamw(const kernels::AdamWCoefficients& coefficients,
                  const device::UpdateArrays& arrays, std::span<const device::UpdateRange> ranges,
                  const Launch& launch);
cudaError_t sgd(const kernels::SgdCoefficients& coefficients, const device::UpdateArrays& arrays,
                std::span<const device::UpdateRange> ranges, const Launch& launch);

}  // namespace acc::cuda
