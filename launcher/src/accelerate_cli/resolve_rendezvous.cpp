// SPDX-License-Identifier: Apache-2.0
// Stages from `meeting_point` to `read_worker_output`: rendezvous options, restarts, how workers
// are stopped, and their output. Accelerate starts its workers with torchrun, so options without an
// Accelerate flag come from torchrun's PET_* variables.
#include "accelerate_cli/stages.hpp"
#include "plan/rendezvous_values.hpp"

namespace acc::launcher::accelerate_cli {
namespace {

using Backend = RendezvousPlan::Backend;

/// Returns the variable PET_<OPTION>, torchrun's default for an option that has no Accelerate flag.
/// The text is empty if Accelerate would not use torchrun in this mode.
Sourced<std::string> torchrun_default(const AccelerateDraft& draft,
                                      const RendezvousPlan& rendezvous, const std::string& option) {
  const std::string name = "PET_" + option;
  return {rendezvous.backend == Backend::none ? "" : settings::variable(draft.environment, name),
          name};
}

/// True if the job manager shows each task only its own GPU, as device 0, as Slurm's
/// --gpus-per-task does.
bool sees_its_own_gpu(const DeviceChoice& device, const RankLayout& layout) {
  return layout.rank_slot && layout.rank_slot->local_world_size > 1 &&
         device.worker_gpus.size() == 1 && device.device == settings::Device::cuda;
}

/// Returns --min_machines, else all machines.
int read_min_machines(const AccelerateDraft& draft, int num_machines, bool meets) {
  if (!draft.settings.has("min_machines"_key)) {
    return num_machines;
  }
  const Sourced<std::string> given = draft.given("min_machines"_key);
  const int least = static_cast<int>(draft.settings.integer("min_machines"_key));
  if (least > num_machines) {
    throw bad_value(given, "at most num_machines, which is " + std::to_string(num_machines));
  }
  if (!meets && least < num_machines) {
    throw Error(Errc::config, given.where + " " + given.value + " needs --rdzv_backend c10d");
  }
  return least;
}

}  // namespace

RendezvousPlan meeting_point(const JobRole& role, const Workers& workers,
                             const RankLayout& layout) {
  RendezvousPlan meeting = {.port = workers.main.port,
                            .port_was_given = workers.main.port_was_given};
  if (workers.launcher != ProgramLauncher::ranks) {
    meeting.backend = Backend::none;
  } else if (workers.num_machines > 1 || layout.rank_slot) {
    meeting.address = workers.main.host;
  }
  if (!role.run_id.empty()) {
    meeting.run_id = role.run_id;
  }
  return meeting;
}

RendezvousPlan read_rendezvous(AccelerateDraft& draft, const Workers& workers,
                               const RankLayout& layout, RendezvousPlan meeting) {
  const bool is_c10d = draft.settings.choice("rdzv_backend"_key) == "c10d";
  const bool meets = layout.num_machines > 1 && is_c10d;
  if (meets && meeting.backend != Backend::none) {
    meeting.backend = Backend::c10d;
  } else if (is_c10d && !workers.main.given_by.empty() && meeting.port != 0) {
    draft.notice(plan::not_connected(workers.main.given_by, "--num_machines 2 --min_machines 1"));
  }
  meeting.min_machines = read_min_machines(draft, layout.num_machines, meets);
  meeting.machine_rank_was_given = meets && workers.machine_rank_was_given;
  const Sourced<std::string> id = torchrun_default(draft, meeting, "RDZV_ID");
  meeting.run_id = id.value.empty() ? meeting.run_id : id.value;
  meeting.local_address = torchrun_default(draft, meeting, "LOCAL_ADDR").value;
  return meeting;
}

SupervisionPlan read_ending(AccelerateDraft& draft, const RendezvousPlan& rendezvous) {
  SupervisionPlan supervision = plan::read_supervision(draft, rendezvous.backend != Backend::none);
  if (const Sourced<std::string> signals = torchrun_default(draft, rendezvous, "SIGNALS_TO_HANDLE");
      !signals.value.empty()) {
    supervision.stop_signals = plan::read_signals(signals);
  }
  return supervision;
}

bool read_virtual_local_rank(const AccelerateDraft& draft, const RendezvousPlan& rendezvous,
                             const DeviceChoice& device, const RankLayout& layout) {
  const Sourced<std::string> toggle = torchrun_default(draft, rendezvous, "VIRTUAL_LOCAL_RANK");
  const auto on = settings::parse_boolean(toggle.value.empty() ? "0" : toggle.value);
  if (!on) {
    throw Error(Errc::config, toggle.where + " must be 0 or 1, got \"" + toggle.value + "\"");
  }
  if (*on && device.gpu_ids.empty()) {
    plan::check_own_gpus(toggle.where, layout.local_world_size, draft.environment);
  }
  return *on || sees_its_own_gpu(device, layout);
}

OutputPlan read_worker_output(AccelerateDraft& draft, const RendezvousPlan& rendezvous,
                              const RankLayout& layout) {
  if (rendezvous.backend != Backend::none) {
    plan::read_variable(draft, "redirects"_key, "PET_REDIRECTS");
    plan::read_variable(draft, "local_ranks_filter"_key, "PET_LOCAL_RANKS_FILTER");
  }
  return plan::read_output(draft, rendezvous.run_id, layout);
}

}  // namespace acc::launcher::accelerate_cli
