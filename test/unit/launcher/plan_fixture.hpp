#pragma once

#include "acc/base/error.hpp"
#include "acc/launcher/face.hpp"
#include "acc/launcher/resolve.hpp"

#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::test {

/// What the user is told of bad input, with status 2, or of a program that cannot be started.
inline std::string refused(const Error& error) {
  const bool program = error.code() == Errc::no_program || error.code() == Errc::not_executable;
  return exit_status(error) == 2 || program ? error.what()
                                            : "wrong exit status: " + std::string(error.what());
}

/// A folder of its own for one case, with a program in it; gone at the end.
class PlanFixture {
 public:
  PlanFixture() {
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

  /// One socket and node, without hyper-threading.
  void set_cores(int count) {
    facts.cpus.clear();
    for (int i = 0; i < count; ++i) {
      facts.cpus.push_back({.id = i, .core = i});
    }
  }

  /// `physical` GPUs in this machine, of which the first `visible` are left to it.
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

  /// What acclaunch decides for these arguments.
  [[nodiscard]] LaunchPlan plan(const std::vector<std::string>& arguments) const {
    const Flags flags = parse_flags(accelerate_face(), arguments);
    return resolve(flags, load_config(flags, environment), environment, facts);
  }

  /// The message of the error with which acclaunch refuses; empty when there is none.
  [[nodiscard]] std::string refusal(const std::vector<std::string>& arguments) const {
    try {
      static_cast<void>(plan(arguments));
      return "";
    } catch (const Error& error) {
      return refused(error);
    }
  }

  [[nodiscard]] plugins::Environment worker(const LaunchPlan& made, int local_rank) const {
    return worker_environment(made, planned_assignment(made, made.rendezvous.port), environment,
                              local_rank);
  }

  /// What worker `local_rank` understands.
  [[nodiscard]] plugins::RuntimeSettings runtime(const std::vector<std::string>& arguments,
                                                 int local_rank = 0) const {
    return plugins::settings_from_environment(worker(plan(arguments), local_rank));
  }

  [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }

  HostFacts facts;
  plugins::Environment environment;

 private:
  std::filesystem::path folder_;
};

}  // namespace acc::launcher::test
