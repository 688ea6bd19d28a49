#pragma once

#include "cluster/hostfile.hpp"
#include "cluster/place.hpp"
#include "plan/draft.hpp"

#include <vector>

namespace acc::launcher {

struct DeepSpeedDraft : Draft {
  using Draft::Draft;

  std::vector<Host> hosts;  ///< that take part
  /// The acclaunch that started this one has chosen them, and says which one this is.
  std::optional<ClusterPlace> place;
  bool file_names_hosts = false;
  int world_size = 0;  ///< over all hosts

  [[nodiscard]] const Host& this_host() const {
    return hosts[static_cast<std::size_t>(plan.machine_rank)];
  }
};

/// Throws Error(config) where two flags choose the same in different ways.
void check_contradictions(const plugins::Settings& settings);

/// Which machines and slots take part. Throws Error(config).
void choose_hosts(DeepSpeedDraft& draft);

/// Whether the hosts are started from here.
bool starts_machines(const DeepSpeedDraft& draft);

/// Which of the hosts this is, and so its workers. Throws Error(config).
void find_this_machine(DeepSpeedDraft& draft);

/// Throws Error(device) where this machine has fewer GPUs than the hostfile says.
void check_slots(const DeepSpeedDraft& draft);

/// Whether CUDA_VISIBLE_DEVICES chooses, since neither a hostfile nor a flag does.
bool variable_chooses(const DeepSpeedDraft& draft);

bool uses_gpus(const DeepSpeedDraft& draft);

}  // namespace acc::launcher
