#pragma once

#include "acc/launcher/resolve.hpp"
#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/faults.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher {

/// The stages of `resolve()`, for one plan. A stage reports its own faults together and ends the
/// work, since the next one builds on its answers.
class Resolver {
 public:
  Resolver(const Flags& flags, const std::optional<plugins::Document>& config,
           const plugins::Environment& environment, const HostFacts& facts)
      : flags_(flags), config_(config), environment_(environment), facts_(facts) {}

  LaunchPlan resolve();

 private:
  // values
  void notice(std::string line) { plan_.notices.push_back(std::move(line)); }
  [[nodiscard]] std::string origin() const;
  void read_values();

  // mode
  void choose_mode();
  [[nodiscard]] bool cpu_flag() const { return flags_.find("use_cpu") != nullptr; }
  static Mode mode_of_flag(const std::string& flag);
  [[nodiscard]] Mode mode_of_file() const;
  /// A flag that would silently do nothing is a mistake of the user.
  void check_flags_of_other_modes(plugins::Faults& faults) const;
  /// A file for FSDP and DeepSpeed at once contradicts itself; a flag that overrules the file's
  /// mode leaves the block of the other mode without effect.
  void check_blocks_of_other_modes(plugins::Faults& faults, const std::string& mode_flag);

  // machines and ranks
  void place_workers();
  void read_port();
  void read_num_processes();
  [[nodiscard]] int default_num_processes() const;
  /// The rank in a file that is about one machine says nothing about which of two this is.
  [[nodiscard]] bool knows_machine_rank() const;
  void check_machines();
  void read_rendezvous();
  void read_output();

  // device
  void choose_device();
  void read_gpu_ids();
  void check_enough_gpus() const;
  [[nodiscard]] std::string no_gpu() const;
  [[nodiscard]] std::string unknown_gpu(const std::string& id) const;
  void place_on_cores();
  /// --cpu on the command line beats what a file says about GPUs; two flags contradict each other.
  void use_cpu_despite_gpus();
  [[nodiscard]] std::string insisting() const;
  /// Accelerate's own default without a file and without a mode.
  void switch_to_multi_gpu();

  // sharding
  void read_sharding();
  /// Where Accelerate leaves a variable unset, the parent's value reaches the program; then it also
  /// counts here.
  void inherit_variables();
  void read_fsdp();
  void read_deepspeed();
  /// As named from the working directory, else beside the YAML file. In the second case the program
  /// gets the path that it can open.
  std::filesystem::path find_deepspeed_config();
  /// The path as the user knows it, where that is the same file from here.
  static std::filesystem::path shortest(const std::filesystem::path& full,
                                        const std::filesystem::path& named);
  void explain_groups(const plugins::ShardingSettings& sharding);

  // environment of the workers
  void build_environment();
  [[nodiscard]] std::string deepspeed_fields() const;
  [[nodiscard]] std::string python_path() const;
  /// Threads of a worker; 0: leave the parent's OMP_NUM_THREADS. Cores are shared out on the CPU; a
  /// GPU worker gets one, as from torchrun.
  [[nodiscard]] int omp_threads() const;

  const Flags& flags_;
  const std::optional<plugins::Document>& config_;
  const plugins::Environment& environment_;
  const HostFacts& facts_;
  plugins::Settings settings_;
  plugins::AccelerateConfig file_;
  std::vector<int> worker_gpus_;  ///< that the workers may use, as indices of the driver's devices
  LaunchPlan plan_;
};

}  // namespace acc::launcher
