// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

// train_gpt --checkpoint with --memory_checkpoint_every: workers that are killed.
namespace {

using acc::test::Program;
using acc::test::TemporaryFolder;
using acc::test::Watched;
namespace fs = std::filesystem;

const std::string kBin = ACC_BIN_DIR;

std::vector<std::string> run(int steps, const std::string& more) {
  const std::string data = std::string(ACC_TEST_DATA) + "/parity_gpt/tokens.npy";
  return {kBin + "/acclaunch",
          "--config_file",
          std::string(ACC_SOURCE_DIR) + "/configs/fsdp_full_shard.yaml",
          "--cpu",
          "--num_processes",
          "2",
          "--max_restarts",
          "3",
          "--memory_checkpoint_every",
          "1",
          "/bin/sh",
          "-c",
          "echo \"pid $$\"; exec " + kBin + "/train_gpt --data " + data +
              " --layers 2 --heads 2 --dim 32 --seq_len 32 --global_batch 4 --lr 1e-3 --steps " +
              std::to_string(steps) + " " + more};
}

/// The losses by step; the last one of a step that was made twice.
std::map<int, double> losses(const fs::path& metrics) {
  std::map<int, double> all;
  std::ifstream file(metrics);
  for (std::string line; std::getline(file, line) && !file.eof();) {
    const auto step = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!step.is_discarded()) {
      all[step.at("step")] = step.at("loss");
    }
  }
  return all;
}

int times_in(const std::string& text, const std::string& part) {
  int times = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++times;
  }
  return times;
}

}  // namespace

TEST_CASE("workers that are killed resume from memory, with the losses of an undisturbed run") {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path() / "metrics.jsonl";
  const std::string series = (folder.path() / "run").string();
  Program launcher(run(1'000'000, "--checkpoint " + series +
                                      " --checkpoint_every 1000000 --metrics " + metrics.string()));
  launcher.wait_for_text("pid ", 2);
  launcher.wait_for_text("tokens/s", 2);  // steps, of which the first is in memory
  const auto first = Watched(launcher.out(), "pid ");
  REQUIRE(::kill(first[1], SIGKILL) == 0);
  launcher.wait_for_text("(memory)");
  launcher.wait_for_text("tokens/s", times_in(launcher.out(), "tokens/s") + 1);  // it trains again
  launcher.signal(SIGUSR1);
  const int status = launcher.wait();
  CAPTURE(launcher.out());
  CAPTURE(launcher.err());
  CHECK(status == 0);
  CHECK(launcher.err().find("in memory (nothing on disk)") != std::string::npos);
  const auto found = losses(metrics);
  const int made = found.rbegin()->first;
  CHECK(static_cast<int>(found.size()) == made);
  const fs::path other = folder.path() / "unbroken.jsonl";
  Program unbroken(run(made, "--metrics " + other.string()));
  REQUIRE(unbroken.wait() == 0);
  CHECK(found == losses(other));  // bitwise, since the layout is the same
}
