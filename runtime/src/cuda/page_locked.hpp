// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/caching_allocator.hpp"

namespace acc::cuda {

/// Page-locked host memory for the copies of a GPU, in huge pages where the system has them. The
/// cores of the process touch a large piece together: one core, as in cudaHostAlloc, needs a minute
/// more for the state of an offloaded model of 5 billion parameters (docs/gpu/README.md). A process
/// that is forked does not have the memory.
device::RawMemory page_locked_memory(int device);

}  // namespace acc::cuda
