#pragma once

#include "acc/launcher/face.hpp"
#include "faces/deepspeed/hostfile.hpp"

#include <filesystem>
#include <string>
#include <vector>

namespace acc::launcher {

LaunchPlan plan_deepspeed(const Flags& flags, const plugins::Environment& environment,
                          const HostFacts& facts);

/// The stages of `plan_deepspeed`, for one plan.
class DeepSpeedPlanner {
 public:
  DeepSpeedPlanner(const Flags& flags, const plugins::Environment& environment,
                   const HostFacts& facts);

  LaunchPlan plan();

 private:
  void notice(std::string line) { plan_.notices.push_back(std::move(line)); }
  [[nodiscard]] Given given(const std::string& key) const;
  /// ACC_SHARE_GPUS: more workers than GPUs are no mistake.
  [[nodiscard]] bool shares_gpus() const;
  void read_values();

  // machines and slots: choose_hosts.cpp
  void check_contradictions() const;
  void choose_hosts();
  /// CUDA_VISIBLE_DEVICES, where neither a hostfile nor a flag does.
  [[nodiscard]] bool variable_chooses() const;
  [[nodiscard]] bool uses_gpus() const;
  /// Without GPUs: what the flags ask for, else one.
  [[nodiscard]] std::vector<int> slots_of_this_machine();
  void keep_first_hosts();
  void keep_first_slots();
  void find_this_machine();
  /// -1: none of the hosts has the name of this machine.
  [[nodiscard]] int rank_of_host_name() const;
  [[nodiscard]] std::string machines_to_start() const;
  void check_slots() const;
  [[nodiscard]] const Host& this_host() const {
    return hosts_[static_cast<std::size_t>(plan_.machine_rank)];
  }

  // what the workers get
  void read_rendezvous();
  void read_output();
  void choose_command();
  void read_environment_files();
  void read_environment_file(const std::filesystem::path& path);
  void choose_device();
  void show_gpus();
  void read_config();
  void place_workers();
  [[nodiscard]] HostFacts facts_for_binding() const;

  const Flags& flags_;
  const plugins::Environment& environment_;
  const HostFacts& facts_;
  plugins::Settings settings_;
  std::vector<Host> hosts_;
  bool file_names_hosts_ = false;
  int world_size_ = 0;  ///< over all hosts
  LaunchPlan plan_;
};

}  // namespace acc::launcher
