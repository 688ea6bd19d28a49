// SPDX-License-Identifier: Apache-2.0
// Stages `count_workers` and `split_workers`: the number of workers and machines, this machine's
// rank and share, and what starts the workers. num_processes is the total over all machines, as in
// Accelerate; it is divided evenly unless --num_local_processes, a hostfile or the job manager
// gives the share of each machine.
#include "accelerate_cli/stages.hpp"
#include "plan/program_command.hpp"

#include <algorithm>

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Faults;
using settings::Source;

MainAddress read_main_address(const AccelerateDraft& draft) {
  MainAddress main;
  if (const auto given = draft.given("main_process_ip"_key); !given.value.empty()) {
    main.host = given.value;
    main.given_by = given.where;
  }
  if (draft.settings.has("main_process_port"_key)) {
    main.port = static_cast<std::uint16_t>(draft.settings.integer("main_process_port"_key));
    // A job manager's port is the same for all launchers in one job script. It counts as a default,
    // so that every launcher after the first may take another port.
    const bool is_jobs = draft.settings.source("main_process_port"_key).kind == Source::Kind::job;
    main.port_was_given = draft.policy.keeps_given_port && !is_jobs;
  }
  return main;
}

/// Returns the default number of workers per machine: the visible GPUs, or 1 without any. In
/// compatibility mode it may be 0.
int gpus_or_one(const AccelerateDraft& draft) {
  const auto gpus = static_cast<int>(draft.facts.visible_gpus.size());
  if (!draft.policy.modes_run_without_gpus) {
    return gpus;
  }
  return draft.use_cpu() ? 1 : std::max(1, gpus);
}

/// Returns the total number of workers if neither flag, job nor file gives it. Throws Error(config)
/// if there is no default, for example with a configuration file or several machines.
int default_num_processes(const AccelerateDraft& draft, const JobRole& role, int num_machines) {
  if (draft.flags.one_process_a_machine) {
    return num_machines;
  }
  const bool uneven = draft.settings.has("num_local_processes"_key);
  if (uneven && num_machines == 1) {
    return static_cast<int>(draft.settings.integer("num_local_processes"_key));
  }
  const bool file_decides = draft.config && draft.file.distributed_type != "NO";
  if (num_machines > 1 && !role.manager.name.empty()) {
    return gpus_or_one(draft) * num_machines;
  }
  if (file_decides || uneven || (num_machines > 1 && draft.policy.checks_counts)) {
    if (draft.file.faulty_keys.contains("num_processes"_key.text()) ||
        (draft.config && draft.file.distributed_type.empty())) {
      return num_machines;  // that fault is reported already
    }
    throw Error(Errc::config,
                "--num_processes (the number of workers on all machines) is missing" +
                    (draft.config ? "; " + draft.config->path.string() + " does not set it either"
                                  : std::string()));
  }
  return draft.config ? 1 : gpus_or_one(draft);
}

/// Returns the total number of workers as requested, else the default, which becomes the setting.
int read_num_processes(AccelerateDraft& draft, const JobRole& role, Mode mode, int num_machines) {
  const bool given = draft.settings.has("num_processes"_key);
  const int count = given ? static_cast<int>(draft.settings.integer("num_processes"_key))
                          : default_num_processes(draft, role, num_machines);
  if (!given) {
    draft.settings.set("num_processes"_key, std::to_string(std::max(1, count)),
                       {Source::Kind::derived, "GPUs of this machine, else 1"});
  }
  const bool alone = draft.mode_flag(Mode::multi_gpu) && count < 2;
  const bool counts = draft.policy.checks_values ? given
                                                 : draft.flags.find("num_processes"_key) !=
                                                       nullptr;  // else the file may say 1
  if (alone && counts) {
    throw Error(Errc::config, "--" + mode_key(Mode::multi_gpu).text() +
                                  " needs --num_processes of at least 2, got " +
                                  std::to_string(count));
  }
  if (count < 1 && mode != Mode::plain) {
    throw Error(Errc::config, "--num_processes is missing, and without GPUs there is no default");
  }
  return count;
}

