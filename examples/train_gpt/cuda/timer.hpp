#pragma once

#include "cuda/cuda_check.hpp"

#include <cuda_runtime_api.h>

namespace train_gpt::cuda {

/// Measures the GPU time of the work that is queued between start and stop. `stop` waits for it.
class Timer {
 public:
  Timer() {
    check(cudaEventCreate(&begin_), "an event");
    check(cudaEventCreate(&end_), "an event");
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;
  ~Timer() {
    cudaEventDestroy(begin_);
    cudaEventDestroy(end_);
  }
  void start(cudaStream_t stream) { check(cudaEventRecord(begin_, stream), "a time stamp"); }
  /// Returns seconds.
  float stop(cudaStream_t stream) {
    check(cudaEventRecord(end_, stream), "a time stamp");
    check(cudaEventSynchronize(end_), "a time stamp");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "a time stamp");
    return milliseconds * 1e-3f;
  }

 private:
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
};

}  // namespace train_gpt::cuda
