// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "support/program.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

// Runs train_gpt under acclaunch on the data of test/data/parity_gpt, which has PyTorch's results.
namespace acc::test {

inline const std::string kParity = std::string(ACC_TEST_DATA) + "/parity_gpt";

struct Layout {
  int workers;
  int machines;
  int on_machine_0 = 0;  ///< ranks on machine 0; 0: the same number as on the others
};

/// Returns the command of acclaunch with train_gpt on the parity data. `more`: flags of train_gpt.
inline std::vector<std::string> command(const std::string& config, Layout layout, int machine_rank,
                                        const std::string& port,
                                        const std::vector<std::string>& more) {
  const std::string bin = ACC_BIN_DIR;
  std::vector<std::string> all = {bin + "/acclaunch",
                                  "--config_file",
                                  std::string(ACC_SOURCE_DIR) + "/configs/" + config + ".yaml",
                                  "--cpu",
                                  "--num_processes",
                                  std::to_string(layout.workers)};
  if (layout.machines > 1) {
    const std::vector<std::string> machine = {
        "--num_machines",      std::to_string(layout.machines),
        "--machine_rank",      std::to_string(machine_rank),
        "--main_process_ip",   "127.0.0.1",
        "--main_process_port", port};
    all.insert(all.end(), machine.begin(), machine.end());
  }
  if (const int first = layout.on_machine_0; first > 0) {
    all.insert(all.end(), {"--num_local_processes",
                           std::to_string(machine_rank == 0 ? first : layout.workers - first)});
  }
  const std::vector<std::string> program = {bin + "/train_gpt",
                                            "--batches",
                                            kParity + "/tokens.npy",
                                            "--layers",
                                            "2",
                                            "--heads",
                                            "4",
                                            "--dim",
                                            "64",
                                            "--seq_len",
                                            "64",
                                            "--vocab",
                                            "256",
                                            "--init_from",
                                            kParity + "/init.safetensors",
                                            "--lr",
                                            "1e-3",
                                            "--betas",
                                            "0.9,0.95",
                                            "--eps",
                                            "1e-8",
                                            "--weight_decay",
                                            "0.1",
                                            "--grad_clip",
                                            "1.0"};
  all.insert(all.end(), program.begin(), program.end());
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

/// Runs the training on all machines. `flags`, `variables`: additional ones for the launcher.
inline void train(const std::string& config, Layout layout, const std::vector<std::string>& more,
                  const std::vector<std::string>& flags = {},
                  const std::map<std::string, std::string>& variables = {}) {
  const ReservedPort port;
  std::vector<std::unique_ptr<Program>> launchers;
  for (int machine = 0; machine < layout.machines; ++machine) {
    auto line = command(config, layout, machine, port.text(), more);
    line.insert(line.begin() + 1, flags.begin(), flags.end());
    launchers.push_back(std::make_unique<Program>(line, variables));
  }
  for (auto& launcher : launchers) {
    const int status = launcher->wait();
    CAPTURE(launcher->out());
    CAPTURE(launcher->err());
    REQUIRE(status == 0);
  }
}

inline std::vector<nlohmann::json> read_metrics(const std::filesystem::path& path) {
  std::vector<nlohmann::json> steps;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    steps.push_back(nlohmann::json::parse(line));
  }
  return steps;
}

inline nlohmann::json golden() {
  return nlohmann::json::parse(std::ifstream(kParity + "/losses.json"));
}

/// Checks loss and gradient norm of each step. `first`: number of the first step.
inline void check_losses(const std::vector<nlohmann::json>& steps, std::size_t first = 0) {
  const nlohmann::json expected = golden().at("single_fp64");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const double loss = expected.at("loss").at(first + i);
    const double norm = expected.at("grad_norm").at(first + i);
    CHECK(std::abs(steps[i].at("loss").get<double>() - loss) <= 2e-5);
    CHECK(std::abs(steps[i].at("grad_norm").get<double>() - norm) <= 1e-4 * norm);
  }
}

}  // namespace acc::test
