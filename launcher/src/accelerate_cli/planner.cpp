// SPDX-License-Identifier: Apache-2.0
// Planner of `acclaunch launch`. It runs the stages of stages.hpp and builds the plan from their
// results. A stage that fails adds its fault to the draft; stages that depend on its result are
// skipped, the others still run, so that one run reports as many faults as possible. Only a plan
// without faults gets an environment.
#include "acc/launcher/front_end.hpp"
#include "acc/launcher/host_facts.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/own_variables.hpp"
#include "plan/draft.hpp"
#include "plan/inherited_settings.hpp"

#include <array>

namespace acc::launcher {
std::filesystem::path default_config_path(const settings::Environment& environment) {
  const std::string home = host::value_of(environment, host::variables.home, "/");
  const std::string cache =
      host::value_of(environment, host::variables.xdg_cache_home, home + "/.cache");
  const std::filesystem::path base =
      host::value_of(environment, host::variables.hf_home, cache + "/huggingface");
  return base / "accelerate" / "default_config.yaml";
}

}  // namespace acc::launcher

namespace acc::launcher::accelerate_cli {
namespace {

namespace fs = std::filesystem;
using settings::Source;

/// Loads the file that --config_file names, else Accelerate's default file if it exists. Accelerate
/// does not read the default file with --cpu.
std::optional<documents::Document> load_config(const Flags& flags,
                                               const settings::Environment& environment) {
  if (const Flags::Value* named = flags.find("config_file"_key)) {
    return documents::load_document(named->text);
  }
  if (flags.find("use_cpu"_key) != nullptr &&
      !compat_policy_of(flags, environment).cpu_is_a_device) {
    return std::nullopt;
  }
  const fs::path path = default_config_path(environment);
  std::error_code error;
  if (!fs::exists(path, error)) {
    return std::nullopt;
  }
  return documents::load_document(path);
}

/// Adds a notice that lists defaults, as `accelerate launch` warns: without a file those of four
/// main settings, and the number of threads if it was computed.
void notice_defaults(AccelerateDraft& draft, Threads threads) {
  std::string filled;
  const auto add = [&](settings::SettingKey key) {
    const Source::Kind kind = draft.settings.source(key).kind;
    if (kind == Source::Kind::default_value || kind == Source::Kind::derived) {
      filled += (filled.empty() ? "--" : ", --") + key.text() + " " + draft.settings.text(key);
    }
  };
  if (!draft.config) {
    for (const settings::SettingKey key :
         {"num_processes"_key, "num_machines"_key, "mixed_precision"_key, "dynamo_backend"_key}) {
      add(key);
    }
  }
  if (threads.is_core_share) {
    filled += (filled.empty() ? "" : ", ") + flag_of(threads);
  }
  if (!filled.empty()) {
    draft.notice("defaults used: " + filled);
  }
}

}  // namespace

AccelerateDraft::AccelerateDraft(const Flags& given_flags, const settings::Environment& parent,
                                 const HostFacts& host)
    : plan::Draft(given_flags, parent, host, accelerate_front_end().table),
      policy(compat_policy_of(given_flags, parent)),
      config(load_config(given_flags, parent)) {}

namespace {

// FrontEnd::plan of `acclaunch launch`. Decides as `accelerate launch` does, except for the
// deviations in docs/compat.md. A value comes from the flags, else the file, else for some
// settings the environment, else the default. Reads only these files: the configuration, the
// program, the DeepSpeed JSON file, and the tools that start the program (mpirun, deepspeed). Runs
// nvidia-smi if the driver's libraries report no GPU. Throws Error with all faults of command line
// and file (exit status 2), or with that of the program if it is the only one (126, 127).
LaunchPlan plan_accelerate(const Flags& flags, const settings::Environment& environment,
                           const HostFacts& facts) {
  AccelerateDraft draft(flags, environment, facts);
  read_values(draft);
  JobRole role;
  if (!draft.faults.collect([&] { role = take_job_environment(draft); })) {
    draft.faults.raise();  // all further stages need the number of machines
  }
  const bool runs_here = !role.start;
  const bool lacks_type = draft.config && draft.file.distributed_type.empty();
  Workers workers;
  const bool has_mode = draft.faults.collect([&] {
    workers.mode = choose_mode(draft);
    check_mode(draft, workers.mode);
  }) && (workers.mode != Mode::plain || !lacks_type);
  RankLayout layout;
  const bool placed = draft.faults.collect([&] {
    workers = count_workers(draft, role, workers.mode);
    layout = split_workers(draft, role, workers);
  });
  RendezvousPlan rendezvous = meeting_point(role, workers, layout);
  DeviceChoice device;
  Binding binding;
  SupervisionPlan supervision;
  bool virtual_local_rank = false;
  OutputPlan output;
  if (has_mode && placed && runs_here) {
    if (draft.faults.collect([&] { device = choose_device(draft, workers, layout); })) {
      binding = draft.result_of([&] { return choose_cores(draft, device, layout); });
    }
    if (draft.faults.collect(
            [&] { rendezvous = read_rendezvous(draft, workers, layout, rendezvous); })) {
      supervision = draft.result_of([&] { return read_ending(draft, rendezvous); });
      virtual_local_rank = draft.result_of(
          [&] { return read_virtual_local_rank(draft, rendezvous, device, layout); });
      draft.faults.collect(
          [&] { plan::read_rendezvous_conf(draft, layout.num_machines, rendezvous); });
      output = draft.result_of([&] { return read_worker_output(draft, rendezvous, layout); });
    }
    if (rendezvous.min_machines < layout.num_machines) {
      layout.num_processes.reset();  // each machine that takes part brings its workers
    }
  } else if (has_mode && placed) {  // waits for the launchers that it starts while they end
    supervision = draft.result_of([&] { return read_ending(draft, rendezvous); });
  }
  settings::ShardingSettings sharding;
  if (has_mode && draft.settings.has("num_processes"_key)) {
    sharding = draft.result_of([&] { return read_sharding(draft, workers, layout); });
  }
  if (has_mode && placed) {
    check_as_accelerate(draft, workers.mode);
  }
  std::vector<std::string> command;
  PreloadPlan preload;
  if (!flags.faults.any() && runs_here) {  // with a bad flag, PROGRAM may be misread
    command =
        draft.result_of([&] { return choose_command(draft, workers, device.device, sharding); });
    preload = draft.result_of([&] { return choose_preload(draft, workers, command); });
  }
  draft.faults.raise();

  WorkerVariables variables;
  std::optional<AppendedFile> appended_file;
  if (runs_here) {
    const Threads threads = choose_threads(draft, workers, layout, device.device, binding);
    notice_defaults(draft, threads);
    variables = {build_environment(draft, workers, device, threads), plan::names_of_settings()};
    plan::load_package(draft, variables);
    appended_file = plan_deepspeed_environment(draft, workers, variables);
  }
  supervision.keeps_exit_status = draft.policy.keeps_exit_status;
  const bool is_ranks = workers.launcher == ProgramLauncher::ranks;
  // A single process has a log folder only to be watched; mpirun's and deepspeed's ranks have none.
  const bool is_watched_alone =
      workers.launcher == ProgramLauncher::one_process && draft.settings.has("status_port"_key);
  return plan::finished(std::move(draft),
                        {.command = std::move(command),
                         .preload = std::move(preload),
                         .mode = workers.mode,
                         .identity = is_ranks ? Identity::torchrun : Identity::none,
                         .device = device.device,
                         .sharding = sharding,
                         .binding = std::move(binding),
                         .layout = std::move(layout),
                         .rendezvous = std::move(rendezvous),
                         .supervision = std::move(supervision),
                         .output = std::move(output),
                         .manager = std::move(role.manager),
                         .start = std::move(role.start),
                         .is_controlled = role.is_controlled,
                         .has_records = is_ranks || is_watched_alone,
                         .virtual_local_rank = virtual_local_rank,
                         .variables = std::move(variables),
                         .appended_file = std::move(appended_file)});
}

}  // namespace

}  // namespace acc::launcher::accelerate_cli

