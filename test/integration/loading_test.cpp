// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

// Processes that load a file of 64 MiB: the bytes that they read, and the memory that this needs.
namespace {

using acc::test::Program;

const std::string kProbe = ACC_BIN_DIR "/loading_probe";
constexpr long kFileKib = 64 * 1024;

struct Loading {
  long read_kib = 0;
  long grown_kib = 0;  ///< increase of the rank's peak memory
};

/// Returns the measurements of each rank. Every rank keeps all weights.
std::vector<Loading> load(const std::string& efficient, const std::string& file,
                          const std::string& file_of_others) {
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "3", "--use_fsdp",
               "--fsdp_sharding_strategy", "NO_SHARD", "--fsdp_cpu_ram_efficient_loading",
               efficient, kProbe, "read", file, file_of_others});
  const int status = job.wait();
  CAPTURE(job.err());
  REQUIRE(status == 0);
  std::vector<Loading> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(job.out());
    const auto at = job.out().find("rank " + std::to_string(rank) + ":");
    REQUIRE(at != std::string::npos);
    Loading loading;
    double last = 0.0;
    REQUIRE(std::sscanf(job.out().c_str() + at, "rank %*d: read %ld KiB, grew %ld KiB, %lf",
                        &loading.read_kib, &loading.grown_kib, &last) == 3);
    CHECK(last == 0.5);
    CHECK(loading.grown_kib < kFileKib / 4);  // only what is read or sent at a time
    ranks.push_back(loading);
  }
  return ranks;
}

}  // namespace

TEST_CASE("fsdp_cpu_ram_efficient_loading: only rank 0 reads the file, and no rank holds it") {
  const acc::test::TemporaryFolder folder;
  const std::string file = (folder.path() / "weights.safetensors").string();
  Program writer({kProbe, "write", file});
  REQUIRE(writer.wait() == 0);

  const std::vector<Loading> efficient = load("true", file, "/no/such/file");
  CHECK(efficient[0].read_kib >= kFileKib);
  CHECK(efficient[1].read_kib < kFileKib / 4);
  CHECK(efficient[2].read_kib < kFileKib / 4);
  for (const Loading& each : load("false", file, file)) {
    CHECK(each.read_kib >= kFileKib);
  }
}
