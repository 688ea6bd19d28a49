#pragma once

#include "acc/launcher/resolve.hpp"
#include "acc/plugins/accelerate_config.hpp"
#include "acc/plugins/faults.hpp"
#include "faces/accelerate/conduct.hpp"
#include "plan/program_command.hpp"
#include "plan/torchrun_values.hpp"

#include <filesystem>
#include <string>

namespace acc::launcher {

/// The stages of `resolve()`, for one plan. A stage whose answers others build on throws; they are
/// then left out, and what all the rest finds is reported together.
class Resolver {
 public:
  Resolver(const Flags& flags, const std::optional<plugins::Document>& config,
           const plugins::Environment& environment, const HostFacts& facts)
      : flags_(flags),
        config_(config),
        environment_(environment),
        facts_(facts),
        conduct_(conduct_of(flags, environment)) {}

  LaunchPlan resolve();

 private:
  void find_faults();
  void notice(std::string line) { plan_.notices.push_back(std::move(line)); }
  [[nodiscard]] std::string origin() const;
  /// `c.yaml:3: gpu_ids`, or `--gpu_ids`.
  [[nodiscard]] std::string place(std::string_view key) const;

  // values
  void read_values();
  void read_flag(const Flags::Value& value);
  void read_compat();
  /// One line about what nobody gave, where there is no file.
  void say_defaults();

  // mode
  void choose_mode();
  void check_mode_flags() const;
  [[nodiscard]] bool cpu_flag() const { return flags_.find("use_cpu") != nullptr; }
  static Mode mode_of_flag(const std::string& flag);
  [[nodiscard]] Mode mode_of_file() const;
  /// Flags that do nothing in this mode.
  void notice_flags_of_other_modes();
  /// A file for FSDP and DeepSpeed at once contradicts itself; a flag that overrules the file's
  /// mode leaves the block of the other mode without effect.
  void check_blocks_of_other_modes(const std::string& mode_flag);

  // machines and ranks
  /// What starts the program.
  enum class Starter { ranks, one_process, mpirun, deepspeed };
  void place_workers();
  void read_port();
  void read_num_processes();
  [[nodiscard]] int default_num_processes() const;
  [[nodiscard]] int gpus_or_one() const;
  void choose_starter();
  [[nodiscard]] bool wants_deepspeed_command() const;
  void split_processes();
  void split_by_hand();
  /// The rank in a file that is about one machine says nothing about which of two this is.
  [[nodiscard]] bool knows_machine_rank() const;
  void check_machines() const;
  void check_address_of_ranks() const;
  void check_address_of_one_process() const;
  void read_rendezvous();
  /// PET_<OPTION>: torchrun's own default, where Accelerate has no flag for the option. Nothing
  /// where torchrun is not what would start the workers.
  [[nodiscard]] Given torchrun_default(const std::string& option) const;
  void read_ending();
  void read_virtual_local_rank();
  void read_output();

  // device
  void choose_device();
  void check_use_cpu() const;
  [[nodiscard]] bool asked_for_cpu() const;
  void read_gpu_ids();
  void check_gpu_ids();
  /// Accelerate does not take one GPU for several, but where nothing but flags says so.
  void check_several_gpus() const;
  void check_enough_gpus() const;
  [[nodiscard]] std::string no_gpu() const;
  [[nodiscard]] std::string unknown_gpu(const std::string& id) const;
  void notice_cpu();
  [[nodiscard]] NumaBinding binding() const;
  void place_on_cores();

  // sharding
  void read_sharding();
  /// Where Accelerate leaves a variable unset, the parent's value reaches the program; then it also
  /// counts here.
  void inherit_variables();
  void read_fsdp();
  void read_deepspeed();
  void read_deepspeed_file();
  /// As named from the working directory, else beside the YAML file. In the second case the program
  /// gets the path that it can open.
  std::filesystem::path find_deepspeed_config();
  /// The path as the user knows it, where that is the same file from here.
  static std::filesystem::path shortest(const std::filesystem::path& full,
                                        const std::filesystem::path& named);
  void explain_groups(const plugins::ShardingSettings& sharding);

  // command
  void choose_command();
  [[nodiscard]] ProgramKind program_kind() const;
  [[nodiscard]] std::vector<std::string> program() const;
  [[nodiscard]] std::vector<std::string> mpirun_command() const;
  [[nodiscard]] std::vector<std::string> deepspeed_command() const;
  void plan_deepspeed_environment();

  // environment of the workers
  void build_environment();
  void add_simple_variables(plugins::Environment& environment) const;
  void add_gpu_variables(plugins::Environment& environment) const;
  [[nodiscard]] std::string deepspeed_fields() const;
  [[nodiscard]] std::string python_path() const;
  /// Threads of a worker; 0: leave the parent's OMP_NUM_THREADS.
  [[nodiscard]] int omp_threads() const;
  /// Whether OMP_NUM_THREADS is a share of the physical cores.
  [[nodiscard]] bool divides_cores() const;
  [[nodiscard]] bool counts_as_use_cpu() const;
  [[nodiscard]] int cores_of_one() const;
  /// That share the cores: of an mpirun that started us, else ours.
  [[nodiscard]] int local_processes() const;

  const Flags& flags_;
  const std::optional<plugins::Document>& config_;
  const plugins::Environment& environment_;
  const HostFacts& facts_;
  const Conduct& conduct_;
  plugins::Settings settings_;
  plugins::AccelerateConfig file_;
  plugins::Faults faults_;
  int num_processes_ = 1;  ///< as asked for; the plan has those that acclaunch itself starts
  int num_machines_ = 1;
  Starter starter_ = Starter::ranks;
  std::vector<int> worker_gpus_;  ///< that the workers may use, as indices of the driver's devices
  LaunchPlan plan_;
};

}  // namespace acc::launcher