/// True if several machines are to be started by DeepSpeed's own launcher: if a flag or file names
/// its options, and always in compatibility mode.
bool wants_deepspeed_command(const AccelerateDraft& draft) {
  if (draft.settings.has("deepspeed_multinode_launcher"_key)) {
    return draft.settings.choice("deepspeed_multinode_launcher"_key) != "standard";
  }
  return !draft.policy.needs_no_deepspeed || draft.settings.has("deepspeed_hostfile"_key) ||
         draft.settings.has("deepspeed_inclusion_filter"_key) ||
         draft.settings.has("deepspeed_exclusion_filter"_key);
}

/// Returns the mode, which without a file and without a mode is Accelerate's own default.
Mode mode_by_default(const AccelerateDraft& draft, Mode mode, int num_processes) {
  const bool several_gpus = mode == Mode::plain && !draft.config && !draft.cpu_flag() &&
                            draft.facts.visible_gpus.size() > 1 && num_processes > 1;
  return several_gpus ? Mode::multi_gpu : mode;
}

/// Decides whether acclaunch starts ranks itself, one plain process, mpirun, or the deepspeed
/// command.
ProgramLauncher program_launcher(const AccelerateDraft& draft, const Workers& workers) {
  const bool several = workers.num_processes > 1 || workers.num_machines > 1;
  if (workers.mode == Mode::plain && workers.mpirun_hosts) {
    return ProgramLauncher::mpirun;
  }
  if (workers.mode == Mode::plain && (!several || !draft.policy.cpu_is_a_device)) {
    return ProgramLauncher::one_process;
  }
  if (workers.mode == Mode::deepspeed && workers.num_machines > 1 &&
      wants_deepspeed_command(draft)) {
    return ProgramLauncher::deepspeed;
  }
  return ProgramLauncher::ranks;
}

/// Uses --num_local_processes for this machine. The total is checked again in the rendezvous, where
/// the shares of all machines are known.
RankLayout split_by_hand(const AccelerateDraft& draft, const Workers& workers) {
  const auto local = static_cast<int>(draft.settings.integer("num_local_processes"_key));
  const int others = workers.num_processes - local;
  if (workers.num_machines == 1 ? others != 0 : others < workers.num_machines - 1) {
    throw Error(Errc::config,
                "--num_local_processes " + std::to_string(local) + " does not fit " +
                    draft.place("num_processes"_key) + " " + std::to_string(workers.num_processes) +
                    ", the total of " + std::to_string(workers.num_machines) +
                    (workers.num_machines == 1 ? " machine" : " machines with at least one each"));
  }
  return {.num_machines = workers.num_machines,
          .machine_rank = workers.machine_rank,
          .num_processes = workers.num_processes,
          .local_world_size = local};
}

/// Divides the workers evenly. Throws Error(config) if this leaves a rest; in compatibility mode
/// the total is rounded down, as torchrun's arguments are.
RankLayout split_evenly(const AccelerateDraft& draft, const Workers& workers) {
  const int local = workers.num_processes / workers.num_machines;
  const bool even = workers.num_processes % workers.num_machines == 0;
  if (local < 1 || (!even && draft.policy.checks_counts)) {
    throw Error(Errc::config,
                draft.place("num_processes"_key) + " " + std::to_string(workers.num_processes) +
                    " is the total and must be a multiple of " + draft.place("num_machines"_key) +
                    " " + std::to_string(workers.num_machines) +
                    "; if machines have different numbers of workers, pass "
                    "--num_local_processes on each");
  }
  return {.num_machines = workers.num_machines,
          .machine_rank = workers.machine_rank,
          .num_processes = local * workers.num_machines,
          .local_world_size = local};
}

/// Returns the workers that acclaunch starts on this machine and in the job.
RankLayout split_processes(const AccelerateDraft& draft, const JobRole& role,
                           const Workers& workers) {
  if (workers.launcher != ProgramLauncher::ranks) {
    return {};
  }
  if (role.own_rank) {  // in the rendezvous each launcher counts as a machine with one worker
    return {.num_machines = workers.num_processes,
            .machine_rank = role.own_rank->rank,
            .num_processes = workers.num_processes,
            .local_world_size = 1,
            .rank_slot = role.own_rank->slot};
  }
  if (draft.settings.has("num_local_processes"_key)) {
    return split_by_hand(draft, workers);
  }
  if (!role.local_sizes.empty()) {
    return {
        .num_machines = workers.num_machines,
        .machine_rank = workers.machine_rank,
        .num_processes = workers.num_processes,
        .local_world_size = role.local_sizes.at(static_cast<std::size_t>(workers.machine_rank))};
  }
  return split_evenly(draft, workers);
}

