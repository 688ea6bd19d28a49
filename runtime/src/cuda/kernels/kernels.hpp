// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.hpp"

#include <cuda_runtime_api.h>

#include <cstddef>
#include <span>

/// The loops of device.hpp on a GPU. All are limited by memory bandwidth, so whole tiles are read
/// and written in 16-byte pieces. Multiplications and additions are not contracted to FMA, so
/// results equal the CPU's bit for bit, except that a NaN may lose its payload. Each call queues
/// its work and returns the status of the launch.
namespace acc::cuda {

struct Launch {
  cudaStream_t stream;
  int multiprocessors;  ///< of the stream's GPU
};

/// Converts between two different dtypes of float32, bfloat16 and float16. Returns
/// cudaErrorInvalidValue for other dtypes.
cudaError_t cast(const void* from, DType from_dtype, void* to, DType to_dtype, std::size_t numel,
                 const Launch& launch);

/// to = (accumulate ? to : 0) + scale * from, in float32. `to` may be `from` if that is float32.
cudaError_t add_scaled(const void* from, DType from_dtype, float* to, std::size_t numel,
                       float scale, bool accumulate, const Launch& launch);

/// values = scale * values, clamped to [-limit, limit].
cudaError_t scale_clamped(float* values, std::size_t numel, float scale, float limit,
                          const Launch& launch);

/// Number of partial sums of `add_squared_norm`.
inline constexpr std::size_t kNormPartials = 2048;
/// *sum += the sum of squares. partials: [kNormPartials] in device memory, used by this stream
/// only.
cudaError_t add_squared_norm(const float* values, std::size_t numel, double* sum, double* partials,
                             const Launch& launch);

/// Norm and clipping of `Device::clip_to_norm`, by the CPU's operations.
cudaError_t clip_to_norm(const double* squares, int ranks, double max_norm,
                         kernels::ClipFigures* figures, const Launch& launch);

/// Optimizer steps over ranges of a shard. Each array must be aligned to 4 of its elements, and
/// each range must begin at a multiple of 4 elements; otherwise returns cudaErrorMisalignedAddress.
/// Returns cudaErrorInvalidValue for dtypes that UpdateArrays does not allow.
cudaError_t update(const kernels::UpdateStep& step, const device::UpdateArrays& arrays,
                   std::span<const device::UpdateRange> ranges, const Launch& launch);

}  // namespace acc::cuda
