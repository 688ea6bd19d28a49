// Stage `count_workers`: the number of workers and machines, this machine's rank and share, and
// what starts the workers. num_processes is the total over all machines, as in Accelerate; it is
// divided evenly unless --num_local_processes, a hostfile or the job manager gives the share of
// each machine.
#include "accelerate_cli/stages.hpp"
#include "plan/machines.hpp"

#include <algorithm>

namespace acc::launcher {
namespace {

using plugins::Faults;
using plugins::Source;

constexpr std::uint16_t kDefaultPort = 29500;  // torchrun's

void read_port(AccelerateDraft& draft) {
  draft.plan.rendezvous.port = kDefaultPort;
  if (draft.settings.has("main_process_port"_key)) {
    draft.plan.rendezvous.port =
        static_cast<std::uint16_t>(draft.settings.integer("main_process_port"_key));
    // A job manager's port is the same for all launchers in one job script. It counts as a default,
    // so that every launcher after the first may take another port.
    const bool is_jobs = draft.settings.source("main_process_port"_key).kind == Source::Kind::job;
    draft.plan.rendezvous.port_was_given = draft.policy.keeps_given_port && !is_jobs;
  }
}

/// Returns the default number of workers per machine: the visible GPUs, or 1 without any. In
/// compatibility mode it may be 0.
int gpus_or_one(const AccelerateDraft& draft) {
  const auto gpus = static_cast<int>(draft.facts.visible_gpus.size());
  if (!draft.policy.modes_run_without_gpus) {
    return gpus;
  }
  return draft.settings.boolean("use_cpu"_key) ? 1 : std::max(1, gpus);
}

/// Returns the total number of workers if neither flag, job nor file gives it. Throws Error(config)
/// if there is no default, for example with a configuration file or several machines.
int default_num_processes(const AccelerateDraft& draft) {
  if (draft.flags.one_process_a_machine) {
    return draft.num_machines;
  }
  const bool uneven = draft.settings.has("num_local_processes"_key);
  if (uneven && draft.num_machines == 1) {
    return static_cast<int>(draft.settings.integer("num_local_processes"_key));
  }
  const bool file_decides = draft.config && draft.file.distributed_type != "NO";
  if (draft.num_machines > 1 && !draft.plan.manager.name.empty()) {
    return gpus_or_one(draft) * draft.num_machines;
  }
  if (file_decides || uneven || (draft.num_machines > 1 && draft.policy.checks_counts)) {
    if (draft.file.faulty_keys.contains("num_processes"_key.text()) ||
        (draft.config && draft.file.distributed_type.empty())) {
      return draft.num_machines;  // that fault is reported already
    }
    throw Error(Errc::config,
                "--num_processes (the number of workers on all machines) is missing" +
                    (draft.config ? "; " + draft.config->path.string() + " does not set it either"
                                  : std::string()));
  }
  return draft.config ? 1 : gpus_or_one(draft);
}

void read_num_processes(AccelerateDraft& draft) {
  const bool given = draft.settings.has("num_processes"_key);
  draft.num_processes = given ? static_cast<int>(draft.settings.integer("num_processes"_key))
                              : default_num_processes(draft);
  if (!given) {
    draft.settings.set("num_processes"_key, std::to_string(std::max(1, draft.num_processes)),
                       {Source::Kind::derived, "GPUs of this machine, else 1"});
  }
  const bool alone = draft.settings.boolean("multi_gpu"_key) && draft.num_processes < 2;
  const bool counts = draft.policy.checks_values ? given
                                                 : draft.flags.find("num_processes"_key) !=
                                                       nullptr;  // else the file may say 1
  if (alone && counts) {
    throw Error(Errc::config, "--multi_gpu needs --num_processes of at least 2, got " +
                                  std::to_string(draft.num_processes));
  }
  if (draft.num_processes < 1 && draft.plan.mode != Mode::plain) {
    throw Error(Errc::config, "--num_processes is missing, and without GPUs there is no default");
  }
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

/// Decides whether acclaunch starts ranks itself, one plain process, mpirun, or the deepspeed
/// command.
void choose_program_launcher(AccelerateDraft& draft) {
  const bool several = draft.num_processes > 1 || draft.num_machines > 1;
  if (draft.rank_slot) {
    return;
  }
  if (draft.plan.mode == Mode::plain && !draft.config && !draft.cpu_flag() &&
      draft.facts.visible_gpus.size() > 1 && draft.num_processes > 1) {
    draft.plan.mode =
        Mode::multi_gpu;  // Accelerate's own default without a file and without a mode
  }
  if (draft.plan.mode == Mode::plain && draft.settings.has("mpirun_hostfile"_key)) {
    draft.program_launcher = ProgramLauncher::mpirun;
  } else if (draft.plan.mode == Mode::plain && (!several || !draft.policy.cpu_is_a_device)) {
    draft.program_launcher = ProgramLauncher::one_process;
  } else if (draft.plan.mode == Mode::deepspeed && draft.num_machines > 1 &&
             wants_deepspeed_command(draft)) {
    draft.program_launcher = ProgramLauncher::deepspeed;
  }
}

/// Uses --num_local_processes for this machine. The total is checked again in the rendezvous, where
/// the shares of all machines are known.
void split_by_hand(AccelerateDraft& draft) {
  draft.plan.local_world_size = static_cast<int>(draft.settings.integer("num_local_processes"_key));
  const int others = draft.num_processes - draft.plan.local_world_size;
  if (draft.num_machines == 1 ? others != 0 : others < draft.num_machines - 1) {
    throw Error(Errc::config,
                "--num_local_processes " + std::to_string(draft.plan.local_world_size) +
                    " does not fit " + draft.place("num_processes"_key) + " " +
                    std::to_string(draft.num_processes) + ", the total of " +
                    std::to_string(draft.num_machines) +
                    (draft.num_machines == 1 ? " machine" : " machines with at least one each"));
  }
}

/// One launcher per rank: in the rendezvous each launcher counts as a machine with one worker.
void split_by_seats(AccelerateDraft& draft) {
  draft.plan.rank_slot = draft.rank_slot;
  draft.plan.num_machines = draft.num_processes;
  draft.plan.num_processes = draft.num_processes;
  draft.plan.machine_rank = draft.launcher_rank;
  draft.plan.local_world_size = 1;
  draft.plan.rendezvous.address = draft.settings.text("main_process_ip"_key);
}

/// Sets the number of workers of this machine and of the job. Throws Error(config) if the total
/// cannot be divided evenly; in compatibility mode it is rounded down, as torchrun's arguments are.
void split_processes(AccelerateDraft& draft) {
  using Backend = RendezvousPlan::Backend;
  if (draft.program_launcher != ProgramLauncher::ranks) {
    draft.plan.identity = Identity::none;
    draft.plan.rendezvous.backend = Backend::none;
    draft.plan.machine_rank = 0;
    return;
  }
  if (draft.rank_slot) {
    split_by_seats(draft);
    return;
  }
  draft.plan.num_machines = draft.num_machines;
  draft.plan.num_processes = draft.num_processes;
  if (draft.num_machines > 1) {
    draft.plan.rendezvous.address = draft.settings.text("main_process_ip"_key);
  }
  if (draft.settings.has("num_local_processes"_key)) {
    split_by_hand(draft);
    return;
  }
  if (!draft.local_sizes.empty()) {
    draft.plan.local_world_size =
        draft.local_sizes.at(static_cast<std::size_t>(draft.plan.machine_rank));
    return;
  }
  draft.plan.local_world_size = draft.num_processes / draft.num_machines;
  const bool even = draft.num_processes % draft.num_machines == 0;
  if (draft.plan.local_world_size < 1 || (!even && draft.policy.checks_counts)) {
    throw Error(Errc::config,
                draft.place("num_processes"_key) + " " + std::to_string(draft.num_processes) +
                    " is the total and must be a multiple of " + draft.place("num_machines"_key) +
                    " " + std::to_string(draft.num_machines) +
                    "; if machines have different numbers of workers, pass "
                    "--num_local_processes on each");
  }
  draft.plan.num_processes = draft.plan.local_world_size * draft.num_machines;
}

/// True if machine_rank identifies this machine. A rank in a file for one machine does not count if
/// a flag asks for more machines.
bool knows_machine_rank(const AccelerateDraft& draft) {
  const Source::Kind machines = draft.settings.source("num_machines"_key).kind;
  const Source::Kind rank = draft.settings.source("machine_rank"_key).kind;
  return draft.settings.has("machine_rank"_key) &&
         (!draft.policy.checks_counts || rank >= machines || rank == Source::Kind::job);
}

void check_machine_rank(const AccelerateDraft& draft) {
  if (draft.plan.machine_rank >= draft.num_machines) {
    throw Error(Errc::config, draft.place("machine_rank"_key) + " " +
                                  std::to_string(draft.plan.machine_rank) + " must be below " +
                                  draft.place("num_machines"_key) + " " +
                                  std::to_string(draft.num_machines));
  }
}

/// Checks what several machines need to meet: the address, and with the static rendezvous the rank.
/// The message contains the command to run on each machine.
void check_address_of_ranks(const AccelerateDraft& draft) {
  Faults faults;
  const bool needs_rank =
      draft.settings.choice("rdzv_backend"_key) == "static" && !knows_machine_rank(draft);
  if (needs_rank || !draft.settings.has("main_process_ip"_key)) {
    const std::string address = draft.settings.has("main_process_ip"_key)
                                    ? draft.settings.text("main_process_ip"_key)
                                    : draft.facts.hostname;
    faults.add(
        draft.place("num_machines"_key) + " " + std::to_string(draft.num_machines) + " needs " +
        (!needs_rank                                 ? "--main_process_ip"
         : draft.settings.has("main_process_ip"_key) ? "--machine_rank"
                                                     : "--machine_rank and --main_process_ip") +
        "; with this machine as machine 0, run" +
        machines_hint(draft.flags, draft.num_machines, address, draft.plan.rendezvous.port));
  }
  faults.collect([&] {
    check_port_is_known(draft.plan.rendezvous, draft.num_machines,
                        {"0", draft.place("main_process_port"_key)});
  });
  faults.collect([&] { check_machine_rank(draft); });
  faults.raise();
}

void check_address_of_one_process(const AccelerateDraft& draft) {
  for (const plugins::SettingKey key : {"main_process_ip"_key, "main_process_port"_key}) {
    if (!draft.settings.has(key)) {
      throw Error(Errc::config, draft.place("num_machines"_key) + " " +
                                    std::to_string(draft.num_machines) + " needs --" + key.text() +
                                    ", where the processes meet");
    }
  }
}

void check_machines(const AccelerateDraft& draft) {
  const bool several = draft.num_machines > 1 || (draft.rank_slot && draft.num_processes > 1);
  if (draft.program_launcher == ProgramLauncher::ranks) {
    several ? check_address_of_ranks(draft) : check_machine_rank(draft);
  } else if (several && draft.program_launcher != ProgramLauncher::deepspeed) {
    check_address_of_one_process(draft);
  }
}

}  // namespace

void count_workers(AccelerateDraft& draft) {
  draft.num_machines = static_cast<int>(draft.settings.integer("num_machines"_key));
  const bool ignores_rank = draft.num_machines == 1 && !draft.policy.checks_counts;
  draft.plan.machine_rank =
      ignores_rank ? 0 : static_cast<int>(draft.settings.integer("machine_rank"_key));
  read_port(draft);
  read_num_processes(draft);
  choose_program_launcher(draft);
  Faults faults;
  faults.collect([&] { check_machines(draft); });
  faults.collect([&] { split_processes(draft); });
  faults.raise();
}

}  // namespace acc::launcher
