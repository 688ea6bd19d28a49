// SPDX-License-Identifier: Apache-2.0
// Measures how much data is read, and how much host memory is used, when loading weights:
//   loading_probe write FILE
//   loading_probe read FILE_OF_RANK_0 FILE_OF_THE_OTHERS
#include "acc/runtime.hpp"

#include <cstdio>
#include <fstream>
#include <string>

namespace {

/// Returns a value of /proc/self/<file>, by its name there.
long figure(const char* file, const std::string& name) {
  std::ifstream lines(std::string("/proc/self/") + file);
  for (std::string word; lines >> word;) {
    if (word == name) {
      long value = 0;
      lines >> value;
      return value;
    }
  }
  return -1;
}

/// Returns the peak resident memory of this process, including mapped files.
long peak_kib() {
  return figure("status", "VmHWM:");
}

/// Returns the number of bytes read by system calls so far.
long read_kib() {
  return figure("io", "rchar:") / 1024;
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
    const long peak_before = peak_kib();
    const long read_before = read_kib();
    model.load_weights(argv[runtime.rank() == 0 ? 2 : 3]);
    const long grown = peak_kib() - peak_before;
    const long read = read_kib() - read_before;
    const auto evaluation = model.no_grad();
    const auto use = unit.forward();
    std::printf("rank %d: read %ld KiB, grew %ld KiB, %g\n", runtime.rank(), read, grown,
                static_cast<double>(use[weight][(16 << 20) - 1]));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
