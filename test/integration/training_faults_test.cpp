// SPDX-License-Identifier: Apache-2.0
#include "acc/checkpoint/files/manifest.hpp"
#include "acc/checkpoint/open/series_folder.hpp"
#include "support/file_faults.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

// train_gpt under acclaunch, with faults during saves, a full disk, and damaged checkpoints.
namespace {

namespace fs = std::filesystem;
using acc::test::contains;
using acc::test::FileFault;
using acc::test::Program;
using acc::test::TemporaryFolder;
using Words = std::vector<std::string>;
using Losses = std::map<int, double>;  // by step

/// Runs with `beside` save while the training goes on.
Words training(const std::string& form, int steps, const Words& more, bool beside = false) {
  const std::string bin = ACC_BIN_DIR;
  Words all = {bin + "/acclaunch",
               "--config_file",
               std::string(ACC_SOURCE_DIR) + "/configs/fsdp_full_shard.yaml",
               "--cpu",
               "--num_processes",
               "2",
               "--fsdp_state_dict_type",
               form,
               bin + "/train_gpt",
               "--data",
               std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy",
               "--layers",
               "1",
               "--heads",
               "2",
               "--dim",
               "16",
               "--seq_len",
               "8",
               "--global_batch",
               "2",
               "--lr",
               "1e-3",
               "--steps",
               std::to_string(steps)};
  all.insert(all.end(), more.begin(), more.end());
  if (beside) {
    all.insert(all.begin() + 1, "--save_async");
  }
  return all;
}

Losses losses_in(const fs::path& metrics) {
  Losses all;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto step = nlohmann::json::parse(line);
    all[step.at("step")] = step.at("loss");
  }
  return all;
}

/// Returns the losses of an undisturbed run.
Losses unbroken(const std::string& form, int steps) {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path() / "metrics";
  Program program(training(form, steps, {"--metrics", metrics.string()}));
  REQUIRE_MESSAGE(program.wait() == 0, program.err());
  return losses_in(metrics);
}

/// A run in several parts, each of which makes one more step and saves a checkpoint.
struct Run {
  explicit Run(std::string form_of_state, bool saves_beside = false)
      : form(std::move(form_of_state)), beside(saves_beside) {
    fs::create_directory(checkpoints);
  }

  /// Returns the step of the newest checkpoint, or 0 if there is none. Verifies its manifest.
  [[nodiscard]] int step() const {
    const auto newest = acc::checkpoint::SeriesFolder(checkpoints).newest();
    const auto manifest = newest ? acc::checkpoint::read_manifest(*newest) : std::nullopt;
    if (!manifest) {
      return 0;
    }
    acc::checkpoint::check_sizes(*manifest, *newest);
    for (const auto& file : manifest->files) {
      acc::checkpoint::check_file(*manifest, *newest, file.path);
    }
    return static_cast<int>(manifest->step);
  }

  /// Resumes from the newest checkpoint, trains until step `until` and saves. Returns the status.
  int go_on(int until, const std::map<std::string, std::string>& variables = {}) {
    fs::remove(metrics);
    Program program(training(form, until,
                             {"--checkpoint", checkpoints.string(), "--checkpoint_every", "100000",
                              "--total_limit", "1", "--metrics", metrics.string()},
                             beside),
                    variables);
    const int status = program.wait();
    err = program.err();
    return status;
  }

  TemporaryFolder top;
  std::string form;
  bool beside;
  fs::path checkpoints = top.path() / "checkpoints";
  fs::path metrics = top.path() / "metrics";
  std::string err;
};

bool is_left_behind(const fs::path& checkpoints) {
  return std::any_of(fs::recursive_directory_iterator(checkpoints), {}, [](const auto& entry) {
    return contains(entry.path().filename().string(), "tmp");
  });
}

/// Makes one more step and saves with an injected fault. True if the fault was reached.
bool struck(Run& run, const FileFault& fault, Losses& expected) {
  const int before = run.step();
  fs::remove(fault.hit);
  const int status = run.go_on(before + 1, fault.variables());
  const std::string hit = acc::test::file_text(fault.hit.string());
  CAPTURE(fault.at);
  CAPTURE(hit);
  CAPTURE(run.err);
  const int after = run.step();
  CHECK((after == before || after == before + 1));
  if (hit.empty()) {
    CHECK(status == 0);
    CHECK(after == before + 1);
  } else if (fault.what == "kill") {
    CHECK(status != 0);
  } else if (status != 0) {
    CHECK(status == 2);
    CHECK(contains(run.err, fault.reason()));
    CHECK(contains(run.err, run.checkpoints.string()));
    CHECK_FALSE(is_left_behind(run.checkpoints));
  }
  for (const auto& [step, loss] : losses_in(run.metrics)) {
    CHECK(step == before + 1);
    CHECK(loss == expected.at(step));
  }
  return !hit.empty();
}

struct Matrix {
  std::string form;
  std::string what;
  std::string rank;
  int stride;
  bool beside = false;
};

/// Injects a fault at every stride-th system call of a save. Returns the number of faults.
int strike(const Matrix& matrix, Losses& expected) {
  Run run(matrix.form, matrix.beside);
  REQUIRE_MESSAGE(run.go_on(1) == 0, run.err);
  FileFault fault{.what = matrix.what,
                  .under = run.checkpoints,
                  .hit = run.top.path() / "hit",
                  .rank = matrix.rank};
  int points = 0;
  while (struck(run, fault, expected)) {
    fault.at += matrix.stride;
    ++points;
    REQUIRE(fault.at < 1000);
  }
  // The last save had no fault: it leaves one checkpoint and `latest`, and no leftovers.
  CHECK(std::distance(fs::directory_iterator(run.checkpoints), {}) == 2);
  return points;
}

}  // namespace

