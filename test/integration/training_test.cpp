// SPDX-License-Identifier: Apache-2.0
#include "parity_gpt.hpp"
#include "support/safetensors_file.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>

// Compares train_gpt under acclaunch with the results of PyTorch in test/data/parity_gpt.
namespace {

using namespace acc::test;
namespace fs = std::filesystem;

std::vector<float> read_tensor(const SafetensorsFile& file, const std::string& name) {
  std::vector<float> values(static_cast<std::size_t>(file.at(name).numel()));
  file.read_slice(name, 0, values);
  return values;
}

/// Returns the largest difference between tensors of the same name in `a` and `b`.
double distance(const fs::path& a_path, const fs::path& b_path) {
  const SafetensorsFile a(a_path);
  const SafetensorsFile b(b_path);
  double most = 0.0;
  for (const auto& tensor : a.tensors()) {
    const auto x = read_tensor(a, tensor.name);
    const auto y = read_tensor(b, tensor.name);
    REQUIRE(x.size() == y.size());
    for (std::size_t i = 0; i < x.size(); ++i) {
      most = std::max(most, std::abs(static_cast<double>(x[i]) - y[i]));
    }
  }
  return most;
}

/// Runs 20 steps on two workers with additional launcher flags. Returns the metrics.
std::vector<nlohmann::json> train_two(const std::string& config,
                                      const std::vector<std::string>& launcher_flags) {
  const TemporaryFolder folder;
  const fs::path metrics = folder.path() / "metrics.jsonl";
  train(config, {2, 1}, {"--steps", "20", "--metrics", metrics.string()}, launcher_flags);
  return read_metrics(metrics);
}

void check_parity(const std::string& config) {
  for (const Layout layout :
       {Layout{1, 1}, Layout{2, 1}, Layout{4, 1}, Layout{2, 2}, Layout{4, 2}}) {
    if (config == "zero3_hpz" && layout.workers == 1) {
      continue;  // hpZ has a partition size of 2
    }
    CAPTURE(config);
    CAPTURE(layout.workers);
    CAPTURE(layout.machines);
    const TemporaryFolder folder;
    const fs::path metrics = folder.path() / "metrics.jsonl";
    const fs::path weights = folder.path() / "weights.safetensors";
    train(config, layout,
          {"--steps", "20", "--metrics", metrics.string(), "--export", weights.string()});
    const auto steps = read_metrics(metrics);
    REQUIRE(steps.size() == 20);
    check_losses(steps);
    CHECK(distance(kParity + "/final.safetensors", weights) <= 5e-4);
  }
}

}  // namespace

TEST_CASE("PyTorch's losses, norms and weights: FSDP full shard") {
  check_parity("fsdp_full_shard");
}
TEST_CASE("PyTorch's losses, norms and weights: FSDP grad op") {
  check_parity("fsdp_shard_grad_op");
}
TEST_CASE("PyTorch's losses, norms and weights: FSDP no shard") {
  check_parity("fsdp_no_shard");
}
TEST_CASE("PyTorch's losses, norms and weights: FSDP hybrid") {
  check_parity("fsdp_hybrid_shard");
}
TEST_CASE("PyTorch's losses, norms and weights: FSDP hybrid ZeRO-2") {
  check_parity("fsdp_hybrid_shard_zero2");
}
TEST_CASE("PyTorch's losses, norms and weights: ZeRO 0") {
  check_parity("zero0");
}
TEST_CASE("PyTorch's losses, norms and weights: ZeRO 1") {
  check_parity("zero1");
}
TEST_CASE("PyTorch's losses, norms and weights: ZeRO 2") {
  check_parity("zero2");
}
TEST_CASE("PyTorch's losses, norms and weights: ZeRO 3") {
  check_parity("zero3");
}
TEST_CASE("PyTorch's losses, norms and weights: ZeRO 3 with hpZ") {
  check_parity("zero3_hpz");
}

