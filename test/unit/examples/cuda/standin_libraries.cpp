// SPDX-License-Identifier: Apache-2.0
// Selects the stand-in cuBLASLt and cuDNN for tests on stand-in libraries, unless the environment
// names others. Done in code because doctest's test discovery can set only one environment
// variable.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kCublasLt = ::setenv("ACC_CUBLASLT_LIBRARY", ACC_STANDIN_CUBLASLT, 0);
[[maybe_unused]] const int kCudnn = ::setenv("ACC_CUDNN_LIBRARY", ACC_STANDIN_CUDNN, 0);
}  // namespace
