// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/caching_allocator.hpp"

namespace acc::cuda {

/// Page-locked host memory for the copies of a GPU, in huge pages where the system has them. The
/// cores of the process touch a large piece together: with one of them, as in cudaHostAlloc, the
/// state of an offloaded model of 5 billion parameters takes two minutes (docs/gpu/README.md). A
/// process that is forked does not have the memory.
device::RawMemory page_locked_memory(int device);

}  // namespace acc::cuda