/// True if machine_rank identifies this machine. A rank in a file for one machine does not count if
/// a flag asks for more machines.
bool knows_machine_rank(const AccelerateDraft& draft) {
  const Source::Kind machines = draft.settings.source("num_machines"_key).kind;
  const Source::Kind rank = draft.settings.source("machine_rank"_key).kind;
  return draft.settings.has("machine_rank"_key) &&
         (!draft.policy.checks_counts || rank >= machines || rank == Source::Kind::job);
}

void check_machine_rank(const AccelerateDraft& draft, const Workers& workers) {
  if (workers.machine_rank >= workers.num_machines) {
    throw Error(Errc::config, draft.place("machine_rank"_key) + " " +
                                  std::to_string(workers.machine_rank) + " must be below " +
                                  draft.place("num_machines"_key) + " " +
                                  std::to_string(workers.num_machines));
  }
}

/// Checks what several machines need to meet: the address, and with the static rendezvous the rank.
/// The message contains the command to run on each machine.
void check_address_of_ranks(const AccelerateDraft& draft, const Workers& workers) {
  Faults faults;
  const bool needs_rank =
      draft.settings.choice("rdzv_backend"_key) == "static" && !knows_machine_rank(draft);
  const bool has_address = !workers.main.given_by.empty();
  if (needs_rank || !has_address) {
    const std::string address = has_address ? workers.main.host : draft.facts.hostname;
    faults.add(draft.place("num_machines"_key) + " " + std::to_string(workers.num_machines) +
               " needs " +
               (!needs_rank   ? "--main_process_ip"
                : has_address ? "--machine_rank"
                              : "--machine_rank and --main_process_ip") +
               "; with this machine as machine 0, run" +
               plan::machines_hint(draft.flags, workers.num_machines, address, workers.main.port));
  }
  faults.collect([&] {
    plan::check_port_is_known(workers.main.port, workers.num_machines,
                              {"0", draft.place("main_process_port"_key)});
  });
  faults.collect([&] { check_machine_rank(draft, workers); });
  faults.raise();
}

void check_address_of_one_process(const AccelerateDraft& draft, int num_machines) {
  for (const settings::SettingKey key : {"main_process_ip"_key, "main_process_port"_key}) {
    if (!draft.settings.has(key)) {
      throw Error(Errc::config, draft.place("num_machines"_key) + " " +
                                    std::to_string(num_machines) + " needs --" + key.text() +
                                    ", where the processes meet");
    }
  }
}

void check_machines(const AccelerateDraft& draft, const JobRole& role, const Workers& workers) {
  const bool several = workers.num_machines > 1 || (role.own_rank && workers.num_processes > 1);
  if (workers.launcher == ProgramLauncher::ranks) {
    several ? check_address_of_ranks(draft, workers) : check_machine_rank(draft, workers);
  } else if (several && workers.launcher != ProgramLauncher::deepspeed) {
    check_address_of_one_process(draft, workers.num_machines);
  }
}

}  // namespace

Workers count_workers(AccelerateDraft& draft, const JobRole& role, Mode mode) {
  Workers workers;
  workers.num_machines = static_cast<int>(draft.settings.integer("num_machines"_key));
  workers.num_processes = read_num_processes(draft, role, mode, workers.num_machines);
  workers.main = read_main_address(draft);
  workers.machine_rank_was_given = draft.settings.given("machine_rank"_key);
  if (workers.num_machines > 1 || draft.policy.checks_counts) {
    workers.machine_rank = static_cast<int>(draft.settings.integer("machine_rank"_key));
  }
  if (constexpr auto kHosts = "mpirun_hostfile"_key; draft.settings.has(kHosts)) {
    workers.mpirun_hosts = {draft.settings.text(kHosts), draft.place(kHosts)};
  }
  workers.mode = role.own_rank ? mode : mode_by_default(draft, mode, workers.num_processes);
  workers.launcher = role.own_rank ? ProgramLauncher::ranks : program_launcher(draft, workers);
  return workers;
}

RankLayout split_workers(const AccelerateDraft& draft, const JobRole& role,
                         const Workers& workers) {
  RankLayout started;
  Faults faults;
  faults.collect([&] { check_machines(draft, role, workers); });
  faults.collect([&] { started = split_processes(draft, role, workers); });
  faults.raise();
  return started;
}

}  // namespace acc::launcher::accelerate_cli
