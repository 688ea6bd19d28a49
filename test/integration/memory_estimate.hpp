// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "commands/estimate_memory/memory_model.hpp"
#include "commands/estimate_memory/model_size.hpp"
#include "support/program.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <functional>

namespace acc::test {

using launcher::commands::Offload;
using settings::Strategy;

/// A training of a small GPT-2 on four ranks, and the inputs of its memory estimate.
struct EstimateCase {
  std::vector<std::string> flags;  ///< launcher flags
  Strategy strategy = Strategy::no_shard;
  bool sixteen_bit = false;
  Offload offload = Offload::none;
  bool overlaps = true;
  std::vector<std::string> options = {};  ///< train_gpt options
  /// Sets further fields of the training size.
  std::function<void(launcher::commands::TrainingSize&)> adjust =
      [](launcher::commands::TrainingSize&) {};
};

// Shards are padded to multiples of 16 elements per parameter, which the estimate does not include.
inline constexpr double kTolerance = 0.02;

inline launcher::commands::TrainingSize training_size(const EstimateCase& each) {
  constexpr const char* kConfig = R"({"model_type": "gpt2", "n_embd": 64, "n_layer": 4,
                                      "n_positions": 32, "vocab_size": 256})";
  const auto model =
      launcher::commands::size_from_config(documents::parse_json(kConfig, "config.json"));
  launcher::commands::TrainingSize size{.numel = model.numel(),
                                        .largest_unit = model.largest_unit(),
                                        .root = model.root(),
                                        .num_processes = 4,
                                        .num_local = 4,
                                        .sixteen_bit = each.sixteen_bit,
                                        .overlaps = each.overlaps};
  each.adjust(size);
  return size;
}

/// Trains the model for two steps and returns the last line of its metrics.
inline nlohmann::json metrics_of(const EstimateCase& each, const std::string& train_gpt,
                                 const std::map<std::string, std::string>& variables = {}) {
  const TemporaryFolder folder;
  const std::string text = folder.path() / "text.txt";
  const std::string metrics = folder.path() / "metrics.jsonl";
  std::ofstream(text) << std::string(4096, 'a');
  std::vector<std::string> command = {ACC_BIN_DIR "/acclaunch", "--num_processes", "4"};
  command.insert(command.end(), each.flags.begin(), each.flags.end());
  command.insert(command.end(),
                 {train_gpt, "--data", text, "--layers", "4", "--heads", "4", "--dim", "64",
                  "--seq_len", "32", "--steps", "2", "--micro_batch", "1", "--metrics", metrics});
  command.insert(command.end(), each.options.begin(), each.options.end());
  Program job(command, variables);
  REQUIRE(job.wait() == 0);
  std::ifstream file(metrics);
  std::string last;
  for (std::string line; std::getline(file, line);) {
    last = line;
  }
  return nlohmann::json::parse(last);
}

inline std::string words_of(const EstimateCase& each) {
  std::string words;
  for (const auto* list : {&each.flags, &each.options}) {
    for (const std::string& word : *list) {
      words += word + " ";
    }
  }
  return words;
}

inline void check_near(std::int64_t found, std::int64_t foretold) {
  CHECK(static_cast<double>(found) ==
        doctest::Approx(static_cast<double>(foretold)).epsilon(kTolerance));
}

}  // namespace acc::test