TEST_CASE("machines with different numbers of ranks give the same results") {
  for (const char* config : {"fsdp_full_shard", "fsdp_no_shard", "zero1", "zero3_hpz"}) {
    for (const int first : {1, 3}) {
      CAPTURE(config);
      CAPTURE(first);
      const TemporaryFolder folder;
      const fs::path metrics = folder.path() / "metrics.jsonl";
      train(config, {4, 2, first}, {"--steps", "20", "--metrics", metrics.string()});
      const auto steps = read_metrics(metrics);
      REQUIRE(steps.size() == 20);
      check_losses(steps);
    }
  }
  const acc::test::ReservedPort port;
  const auto launch = [&](int machine) {
    return std::make_unique<Program>(
        command("fsdp_hybrid_shard", {4, 2, 1}, machine, port.text(), {"--steps", "1"}));
  };
  const auto machine0 = launch(0);
  const auto machine1 = launch(1);
  CHECK(machine0->wait() == 2);
  CHECK(machine1->wait() == 2);
  CHECK((machine0->err() + machine1->err()).find("the machines have different") !=
        std::string::npos);
}

TEST_CASE("accumulation over micro-steps gives the losses of the whole batch") {
  for (const char* config : {"fsdp_full_shard", "zero1", "zero3"}) {
    CAPTURE(config);
    check_losses(train_two(config, {"--gradient_accumulation_steps", "2"}));
  }
}

TEST_CASE("the memory that each rank reports matches the formula of its strategy") {
  struct Expected {
    const char* config;
    int parameters, gradients, optimizer;  ///< divisors of 4P, 4P and 8P bytes on 4 workers
  };
  constexpr std::int64_t kParameters = 120'576;
  for (const Expected& each :
       {Expected{"fsdp_no_shard", 1, 1, 1}, Expected{"zero1", 1, 1, 4}, Expected{"zero2", 4, 4, 4},
        Expected{"zero3", 4, 4, 4}, Expected{"fsdp_full_shard", 4, 4, 4}}) {
    CAPTURE(each.config);
    const TemporaryFolder folder;
    const fs::path metrics = folder.path() / "metrics.jsonl";
    train(each.config, {4, 1}, {"--steps", "1", "--metrics", metrics.string()});
    for (const auto& rank : read_metrics(metrics).at(0).at("ranks")) {
      CHECK(rank.at("parameter_bytes") == 4 * kParameters / each.parameters);
      CHECK(rank.at("gradient_bytes") == 4 * kParameters / each.gradients);
      CHECK(rank.at("optimizer_bytes") == 8 * kParameters / each.optimizer);
    }
  }
}

TEST_CASE("any layout resumes from a checkpoint of any other; the same layout bitwise") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  train("zero3", {4, 1}, {"--steps", "20", "--export", path("straight.safetensors")});
  train("zero3", {4, 1}, {"--steps", "9", "--save", path("checkpoint")});
  struct Resumed {
    const char* config;
    Layout layout;
  };
  for (const Resumed& each :
       {Resumed{"zero3", {4, 1}}, Resumed{"fsdp_no_shard", {1, 1}}, Resumed{"zero1", {2, 1}},
        Resumed{"fsdp_hybrid_shard", {4, 2}}, Resumed{"fsdp_shard_grad_op", {2, 2}}}) {
    CAPTURE(each.config);
    fs::remove(path("metrics.jsonl"));
    train(each.config, each.layout,
          {"--steps", "20", "--resume", path("checkpoint"), "--metrics", path("metrics.jsonl"),
           "--export", path("resumed.safetensors")});
    const auto steps = read_metrics(path("metrics.jsonl"));
    REQUIRE(steps.size() == 11);
    check_losses(steps, 9);
    const bool same_layout = std::string(each.config) == "zero3";
    CHECK(distance(path("straight.safetensors"), path("resumed.safetensors")) <=
          (same_layout ? 0.0 : 5e-4));
  }
}

