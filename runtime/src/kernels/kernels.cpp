#include "kernels/kernels.hpp"

#include <algorithm>
#include <array>

namespace acc::kernels {

namespace generic {
extern const Kernels table;
}
#ifdef __x86_64__
namespace avx2 {
extern const Kernels table;
}
namespace avx512 {
extern const Kernels table;
}
#endif

namespace {

struct Available {
  std::array<const Kernels*, 3> variants{};
  std::size_t count = 0;

  Available() noexcept {
#ifdef __x86_64__
    __builtin_cpu_init();
    const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                          __builtin_cpu_supports("f16c");
    if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      variants[count++] = &avx512::table;
    }
    if (has_avx2) {
      variants[count++] = &avx2::table;
    }
#endif
    variants[count++] = &generic::table;
  }
};

const Available& available() noexcept {
  static const Available found;
  return found;
}

}  // namespace

const Kernels& kernels() noexcept {
  return *available().variants[0];
}

std::span<const Kernels* const> available_kernels() noexcept {
  return {available().variants.data(), available().count};
}

void reduce_doubles(ReduceOp op, std::span<const double* const> sources,
                    std::span<double* const> destinations, std::size_t numel) noexcept {
  for (std::size_t i = 0; i < numel; ++i) {
    double result = sources[0][i];
    for (const double* source : sources.subspan(1)) {
      result = op == ReduceOp::sum ? result + source[i] : std::max(result, source[i]);
    }
    for (double* destination : destinations) {
      destination[i] = result;
    }
  }
}

}  // namespace acc::kernels
