// How much host memory loading weights takes:  loading_probe write FILE
//                                              loading_probe read FILE_OF_RANK_0 FILE_OF_THE_OTHERS
#include "acc/runtime.hpp"

#include <cstdio>
#include <fstream>
#include <string>

namespace {

/// The most memory that this process had so far, files that it mapped included.
long peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word == "VmHWM:") {
      long kib = 0;
      status >> kib;
      return kib;
    }
  }
  return -1;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    auto runtime = acc::Runtime::from_environment();
    auto model = runtime.model();
    auto& unit = model.unit("net", "Net");
    const auto weight =
        unit.parameter("weight", {16 << 20}, acc::constant(0.5F), {.trainable = false});
    { auto use = unit.forward(); }
    if (argc == 3 && std::string(argv[1]) == "write") {
      model.export_weights(argv[2]);
      return 0;
    }
    if (argc != 4) {
      return 2;
    }
    const long before = peak_kib();
    model.load_weights(argv[runtime.rank() == 0 ? 2 : 3]);
    const long grown = peak_kib() - before;
    const auto evaluation = model.no_grad();
    const auto use = unit.forward();
    std::printf("rank %d: %ld KiB, %g\n", runtime.rank(), grown,
                static_cast<double>(use[weight][(16 << 20) - 1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
