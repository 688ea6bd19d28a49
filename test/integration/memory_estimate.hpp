#pragma once

#include "commands/estimate_memory/memory_model.hpp"
#include "commands/estimate_memory/model_size.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace acc::test {

using launcher::Offload;
using plugins::Strategy;

/// A small GPT-2 trained by four ranks, and what is foretold of it.
struct EstimateCase {
  std::vector<std::string> flags;
  Strategy strategy = Strategy::no_shard;
  bool sixteen_bit = false;
  Offload offload = Offload::none;
  bool overlaps = true;
};

// Shards are padded to whole multiples of 16 elements, parameter by parameter.
inline constexpr double kTolerance = 0.02;

inline launcher::RankMemory estimate(const EstimateCase& each, bool on_cpu) {
  constexpr const char* kConfig = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 4,
                                      "n_positions": 32, "vocab_size": 256})";
  const auto model = launcher::size_from_config(plugins::parse_json(kConfig, "config.json"));
  return launcher::rank_memory({.numel = model.numel(),
                                .largest_unit = model.largest_unit(),
                                .root = model.root(),
                                .num_processes = 4,
                                .num_local = 4,
                                .sixteen_bit = each.sixteen_bit,
                                .on_cpu = on_cpu,
                                .overlaps = each.overlaps},
                               each.strategy, each.offload);
}

/// What rank 0 reports after two steps of that model.
inline nlohmann::json report(const std::vector<std::string>& flags, const std::string& train_gpt,
                             const std::map<std::string, std::string>& variables = {}) {
  const TemporaryFolder folder;
  const std::string text = folder.path() / "text.txt";
  const std::string metrics = folder.path() / "metrics.jsonl";
  std::ofstream(text) << std::string(4096, 'a');
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch", "--num_processes", "4"};
  command.insert(command.end(), flags.begin(), flags.end());
  command.insert(command.end(),
                 {train_gpt, "--data", text, "--layers", "4", "--heads", "4", "--dim", "64",
                  "--seq_len", "32", "--steps", "2", "--micro_batch", "1", "--metrics", metrics});
  Program job(command, variables);
  REQUIRE(job.wait() == 0);
  std::ifstream file(metrics);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line;
  }
  return nlohmann::json::parse(last).at("ranks").at(0);
}

inline void check_near(std::int64_t found, std::int64_t foretold) {
  CHECK(static_cast<double>(found) ==
        doctest::Approx(static_cast<double>(foretold)).epsilon(kTolerance));
}

}  // namespace acc::test
