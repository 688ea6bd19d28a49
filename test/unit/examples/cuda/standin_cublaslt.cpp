// The cuBLASLt of the tests that run on stand-ins, unless another is named: doctest's discovery
// hands on one variable alone.
#include <cstdlib>

namespace {
[[maybe_unused]] const int kNamed = ::setenv("ACC_CUBLASLT_LIBRARY", ACC_STANDIN_CUBLASLT, 0);
}  // namespace
