// Stage `read_rendezvous`: rendezvous options, restarts, how workers are stopped, and their output.
// Accelerate starts its workers with torchrun, so options without an Accelerate flag come from
// torchrun's PET_* variables.
#include "accelerate_cli/stages.hpp"
#include "plan/gpu_checks.hpp"
#include "plan/signal_words.hpp"

namespace acc::launcher {
namespace {

using plugins::Faults;

/// Returns the variable PET_<OPTION>, torchrun's default for an option that has no Accelerate flag.
/// The text is empty if Accelerate would not use torchrun in this mode.
Sourced<std::string> torchrun_default(const AccelerateDraft& draft, const std::string& option) {
  const std::string name = "PET_" + option;
  return {draft.plan.identity == Identity::none ? "" : plugins::variable(draft.environment, name),
          name};
}

Sourced<std::string> given_or_torchruns(const AccelerateDraft& draft, plugins::SettingKey key) {
  return draft.settings.given(key) ? draft.given(key) : torchrun_default(draft, upper(key.name()));
}

void read_ending(AccelerateDraft& draft) {
  if (draft.plan.identity != Identity::none) {
    read_variable(draft, "shutdown_timeout"_key, kTorchrunShutdownTimeout);
  }
  read_supervision(draft);
  if (const Sourced<std::string> signals = torchrun_default(draft, "SIGNALS_TO_HANDLE");
      !signals.value.empty()) {
    draft.plan.supervision.stop_signals = read_signals(signals);
  }
}

/// True if the job manager shows each task only its own GPU, as device 0, as Slurm's
/// --gpus-per-task does.
bool sees_its_own_gpu(const AccelerateDraft& draft) {
  return draft.plan.layout.rank_slot && draft.plan.layout.rank_slot->local_world_size > 1 &&
         draft.worker_gpus.size() == 1 && draft.plan.device == plugins::Device::cuda;
}

void read_virtual_local_rank(AccelerateDraft& draft) {
  const Sourced<std::string> toggle = torchrun_default(draft, "VIRTUAL_LOCAL_RANK");
  const auto on = plugins::parse_boolean(toggle.value.empty() ? "0" : toggle.value);
  if (!on) {
    throw Error(Errc::config, toggle.where + " must be 0 or 1, got \"" + toggle.value + "\"");
  }
  draft.plan.virtual_local_rank = *on || sees_its_own_gpu(draft);
  if (*on && draft.gpu_ids.empty()) {
    check_own_gpus(toggle.where, draft.plan.layout.local_world_size, draft.environment);
  }
}

/// Reads --min_machines. With an elastic number of machines each has num_processes / num_machines
/// workers, and the rendezvous determines the total.
void read_min_machines(AccelerateDraft& draft, bool meets) {
  const Sourced<std::string> given = draft.given("min_machines"_key);
  const int least = static_cast<int>(draft.settings.integer("min_machines"_key));
  if (least > draft.plan.layout.num_machines) {
    throw bad_value(
        given, "at most num_machines, which is " + std::to_string(draft.plan.layout.num_machines));
  }
  if (!meets && least < draft.plan.layout.num_machines) {
    throw Error(Errc::config, given.where + " " + given.value + " needs --rdzv_backend c10d");
  }
  draft.plan.rendezvous.min_machines = least;
  if (least < draft.plan.layout.num_machines) {
    draft.plan.layout.num_processes.reset();
  }
}

}  // namespace

void read_rendezvous(AccelerateDraft& draft) {
  using Backend = RendezvousPlan::Backend;
  RendezvousPlan& rendezvous = draft.plan.rendezvous;
  const bool meets =
      draft.plan.layout.num_machines > 1 && draft.settings.choice("rdzv_backend"_key) == "c10d";
  if (draft.plan.identity != Identity::none) {
    rendezvous.backend = meets ? Backend::c10d : Backend::fixed;
  }
  rendezvous.min_machines = draft.plan.layout.num_machines;
  if (draft.settings.has("min_machines"_key)) {
    read_min_machines(draft, meets);
  }
  rendezvous.machine_rank_was_given = meets && draft.settings.given("machine_rank"_key);
  if (const Sourced<std::string> id = torchrun_default(draft, "RDZV_ID"); !id.value.empty()) {
    rendezvous.run_id = id.value;
  }
  rendezvous.local_address = torchrun_default(draft, "LOCAL_ADDR").value;
  draft.plan.role = draft.settings.text("role"_key);
  draft.plan.supervision.max_restarts =
      static_cast<int>(draft.settings.integer("max_restarts"_key));
  Faults faults;
  faults.collect([&] { read_ending(draft); });
  faults.collect([&] { read_virtual_local_rank(draft); });
  faults.collect([&] { read_rendezvous_conf(draft); });
  faults.collect([&] {
    read_output(draft,
                {given_or_torchruns(draft, "redirects"_key), draft.given("tee"_key),
                 given_or_torchruns(draft, "local_ranks_filter"_key), draft.given("log_dir"_key)});
  });
  faults.raise();
}

}  // namespace acc::launcher
