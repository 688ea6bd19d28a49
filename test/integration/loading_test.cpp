#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <string>
#include <vector>

// Real processes that load a file of 64 MiB, and the memory that this takes.
namespace {

using acc::test::Program;

const std::string kProbe = ACC_BIN_DIR "/loading_probe";
constexpr long kFileKib = 64 * 1024;

/// By how much loading raised each rank's peak, in KiB. Every rank keeps all weights.
std::vector<long> growth(const std::string& efficient, const std::string& file,
                         const std::string& file_of_others) {
  Program job({ACC_BIN_DIR "/acclaunch", "--cpu", "--num_processes", "3", "--use_fsdp",
               "--fsdp_sharding_strategy", "NO_SHARD", "--fsdp_cpu_ram_efficient_loading",
               efficient, kProbe, "read", file, file_of_others});
  const int status = job.wait();
  CAPTURE(job.err());
  REQUIRE(status == 0);
  std::vector<long> grown;
  for (int rank = 0; rank < 3; ++rank) {
    CAPTURE(job.out());
    const auto at = job.out().find("rank " + std::to_string(rank) + ":");
    REQUIRE(at != std::string::npos);
    long kib = 0;
    double last = 0.0;
    REQUIRE(std::sscanf(job.out().c_str() + at, "rank %*d: %ld KiB, %lf", &kib, &last) == 2);
    CHECK(last == 0.5);
    grown.push_back(kib);
  }
  return grown;
}

}  // namespace

TEST_CASE("fsdp_cpu_ram_efficient_loading: the file is in the memory of rank 0 alone") {
  const acc::test::TemporaryFolder folder;
  const std::string file = (folder.path() / "weights.safetensors").string();
  Program writer({kProbe, "write", file});
  REQUIRE(writer.wait() == 0);

  const std::vector<long> efficient = growth("true", file, "/no/such/file");
  CHECK(efficient[0] > kFileKib / 2);
  CHECK(efficient[1] < kFileKib / 4);  // what is sent at once, and no more
  CHECK(efficient[2] < kFileKib / 4);
  for (const long kib : growth("false", file, file)) {
    CHECK(kib > kFileKib / 2);
  }
}
