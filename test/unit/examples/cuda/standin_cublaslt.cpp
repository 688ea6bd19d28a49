// SPDX-License-Identifier: Apache-2.0
// Selects the stand-in cuBLASLt for tests on stand-in libraries, unless the environment names
// another one. Done in code because doctest's test discovery can set only one environment variable.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kNamed = ::setenv("ACC_CUBLASLT_LIBRARY", ACC_STANDIN_CUBLASLT, 0);
}  // namespace
