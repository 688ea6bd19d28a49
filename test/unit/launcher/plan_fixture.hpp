// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/launcher/front_end.hpp"
#include "acc/launcher/setting_keys.hpp"
#include "support/errors.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::test {

/// A machine for planning tests, with a temporary working directory that contains a program. The
/// destructor removes the directory.
class PlanFixture {
 public:
  explicit PlanFixture(const FrontEnd& front_end = accelerate_front_end()) : front_end_(front_end) {
    static std::atomic<int> count = 0;
    folder_ = std::filesystem::temp_directory_path() /
              ("acc_plan_" + std::to_string(getpid()) + "_" + std::to_string(count++));
    std::filesystem::create_directories(folder_);
    set_cores(8);
    facts.hostname = "host0";
    facts.working_directory = folder_;
    facts.executable_directory = folder_ / "bin";
    facts.scratch_directory = folder_ / "scratch";
    environment = {{"PATH", "/usr/bin:/bin"}, {"HOME", folder_.string()}};
    write("train", "#!/bin/sh\n", true);
  }
  ~PlanFixture() {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  PlanFixture(const PlanFixture&) = delete;
  PlanFixture& operator=(const PlanFixture&) = delete;

  /// Sets a topology of one socket and one NUMA node, without hyper-threading.
  void set_cores(int count) {
    facts.cpus.clear();
    for (int i = 0; i < count; ++i) {
      facts.cpus.push_back({.id = i, .core = i});
    }
  }

  /// Sets the number of GPUs; only the first `visible` ones are visible.
  void set_gpus(int physical, int visible) {
    facts.gpu.driver_version = physical > 0 ? "580.1" : "";
    facts.gpu.devices.resize(static_cast<std::size_t>(physical));
    for (int i = 0; i < physical; ++i) {
      Gpu& gpu = facts.gpu.devices[static_cast<std::size_t>(i)];
      gpu.name = "GPU model";
      gpu.uuid = "GPU-" + std::string(4, static_cast<char>('a' + i));
    }
    facts.visible_gpus.resize(static_cast<std::size_t>(visible));
    std::iota(facts.visible_gpus.begin(), facts.visible_gpus.end(), 0);
  }

  std::filesystem::path write(const std::string& name, const std::string& text,
                              bool executable = false) const {
    const std::filesystem::path path = folder_ / name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path) << text;
    if (executable) {
      std::filesystem::permissions(path, std::filesystem::perms::owner_exec,
                                   std::filesystem::perm_options::add);
    }
    return path;
  }

  /// Returns the plan for these arguments.
  [[nodiscard]] LaunchPlan plan(const std::vector<std::string>& arguments) const {
    return front_end_.plan(parse_flags(front_end_, arguments), environment, facts);
  }

  /// Returns the error message for these arguments: bad input, or a program that cannot be started.
  /// Empty if there is none.
  [[nodiscard]] std::string refusal(const std::vector<std::string>& arguments) const {
    return acc::test::refusal(
        [&] { return plan(arguments); },
        {Errc::invalid_argument, Errc::config, Errc::not_supported, Errc::not_found, Errc::device,
         Errc::no_program, Errc::not_executable});
  }

  /// Returns the notices, one per line.
  [[nodiscard]] std::string notices(const std::vector<std::string>& arguments) const {
    std::string text;
    for (const std::string& line : plan(arguments).notices) {
      text += line + "\n";
    }
    return text;
  }

  [[nodiscard]] settings::Environment worker(const LaunchPlan& made, int local_rank) const {
    return worker_environment(made, planned_assignment(made, made.rendezvous.port), environment,
                              local_rank);
  }

  [[nodiscard]] settings::Environment worker(const std::vector<std::string>& arguments,
                                             int local_rank) const {
    return worker(plan(arguments), local_rank);
  }

  /// Returns the settings that worker `local_rank` reads from its environment.
  [[nodiscard]] settings::RuntimeSettings runtime(const std::vector<std::string>& arguments,
                                                  int local_rank = 0) const {
    return settings::settings_from_environment(worker(arguments, local_rank));
  }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  HostFacts facts;
  settings::Environment environment;

 private:
  const FrontEnd& front_end_;
  std::filesystem::path folder_;
};

}  // namespace acc::launcher::test
