// Planner of `acclaunch launch`. `find_faults` runs the stages of stages.hpp. A stage that fails
// adds its fault to the draft; stages that depend on its result are skipped, the others still run,
// so that one run reports as many faults as possible. Only a plan without faults gets an
// environment.
#include "acc/launcher/default_config.hpp"
#include "accelerate_cli/front_end.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher {
namespace {

namespace fs = std::filesystem;
using plugins::Source;

/// Loads the file that --config_file names, else Accelerate's default file if it exists. Accelerate
/// does not read the default file with --cpu.
std::optional<plugins::Document> load_config(const Flags& flags,
                                             const plugins::Environment& environment) {
  if (const Flags::Value* named = flags.find("config_file"_key)) {
    return plugins::load_document(named->text);
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
  return plugins::load_document(path);
}

/// Enters the role of this launcher in the plan.
void apply(JobRole&& role, LaunchPlan& plan) {
  plan.manager = std::move(role.manager);
  plan.is_controlled = role.is_controlled;
  plan.start = std::move(role.start);
  if (!role.run_id.empty()) {
    plan.rendezvous.run_id = std::move(role.run_id);
  }
}

/// Enters the workers in the plan.
void apply(const Workers& workers, const StartedWorkers& started, LaunchPlan& plan) {
  plan.layout.num_machines = started.num_machines;
  plan.layout.machine_rank = started.machine_rank;
  plan.layout.num_processes = started.num_processes;
  plan.layout.local_world_size = started.local_world_size;
  plan.layout.rank_slot = started.rank_slot;
  plan.rendezvous.port = workers.main.port;
  plan.rendezvous.port_was_given = workers.main.port_was_given;
  if (workers.launcher != ProgramLauncher::ranks) {
    plan.identity = Identity::none;
    plan.rendezvous.backend = RendezvousPlan::Backend::none;
  } else if (workers.num_machines > 1 || started.rank_slot) {
    plan.rendezvous.address = workers.main.host;
  }
}

/// Runs the stages up to the command line, enters their results in the plan, and throws Error with
/// every fault found.
Workers find_faults(AccelerateDraft& draft) {
  read_values(draft);
  JobRole role;
  if (!draft.faults.collect([&] { role = take_job_environment(draft); })) {
    draft.faults.raise();  // all further stages need the number of machines
  }
  const bool runs_here = !role.start;
  const bool lacks_type = draft.config && draft.file.distributed_type.empty();
  const bool has_mode = draft.faults.collect([&] {
    draft.plan.mode = choose_mode(draft);
    check_mode(draft, draft.plan.mode);
  }) && (draft.plan.mode != Mode::plain || !lacks_type);
  Workers workers;
  StartedWorkers started;
  const bool placed = draft.faults.collect([&] {
    workers = count_workers(draft, role, draft.plan.mode);
    draft.plan.mode = workers.mode;
    started = split_workers(draft, role, workers);
    apply(workers, started, draft.plan);
  });
  apply(std::move(role), draft.plan);
  if (has_mode && placed && runs_here) {
    if (draft.faults.collect([&] { choose_device(draft, workers, started); })) {
      draft.faults.collect([&] { bind_workers(draft); });
    }
    draft.faults.collect([&] { read_rendezvous(draft); });
  }
  if (has_mode && draft.settings.has("num_processes"_key)) {
    draft.faults.collect([&] { read_sharding(draft, workers.num_processes); });
  }
  if (has_mode && placed) {
    check_as_accelerate(draft);
  }
  if (!draft.flags.faults.any() && runs_here) {  // with a bad flag, PROGRAM may be misread
    draft.faults.collect([&] { choose_command(draft, workers); });
  }
  draft.faults.raise();
  return workers;
}

/// Adds a notice that lists defaults, as `accelerate launch` warns: without a file those of four
/// main settings, and the number of threads if it was computed.
void say_defaults(AccelerateDraft& draft, const Workers& workers) {
  std::string filled;
  const auto add = [&](plugins::SettingKey key) {
    const Source::Kind kind = draft.settings.source(key).kind;
    if (kind == Source::Kind::default_value || kind == Source::Kind::derived) {
      filled += (filled.empty() ? "--" : ", --") + key.text() + " " + draft.settings.text(key);
    }
  };
  if (!draft.config) {
    for (const plugins::SettingKey key :
         {"num_processes"_key, "num_machines"_key, "mixed_precision"_key, "dynamo_backend"_key}) {
      add(key);
    }
  }
  if (const int threads = omp_threads(draft, workers);
      threads > 0 && divides_cores(draft, workers)) {
    filled += (filled.empty() ? "" : ", ") + std::string("--num_cpu_threads_per_process ") +
              std::to_string(threads);
  }
  if (!filled.empty()) {
    draft.notice("defaults used: " + filled);
  }
}

}  // namespace

AccelerateDraft::AccelerateDraft(const Flags& given_flags, const plugins::Environment& parent,
                                 const HostFacts& host)
    : Draft(given_flags, parent, host, accelerate_table()),
      policy(compat_policy_of(given_flags, parent)),
      config(load_config(given_flags, parent)) {}

std::string AccelerateDraft::origin() const {
  return std::string(origin_of(plan.mode));
}

std::string AccelerateDraft::place(plugins::SettingKey key) const {
  const Source& source = settings.source(key);
  switch (source.kind) {
    case Source::Kind::flag:
    case Source::Kind::environment: return source.where;
    case Source::Kind::file:
    case Source::Kind::deepspeed_file: return source.where + ": " + key.text();
    default: return key.text();
  }
}

std::filesystem::path default_config_path(const plugins::Environment& environment) {
  const std::string home = value_of(environment, variables::home, "/");
  const std::string cache = value_of(environment, variables::xdg_cache_home, home + "/.cache");
  const fs::path base = value_of(environment, variables::hf_home, cache + "/huggingface");
  return base / "accelerate" / "default_config.yaml";
}

LaunchPlan plan_accelerate(const Flags& flags, const plugins::Environment& environment,
                           const HostFacts& facts) {
  AccelerateDraft draft(flags, environment, facts);
  draft.plan.working_directory = facts.working_directory.string();
  draft.plan.supervision.keeps_exit_status = draft.policy.keeps_exit_status;
  const Workers workers = find_faults(draft);
  if (draft.plan.start) {
    return finished(std::move(draft));
  }
  say_defaults(draft, workers);
  build_environment(draft, workers);
  plan_deepspeed_environment(draft, workers);
  if (draft.settings.boolean("quiet"_key)) {
    draft.plan.notices.clear();
  }
  return finished(std::move(draft));
}

}  // namespace acc::launcher
