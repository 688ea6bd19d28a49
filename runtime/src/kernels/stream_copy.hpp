// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace acc::kernels {

/// Copies `nbytes` to memory that another core reads next, or that is larger than the caches. From
/// 4 KiB on, the stores bypass the caches: a core that reads lines which are modified in the cache
/// of another core waits several times as long as for memory if the two share no cache. The arrays
/// do not overlap.
void stream_copy(void* to, const void* from, std::size_t nbytes) noexcept;

}  // namespace acc::kernels
