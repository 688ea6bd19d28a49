// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device_array.hpp"

#include <cuda_runtime_api.h>

namespace standin_test {

class Stream {
 public:
  explicit Stream(unsigned flags = cudaStreamNonBlocking) {
    check(cudaStreamCreateWithFlags(&stream_, flags));
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class Event {
 public:
  explicit Event(unsigned flags = cudaEventDisableTiming) {
    check(cudaEventCreateWithFlags(&event_, flags));
  }
  ~Event() { cudaEventDestroy(event_); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  operator cudaEvent_t() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace standin_test
