// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/open/series_folder.hpp"
#include "support/file_faults.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

// train_gpt with its optimizer's state on NVMe, and faults of that disk. Transfers are by threads,
// because a preloaded library sees no request of io_uring.
namespace {

namespace fs = std::filesystem;
using acc::test::contains;
using acc::test::FileFault;
using acc::test::Program;
using acc::test::TemporaryFolder;
using Words = std::vector<std::string>;

/// A training on two ranks that saves a checkpoint after each step.
struct OffloadedRun {
  OffloadedRun() {
    fs::create_directory(disk);
    fs::create_directory(checkpoints);
  }

  /// Resumes from the newest checkpoint, if there is one. Returns the status.
  int train(int steps, const std::map<std::string, std::string>& variables = {},
            const Words& offload = {"--offload_optimizer_device", "nvme"}) {
    const std::string bin = ACC_BIN_DIR;
    Words command = {ACC_WITHOUT_SYSCALLS,
                     "io_uring_setup:EPERM",
                     bin + "/acclaunch",
                     "--cpu",
                     "--num_processes",
                     "2",
                     "--use_deepspeed",
                     "--zero_stage",
                     "2",
                     "--mixed_precision",
                     "bf16",
                     "--offload_optimizer_nvme_path",
                     disk.string()};
    command.insert(command.end(), offload.begin(), offload.end());
    command.insert(command.end(), {bin + "/train_gpt",
                                   "--data",
                                   std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy",
                                   "--layers",
                                   "1",
                                   "--heads",
                                   "2",
                                   "--dim",
                                   "32",
                                   "--seq_len",
                                   "8",
                                   "--global_batch",
                                   "2",
                                   "--steps",
                                   std::to_string(steps),
                                   "--checkpoint",
                                   checkpoints.string(),
                                   "--checkpoint_every",
                                   "1",
                                   "--total_limit",
                                   "1",
                                   "--metrics",
                                   metrics.string()});
    Program program(command, variables);
    const int status = program.wait();
    err = program.err();
    return status;
  }
  /// The fault in rank 1 at call number `at` on the disk.
  [[nodiscard]] std::map<std::string, std::string> fault(const std::string& what, int at) const {
    return FileFault{.what = what,
                     .at = at,
                     .under = disk,
                     .hit = top.path() / "hit",
                     .rank = "1",
                     .log = top.path() / "log"}
        .variables();
  }
  /// Number of the last write. Only calls at the end of the process come after it.
  [[nodiscard]] int last_write() const {
    int found = 0;
    int number = 0;
    std::ifstream log(top.path() / "log");
    for (std::string line; std::getline(log, line);) {
      ++number;
      found = line.starts_with("pwrite") ? number : found;
    }
    fs::remove(top.path() / "log");
    return found;
  }
  /// The step of the newest checkpoint, whose bytes are verified.
  [[nodiscard]] int step() const {
    const auto newest = acc::checkpoint::SeriesFolder(checkpoints).newest();
    const auto manifest = newest ? acc::checkpoint::read_manifest(*newest) : std::nullopt;
    if (!manifest) {
      return 0;
    }
    for (const auto& file : manifest->files) {
      acc::checkpoint::check_file(*manifest, *newest, file.path);
    }
    return static_cast<int>(manifest->step);
  }
  [[nodiscard]] double last_loss() const {
    std::ifstream file(metrics);
    double loss = 0.0;
    for (std::string line; std::getline(file, line);) {
      loss = nlohmann::json::parse(line).at("loss");
    }
    return loss;
  }

  TemporaryFolder top;
  fs::path disk = top.path() / "disk";
  fs::path checkpoints = top.path() / "checkpoints";
  fs::path metrics = top.path() / "metrics";
  std::string err;
};

}  // namespace

TEST_CASE(
    "faults of the disk of an offload: a clear error, the checkpoint as it was, no file left") {
  OffloadedRun whole;
  REQUIRE_MESSAGE(whole.train(3, {}, {}) == 0, whole.err);  // in memory
  for (const std::string what : {"EIO", "ENOSPC", "kill"}) {
    CAPTURE(what);
    OffloadedRun run;
    REQUIRE_MESSAGE(run.train(2, run.fault(what, 1'000'000)) == 0, run.err);
    const int in_two_steps = run.last_write();
    REQUIRE(run.step() == 2);
    fs::remove_all(run.checkpoints);
    fs::create_directory(run.checkpoints);
    // The first write of the third step.
    CHECK(run.train(3, run.fault(what, in_two_steps + 1)) != 0);
    CAPTURE(run.err);
    CHECK(fs::exists(run.top.path() / "hit"));
    if (what != "kill") {
      CHECK(contains(run.err, "offload to nvme: the file in " + run.disk.string() +
                                  " (offload_optimizer_nvme_path): cannot write "));
      CHECK(contains(run.err, what == "EIO" ? "Input/output error (EIO)"
                                            : "No space left on device (ENOSPC)"));
    }
    CHECK(run.step() == 2);
    CHECK(fs::is_empty(run.disk));
    REQUIRE_MESSAGE(run.train(3) == 0, run.err);
    CHECK(run.last_loss() == whole.last_loss());
    CHECK(fs::is_empty(run.disk));
  }
}

TEST_CASE("a disk that is too small for an offload is an error at the start, with the bytes") {
  OffloadedRun run;
  CHECK(run.train(1, run.fault("ENOSPC", 1)) != 0);
  CAPTURE(run.err);
  CHECK(contains(run.err, "offload to nvme: cannot reserve "));
  CHECK(contains(run.err, " bytes in " + run.disk.string() + " (offload_optimizer_nvme_path)"));
  CHECK(contains(run.err, "No space left on device; "));
  CHECK(contains(run.err, " bytes are free"));
  CHECK(run.step() == 0);
  CHECK(fs::is_empty(run.disk));
}