TEST_CASE("a run resumes from the last good checkpoint, wherever a save failed") {
  const bool all = std::getenv("ACC_FAULT_MATRIX") != nullptr;
  std::vector<Matrix> matrices = {
      {"SHARDED_STATE_DICT", "kill", "0", 11},
      {"SHARDED_STATE_DICT", "kill", "1", 7},
      {"SHARDED_STATE_DICT", "ENOSPC", "0", 9},
      {"SHARDED_STATE_DICT", "ENOSPC", "1", 5},
      {"SHARDED_STATE_DICT", "kill", "0", 17, true},
      {"SHARDED_STATE_DICT", "kill", "1", 7, true},
      {"SHARDED_STATE_DICT", "ENOSPC", "0", 13, true},
      {"SHARDED_STATE_DICT", "ENOSPC", "1", 5, true},
  };
  if (all) {
    matrices.clear();
    for (const char* form : {"SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"}) {
      for (const char* what : {"kill", "ENOSPC", "EIO"}) {
        for (const char* rank : {"0", "1"}) {
          matrices.push_back({form, what, rank, 1});
          if (form != std::string("FULL_STATE_DICT")) {
            matrices.push_back({form, what, rank, 1, true});
          }
        }
      }
    }
  }
  Losses expected = unbroken("SHARDED_STATE_DICT", all ? 300 : 50);
  for (const Matrix& matrix : matrices) {
    CAPTURE(matrix.form);
    CAPTURE(matrix.what);
    CAPTURE(matrix.rank);
    CAPTURE(matrix.beside);
    const int points = strike(matrix, expected);
    MESSAGE(matrix.form, ", ", matrix.what, " of rank ", matrix.rank, ": ", points, " points");
    CHECK(points > 0);
  }
}

TEST_CASE("a checkpoint with a damaged byte is an error that names file and tensor") {
  Run run("SHARDED_STATE_DICT");
  REQUIRE_MESSAGE(run.go_on(1) == 0, run.err);
  const fs::path checkpoint = acc::checkpoint::SeriesFolder(run.checkpoints).newest().value();
  const std::string weights = (run.top.path() / "weights.safetensors").string();
  // Makes an optimizer step, so that damage of the optimizer's state is visible.
  const Words command =
      training(run.form, 2, {"--resume", checkpoint.string(), "--export", weights});
  REQUIRE(Program(command).wait() == 0);
  const std::string expected = acc::test::file_text(weights);
  int tensors_named = 0;
  for (const auto& entry : fs::recursive_directory_iterator(checkpoint)) {
    const fs::path& path = entry.path();
    if (!entry.is_regular_file()) {
      continue;
    }
    // Only other programs read these files: we take the learning rate from the step, and the
    // positions of pieces from the plan in the manifest.
    const bool is_read = path.filename() != "scheduler.bin" && path.filename() != ".metadata";
    CAPTURE(path.string());
    const std::string text = acc::test::file_text(path.string());
    int refused = 0;
    for (const std::size_t at : {std::size_t{1}, text.size() / 3, text.size() * 10 / 11}) {
      std::string damaged = text;
      damaged[at] = static_cast<char>(damaged[at] ^ 4);
      std::ofstream(path, std::ios::binary) << damaged;
      fs::remove(weights);
      Program program(command);
      const int status = program.wait();
      CAPTURE(at);
      CAPTURE(program.err());
      if (status == 0) {  // an unused byte, for example between the records of an archive
        CHECK(acc::test::file_text(weights) == expected);
      } else {
        CHECK(status == 2);
        CHECK(contains(program.err(), path.filename().string()));
        ++refused;
        tensors_named += contains(program.err(), ": tensor 'transformer.") ? 1 : 0;
      }
    }
    CHECK((refused > 0) == is_read);
    std::ofstream(path, std::ios::binary) << text;
  }
  CHECK(tensors_named > 0);
}

TEST_CASE("a run whose disk was full resumes from its last checkpoint once there is space") {
  const TemporaryFolder folder;
  const std::string at = folder.path().string();
  const auto in_namespace = [](const std::string& script) {
    return Words{"/usr/bin/unshare", "-m", "/bin/sh", "-c", script};
  };
  const std::string mounted = "mount -t tmpfs -o size=10m none " + at;
  if (Program(in_namespace(mounted)).wait() != 0) {
    MESSAGE("skipped: this machine does not allow mounting a tmpfs");
    return;
  }
  const auto part = [&](int until) {
    std::string line;
    for (const std::string& word : training("SHARDED_STATE_DICT", until,
                                            {"--checkpoint", at + "/run", "--total_limit", "1"})) {
      line += word + " ";
    }
    return line + "\n";
  };
  // Space for the first checkpoint and for a part of the second one.
  for (const std::string room : {"4", "40", "100", "200"}) {
    CAPTURE(room);
    Program program(in_namespace(mounted + "\n" + part(1) + "used=$(df --output=used -k " + at +
                                 " | tail -n 1)\n" + "mount -o remount,size=$((used + " + room +
                                 "))k " + at + "\n" + part(2) + "echo second: $?\nls -A " + at +
                                 "/run\nmount -o remount,size=10m " + at + "\n" + part(2) +
                                 "echo third: $?\nls -A " + at + "/run\n"));
    program.wait();
    CAPTURE(program.out());
    CAPTURE(program.err());
    CHECK(contains(program.out(), "second: 2\ncheckpoint_0\nlatest\n"));
    CHECK(contains(program.err(), ": No space left on device"));
    CHECK(contains(program.out(), "resuming from step 1 "));
    CHECK(contains(program.out(), "third: 0\ncheckpoint_1\nlatest\n"));
  }
}
