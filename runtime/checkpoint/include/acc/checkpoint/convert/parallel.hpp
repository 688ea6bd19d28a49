// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>

namespace acc::checkpoint::conversion {

/// Calls body(index, worker) once for each index below `count` on up to `threads` threads. Indices
/// start in rising order. `worker` is below `threads`, and only one call at a time has a given
/// worker number, so that it can select a buffer. After an exception no further index starts, and
/// the first exception is thrown to the caller.
void for_each_parallel(std::size_t count, int threads,
                       const std::function<void(std::size_t index, std::size_t worker)>& body);

/// Returns the number of cores that this process may use, at most 16: more threads do not increase
/// the memory bandwidth.
int default_threads();

}  // namespace acc::checkpoint::conversion