TEST_CASE("a run resumes from its newest checkpoint with any number of ranks") {
  const TemporaryFolder folder;
  const auto path = [&](const char* name) { return (folder.path() / name).string(); };
  struct Part {
    const char* config;
    Layout layout;
    const char* until;
    std::vector<std::string> kept;
  };
  // Three ranks have 2, 3 and 3 of the 8 sequences.
  for (const Part& each :
       {Part{"fsdp_full_shard", {3, 1}, "7", {"checkpoint_1", "checkpoint_2"}},
        Part{"zero2", {3, 2, 1}, "9", {"checkpoint_2", "checkpoint_3"}},
        Part{"fsdp_hybrid_shard", {4, 2}, "14", {"checkpoint_4", "checkpoint_5"}},
        Part{"fsdp_full_shard", {2, 2}, "20", {"checkpoint_7", "checkpoint_8"}}}) {
    CAPTURE(each.until);
    train(each.config, each.layout,
          {"--steps", each.until, "--checkpoint", path("run"), "--checkpoint_every", "3",
           "--metrics", path("metrics.jsonl")});
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(path("run"))) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    std::vector<std::string> expected = each.kept;
    expected.push_back("latest");
    CHECK(names == expected);
    // A folder that is left if a run is killed while it removes a checkpoint; it does not count.
    fs::create_directory(folder.path() / "run" / "checkpoint_0.acc-tmp.removed");
  }
  const auto steps = read_metrics(path("metrics.jsonl"));
  REQUIRE(steps.size() == 20);
  check_losses(steps);
}

TEST_CASE("a run resumes from a checkpoint of torch's FSDP in Accelerate's layout") {
  const TemporaryFolder folder;
  const fs::path saved = fs::path(ACC_TEST_DATA) / "checkpoints" / "fsdp2_w4";
  const std::string tokens = folder.path() / "tokens.bin";
  std::ofstream(tokens, std::ios::binary) << std::string(1000, '\0');
  const std::string exported = folder.path() / "out.safetensors";
  const std::string bin = ACC_BIN_DIR;
  Program launcher({bin + "/acclaunch",
                    "--config_file",
                    std::string(ACC_SOURCE_DIR) + "/configs/zero2.yaml",
                    "--cpu",
                    "--num_processes",
                    "3",
                    bin + "/train_gpt",
                    "--tokens",
                    tokens,
                    "--layers",
                    "2",
                    "--heads",
                    "4",
                    "--dim",
                    "32",
                    "--vocab",
                    "64",
                    "--seq_len",
                    "30",
                    "--steps",
                    "3",
                    "--resume",
                    saved.string(),
                    "--export",
                    exported});
  REQUIRE_MESSAGE(launcher.wait() == 0, launcher.err());
  CHECK(launcher.out().find("resuming from step 3") != std::string::npos);
  CHECK(distance(saved / "model_full.safetensors", exported) == 0.0);
}

TEST_CASE("bf16 follows fp32 closely in every strategy") {
  for (const char* config : {"fsdp_full_shard", "fsdp_no_shard", "zero1", "zero3_hpz"}) {
    CAPTURE(config);
    const auto steps = train_two(config, {"--mixed_precision", "bf16"});
    REQUIRE(steps.size() == 20);
    const double expected = golden().at("single_fp64").at("loss").at(19);
    CHECK(std::abs(steps[19].at("loss").get<double>() - expected) < 0.02);
  }
}

TEST_CASE("invalid files end every worker with status 2 and a message that names them") {
  struct Bad {
    std::vector<std::string> flags;
    const char* message;
  };
  const TemporaryFolder folder;
  const std::string truncated = (folder.path() / "short.safetensors").string();
  fs::copy_file(kParity + "/init.safetensors", truncated);
  fs::resize_file(truncated, 1000);
  for (const Bad& each :
       {Bad{{"--init_from", truncated}, "short.safetensors"}, Bad{{"--vocab", "100"}, "vocabulary"},
        Bad{{"--resume", folder.path().string() + "/none"}, "none"},
        Bad{{"--batches", truncated}, "short.safetensors"}}) {
    const acc::test::ReservedPort port;
    auto line = command("zero3", {2, 1}, 0, port.text(), {"--steps", "1"});
    for (std::size_t i = 0; i < each.flags.size(); i += 2) {
      const auto flag = std::find(line.begin(), line.end(), each.flags[i]);
      if (flag != line.end()) {
        *(flag + 1) = each.flags[i + 1];
      } else {
        line.insert(line.end(), {each.flags[i], each.flags[i + 1]});
      }
    }
    if (each.flags[0] == "--vocab") {  // the weights have a vocabulary of 256
      line.erase(std::find(line.begin(), line.end(), "--init_from"),
                 std::find(line.begin(), line.end(), "--init_from") + 2);
    }
    Program launcher(line);
    CHECK_MESSAGE(launcher.wait() == 2, each.flags[0] << ": " << launcher.err());
    CHECK(launcher.err().find(each.message) != std::string::npos);
  }
}
