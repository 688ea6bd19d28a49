#pragma once

#include "acc/launcher/face.hpp"
#include "acc/plugins/faults.hpp"
#include "plan/torchrun_values.hpp"

#include <string>

namespace acc::launcher {

LaunchPlan plan_torchrun(const Flags& flags, const plugins::Environment& environment,
                         const HostFacts& facts);

/// The stages of `plan_torchrun`, for one plan.
class TorchrunPlanner {
 public:
  TorchrunPlanner(const Flags& flags, const plugins::Environment& environment,
                  const HostFacts& facts);

  LaunchPlan plan();

 private:
  void notice(std::string line) { plan_.notices.push_back(std::move(line)); }
  /// The value with the spelling of the flag, or the variable that it came from.
  [[nodiscard]] Given given(const std::string& key) const;

  // values: flag, else PET_<FLAG>, else default
  void read_values();
  void read_variables(plugins::Faults& faults);

  // workers and machines
  void count_workers();
  [[nodiscard]] int count_named(const Given& word) const;
  void count_machines();
  /// A plain single machine is standalone in torchrun too: nobody else needs to know the port.
  [[nodiscard]] bool is_standalone() const;
  void read_rendezvous();
  void stand_alone();
  void meet_at_given_address();
  void meet_at_endpoint();
  void read_conf();

  // how workers run and end
  void read_output();
  void read_stop_signals();
  void choose_command();
  void choose_device();
  void place_on_cores();
  void check_virtual_local_rank();
  void limit_threads();

  const Flags& flags_;
  const plugins::Environment& environment_;
  const HostFacts& facts_;
  plugins::Settings settings_;
  MachineRange machines_;
  LaunchPlan plan_;
};

}  // namespace acc::launcher