namespace acc::launcher {
namespace {

constexpr std::string_view kUsage =
    "acclaunch starts the workers of a distributed training program and ends them together.\n\n"
    "  acclaunch [launch] [flags] PROGRAM [arguments of the program]\n"
    "  acclaunch torchrun [flags] PROGRAM ...    with torchrun's flags\n"
    "  acclaunch deepspeed [flags] PROGRAM ...   with DeepSpeed's flags\n"
    "  acclaunch test [flags]                    runs a built-in program that tests the launch\n"
    "  acclaunch doctor [flags]                  checks the job's machines and their network\n"
    "  acclaunch explain [launch|torchrun|deepspeed] [flags] PROGRAM\n"
    "                                            prints every setting, its value and its "
    "source\n\n"
    "Flags come before PROGRAM and may be spelled with - or _. They override the file that\n"
    "--config_file names.\n";

constexpr std::array kRefused = {
    settings::RefusedFlag{"tpu*", "TPUs are not supported"},
    settings::RefusedFlag{"no_tpu_cluster", "TPUs are not supported"},
    settings::RefusedFlag{"vm", "TPUs are not supported"},
    settings::RefusedFlag{"env", "TPUs are not supported"},
    settings::RefusedFlag{"main_training_function", "TPUs are not supported"},
    settings::RefusedFlag{"use_megatron_lm", "Megatron-LM is not supported"},
    settings::RefusedFlag{"megatron_lm_*", "Megatron-LM is not supported"},
    settings::RefusedFlag{"aws_*", "SageMaker is not supported"},
};

}  // namespace

const FrontEnd& accelerate_front_end() noexcept {
  static const auto kTable = [] {
    const auto shared = settings::settings_table();
    std::vector<settings::SettingRow> rows(shared.begin(), shared.end());
    rows.insert(rows.end(), flag_rows::kStart.begin(), flag_rows::kStart.end());
    return plan::with_common_rows(rows);
  }();
  static const FrontEnd kFrontEnd{
      {.table = kTable, .refused = kRefused}, "launch", kUsage, accelerate_cli::plan_accelerate};
  return kFrontEnd;
}

}  // namespace acc::launcher
