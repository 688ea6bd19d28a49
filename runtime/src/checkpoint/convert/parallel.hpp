#pragma once

#include <cstddef>
#include <functional>

namespace acc::checkpoint::conversion {

/// Calls body(index, worker) once for each index below `count`, in rising order of their beginning,
/// on up to `threads` threads; worker < threads, one call at a time has it. After an exception no
/// further index begins, and the first one is thrown again here.
void for_each_parallel(std::size_t count, int threads,
                       const std::function<void(std::size_t index, std::size_t worker)>& body);

/// As many threads as this process may run on, at most 16: more do not make memory faster.
int default_threads();

}  // namespace acc::checkpoint::conversion
