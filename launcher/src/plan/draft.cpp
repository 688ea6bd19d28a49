// SPDX-License-Identifier: Apache-2.0
#include "plan/draft.hpp"

#include "acc/base/log.hpp"
#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "acc/settings/strategy.hpp"
#include "host/own_variables.hpp"
#include "plan/rendezvous_values.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>

namespace acc::launcher::plan {

using settings::SettingRow;
using settings::Source;

void Draft::notice(std::string line) {
  if (!line.empty()) {
    notices.push_back(std::move(line));
  }
}

void Draft::notice_all(const std::vector<std::string>& lines) {
  notices.insert(notices.end(), lines.begin(), lines.end());
}

Sourced<std::string> Draft::given(settings::SettingKey key) const {
  const std::string& where = settings.source(key).where;
  return {settings.text(key), where.empty() ? "--" + key.text() : where};
}

bool Draft::knows(settings::SettingKey key) const {
  return settings::find_setting(key.name(), settings.table()) != nullptr;
}

std::string Draft::place(settings::SettingKey key) const {
  const Source& source = settings.source(key);
  switch (source.kind) {
    case Source::Kind::flag:
    case Source::Kind::environment: return source.where;
    case Source::Kind::file:
    case Source::Kind::deepspeed_file: return source.where + ": " + key.text();
    default: return key.text();
  }
}

std::vector<SettingRow> with_common_rows(std::span<const SettingRow> rows) {
  std::vector<SettingRow> all(rows.begin(), rows.end());
  const auto add = [&](const SettingRow& row) {
    if (settings::find_setting(row.key, rows) == nullptr) {
      all.push_back(row);
    }
  };
  std::ranges::for_each(flag_rows::kCommon, add);
  for (const settings::SettingKey key : settings::kOfEveryFrontEnd) {
    add(*settings::find_setting(key.name()));
  }
  return all;
}

void read_flags(Draft& draft) {
  for (const Flags::Value& value : draft.flags.values) {
    draft.faults.collect([&] {
      draft.settings.set_named(value.key, value.text, {Source::Kind::flag, value.written});
    });
  }
  read_engine(draft);
}

void read_engine(Draft& draft) {
  draft.faults.collect(
      [&] { read_variable(draft, "engine"_key, std::string(host::variables.engine.name)); });
}

void read_variable(Draft& draft, settings::SettingKey key, const std::string& name) {
  const std::string text = settings::variable(draft.environment, name);
  if (!text.empty() && !draft.settings.given(key)) {
    draft.settings.set(key, text, {Source::Kind::environment, name});
  }
}

namespace {

/// Parses --stdin: a rank, or empty for `none`.
std::optional<int> stdin_rank(const Sourced<std::string>& given) {
  const auto rank = read_number(given.value);
  if (given.value != "none" && (given.value.empty() || !rank)) {
    throw bad_value(given, "a rank, from 0, or none");
  }
  return rank;
}

}  // namespace

SupervisionPlan read_supervision(Draft& draft, bool is_torchrun) {
  if (is_torchrun) {
    draft.faults.collect(
        [&] { read_variable(draft, "shutdown_timeout"_key, "PET_SHUTDOWN_TIMEOUT"); });
  }
  for (const SettingRow& row : draft.settings.table()) {
    if (!row.variable.empty()) {
      read_variable(draft, row, std::string(row.variable));
    }
  }
  const auto seconds = [&](settings::SettingKey key) {
    return std::chrono::seconds(draft.settings.integer(key));
  };
  const bool is_elastic = draft.settings.integer("elastic_replicas"_key) > 0;
  const bool has_restarts = draft.knows("max_restarts"_key);
  return {.max_restarts =
              has_restarts ? static_cast<int>(draft.settings.integer("max_restarts"_key)) : 0,
          .rejoins = is_elastic || draft.settings.boolean("rejoin"_key),
          .elastic_replicas = is_elastic,
          .restart_backoff = seconds("restart_backoff"_key),
          .time_limit = seconds("timeout"_key),
          .shutdown_timeout = seconds("shutdown_timeout"_key),
          .stuck_timeout = seconds("stuck_timeout"_key),
          .stdin_rank = stdin_rank(draft.given("stdin"_key))};
}

void read_rendezvous_conf(Draft& draft, int num_machines, RendezvousPlan& rendezvous) {
  const auto notices = read_rendezvous_conf(draft.given("rdzv_conf"_key), rendezvous);
  rendezvous.etcd_files = rendezvous::complete_etcd_files(
      rendezvous.etcd_files,
      [&](const std::string& name) { return settings::variable(draft.environment, name); });
  if (num_machines > 1) {
    draft.notice_all(notices);
  }
}

int read_node_rank(const Draft& draft, int num_machines) {
  const auto node_rank = static_cast<int>(draft.settings.integer("node_rank"_key));
  if (node_rank >= num_machines) {
    const Sourced<std::string> rank = draft.given("node_rank"_key);
    throw Error(Errc::config, rank.where + " " + rank.value +
                                  " must be below the number of machines, " +
                                  std::to_string(num_machines));
  }
  return node_rank;
}

void check_port_is_known(std::uint16_t port, int num_machines, const Sourced<std::string>& given) {
  if (num_machines > 1 && port == 0) {
    throw Error(Errc::config, given.where + " " + given.value +
                                  " lets machine 0 choose the port, which the other machines "
                                  "cannot know; set a port");
  }
}

std::string signal_word(int signal) {
  const char* word = ::sigabbrev_np(signal);
  return word == nullptr ? std::to_string(signal) : "SIG" + std::string(word);
}

std::vector<int> read_signals(const Sourced<std::string>& given) {
  std::vector<int> signals;
  for (const std::string_view entry : entries_of(given.value)) {
    const std::string_view word = trimmed(entry);
    int signal = 1;
    while (signal < NSIG && word != signal_word(signal)) {
      ++signal;
    }
    if (signal == NSIG || signal == SIGKILL || signal == SIGSTOP || signal == SIGCHLD) {
      throw bad_value(given, "signals that a process can handle, as in SIGTERM,SIGUSR1");
    }
    signals.push_back(signal);
  }
  return signals;
}

std::optional<StatusEndpoint> status_endpoint(const settings::Settings& settings) {
  const std::string& text = settings.text("status_port"_key);
  if (text.empty()) {
    return std::nullopt;
  }
  StatusEndpoint endpoint;
  const auto colon = text.rfind(':');
  const auto port = read_number(colon == std::string::npos ? text : text.substr(colon + 1));
  if (!port || *port > UINT16_MAX || colon == 0) {
    throw bad_value({text, settings.source("status_port"_key).where},
                    "PORT or HOST:PORT, with a port of 0 to 65535");
  }
  endpoint.port = static_cast<std::uint16_t>(*port);
  if (colon != std::string::npos) {
    endpoint.host = without_brackets(text.substr(0, colon));
  }
  return endpoint;
}

OutputPlan read_output(Draft& draft, const std::string& run_id, const RankLayout& layout,
                       const std::optional<Sourced<std::string>>& log_of_each_rank) {
  OutputWords words = {draft.given("redirects"_key), draft.given("tee"_key),
                       draft.given("local_ranks_filter"_key), draft.given("log_dir"_key)};
  if (log_of_each_rank) {
    words = {{"3", ""}, {}, words.local_ranks, *log_of_each_rank};
  }
  const int local_ranks =
      layout.rank_slot ? layout.rank_slot->local_world_size : layout.local_world_size;
  OutputPlan output = plan_output(words, run_id, local_ranks, draft.facts.working_directory,
                                  draft.facts.scratch_directory);
  output.line_prefix = draft.settings.text("log_line_prefix_template"_key);
  if (output.line_prefix.find('\n') != std::string::npos) {
    throw bad_value(draft.given("log_line_prefix_template"_key), "one line");
  }
  output.stdout_filters = read_filters(draft.settings.text("duplicate_stdout_filters"_key));
  output.stderr_filters = read_filters(draft.settings.text("duplicate_stderr_filters"_key));
  output.folds_lines = draft.settings.boolean("fold_lines"_key);
  output.trace_directory = named_folder(draft.given("trace"_key), draft.facts.working_directory);
  output.data_record = named_folder(draft.given("data_record"_key), draft.facts.working_directory);
  status_endpoint(draft.settings);  // throws for a wrong one
  output.status_line = !draft.settings.boolean("no_status_line"_key);
  if (!output.to_file.empty() && words.log_dir.value.empty()) {
    draft.notice("the workers' files are in " + output.directory);
  }
  return output;
}

Binding bind_workers(Draft& draft, NumaBinding policy, int local_world_size,
                     const std::vector<int>& gpus, const HostFacts& facts) {
  Placements placements = place_workers(local_world_size, gpus, policy, facts);
  draft.notice_all(placements.notices);
  return {policy, std::move(placements.workers)};
}

bool shares_gpus(const settings::Environment& environment) {
  return settings::parse_boolean(host::value_of(environment, host::variables.share_gpus, "0"))
      .value_or(false);
}

void check_own_gpus(const std::string& where, int local_world_size,
                    const settings::Environment& environment) {
  const std::string list = host::value_of(environment, host::variables.cuda_visible_devices);
  const auto entries = static_cast<int>(split(list, ',').size());
  if (!list.empty() && entries < local_world_size) {
    throw Error(Errc::config, where + " needs a GPU for each of " +
                                  std::to_string(local_world_size) +
                                  " workers, but CUDA_VISIBLE_DEVICES is \"" + list + "\"");
  }
}

namespace {

/// True for a name such as `torch.nn`. Bytes above 127 belong to letters of other scripts.
bool names_module(std::string_view text) {
  return std::ranges::all_of(split(text, '.'), [](std::string_view word) {
    const auto is_part = [](unsigned char byte) {
      return byte == '_' || byte > 127 || (byte >= '0' && byte <= '9') ||
             ((byte | 0x20) >= 'a' && (byte | 0x20) <= 'z');
    };
    return !word.empty() && !(word.front() >= '0' && word.front() <= '9') &&
           std::ranges::all_of(word, is_part);
  });
}

/// Checks how the launcher and its workers log, and passes the flags on to the workers. The words
/// themselves have been applied before planning began.
void read_log(Draft& draft, WorkerVariables& workers) {
  const auto is_flag = [&](settings::SettingKey key) {
    return draft.settings.source(key).kind == Source::Kind::flag;
  };
  for (const settings::SettingKey key : {"log_format"_key, "log_level"_key}) {
    if (is_flag(key)) {
      const SettingRow& row = *settings::find_setting(key.name(), draft.settings.table());
      workers.set[std::string(row.variable)] = draft.settings.choice(key);
    }
  }
  if (is_flag("log_level"_key)) {
    workers.removed.insert(std::string(host::variables.log.name));
  } else {
    const std::string components = host::value_of(draft.environment, host::variables.log);
    read_log_settings({.format = {},
                       .level = {},
                       .components = {components, std::string(host::variables.log.name)}});
  }
}

/// Throws Error if torch will not find or not load the package acclaunch. `asks`: the setting that
/// needs it, with its value.
void check_package(const Draft& draft, const std::string& asks, const WorkerVariables& workers) {
  if (draft.facts.python_packages.empty()) {
    const auto prefix = draft.facts.executable_directory.parent_path();
    throw Error(Errc::not_found, asks + ": the Python package acclaunch is neither in " +
                                     (prefix / "python").string() + " nor in " +
                                     (prefix / "share/acclaunch/python").string());
  }
  const host::OwnVariable& autoload = host::variables.torch_autoload;
  if (host::value_of(workers.set, autoload, host::value_of(draft.environment, autoload)) == "0") {
    throw Error(Errc::config, asks + " needs torch to load the entry points of packages, and " +
                                  std::string(autoload.name) + " is 0");
  }
}

}  // namespace

// Torch finds the entry point of the package in PYTHONPATH, and the settings' variables tell it
// what to replace: gloo (docs/c10d.md), torch's engine, or the order of Accelerate's loaders
// (docs/data.md); a recording needs it too. The engine's variable follows the setting, and not what
// the launcher inherited.
void load_package(Draft& draft, WorkerVariables& workers) {
  const std::string engine(host::variables.engine.name);
  const std::string of_worker = host::value_of(workers.set, host::variables.engine);
  if (!of_worker.empty() && draft.settings.source("engine"_key).kind != Source::Kind::flag) {
    draft.settings.set("engine"_key, of_worker, {Source::Kind::environment, engine});
  }
  workers.set.erase(engine);
  workers.removed.insert(engine);
  const std::array choices = {std::pair{"cpu_backend"_key, std::string("ACC_CPU_BACKEND")},
                              std::pair{"engine"_key, engine},
                              std::pair{"data_order"_key, std::string(kDataOrderVariable)}};
  // A program without Python records by libacc_runtime alone.
  const std::string& packages = draft.facts.python_packages.string();
  bool loads =
      !packages.empty() && !host::value_of(draft.environment, host::variables.record).empty();
  for (const auto& [key, variable] : choices) {
    if (draft.settings.choice(key) == "acc") {
      check_package(draft, draft.place(key) + " acc", workers);
      workers.set[variable] = "acc";
      loads = true;
    }
  }
  if (loads) {
    const std::string name(host::variables.python_path.name);
    const std::string inherited = host::value_of(draft.environment, host::variables.python_path);
    std::string& path = workers.set.try_emplace(name, inherited).first->second;
    path = packages + (path.empty() ? "" : ":" + path);
  }
}

ProgramKind read_program_kind(const Draft& draft) {
  return {.module = draft.settings.boolean("module"_key),
          .no_python = draft.settings.boolean("no_python"_key)};
}

PreloadPlan read_preload(const Draft& draft, ProgramKind kind,
                         const std::vector<std::string>& command) {
  const Sourced<std::string> given = draft.given("preload"_key);
  if (given.value.empty() || command.empty()) {
    return {};
  }
  for (const std::string_view name : split(given.value, ',')) {
    if (!names_module(name) || given.value.ends_with(',')) {
      throw bad_value(given, "names of Python modules joined by commas, without spaces");
    }
  }
  if (!is_for_python(draft.flags.program, kind, draft.facts)) {
    throw Error(Errc::config, given.where + " " + given.value + " is for Python programs, and " +
                                  draft.flags.program + " does not run under Python" +
                                  (kind.no_python ? " because of --no_python" : ""));
  }
  return {given.value, {command.begin(), command.begin() + (kind.unbuffered ? 2 : 1)}};
}

// From here on addresses have no brackets: these were needed only to separate an IPv6 address from
// a port.
namespace {

/// Refuses --rejoin where it is not possible yet, or would have no effect.
void check_rejoin(const Draft& draft, const LaunchPlan& plan) {
  if (!plan.supervision.rejoins) {
    return;
  }
  const bool is_elastic = plan.supervision.elastic_replicas;
  const char* const why =
      plan.supervision.max_restarts == 0 && !is_elastic && draft.settings.integer("spares"_key) == 0
          ? "needs a job with restarts, or --spares"
      : plan.layout.num_machines == 1 && plan.layout.local_world_size == 1 ? "needs several workers"
      : plan.identity == Identity::none       ? "needs workers that this launcher starts"
      : plan.device == settings::Device::cuda ? "works on the CPU only in this version"
                                              : nullptr;
  if (why != nullptr) {
    throw Error(Errc::not_supported,
                fmt::format("--{} {}", is_elastic ? "elastic_replicas" : "rejoin", why));
  }
}

/// Refuses --elastic_replicas where a machine cannot leave and come back, and sets the smallest
/// number of machines.
void read_elastic_replicas(const Draft& draft, LaunchPlan& plan) {
  if (!plan.supervision.elastic_replicas) {
    return;
  }
  const Sourced<std::string> given = draft.given("elastic_replicas"_key);
  const auto least = static_cast<int>(draft.settings.integer("elastic_replicas"_key));
  const int most = plan.layout.num_machines;
  int& min_machines = plan.rendezvous.min_machines;
  const char* const why =
      plan.rendezvous.backend != RendezvousPlan::Backend::c10d
          ? "needs a rendezvous of kind c10d and several machines"
      : plan.rendezvous.machine_rank_was_given ? "needs machines of which none is bound to a rank"
      : plan.layout.rank_slot                  ? "needs one launcher for each machine"
      : !settings::has_whole_copies(plan.sharding.strategy)
          ? "needs NO_SHARD or HYBRID_SHARD: otherwise a machine has state that no other one has"
      : !plan.output.trace_directory.empty() ? "does not work with --trace in this version"
                                             : nullptr;
  if (why != nullptr) {
    throw Error(Errc::not_supported, fmt::format("{} {}", given.where, why));
  }
  if (least >= most) {
    throw bad_value(given, fmt::format("below the number of machines, {}", most));
  }
  if (min_machines != most && min_machines != least) {
    throw Error(Errc::config, fmt::format("{} is {}, but the job may start with {} machines: give "
                                          "both the same number, or leave the second one out",
                                          given.where, least, min_machines));
  }
  min_machines = least;
  plan.layout.num_processes.reset();  // each machine that takes part brings its workers
}

/// Refuses --spares where a machine cannot take the place of another.
void check_spares(const Draft& draft, const LaunchPlan& plan) {
  if (draft.settings.integer("spares"_key) > 0 &&
      (plan.rendezvous.backend != RendezvousPlan::Backend::c10d || plan.layout.num_machines == 1 ||
       plan.rendezvous.machine_rank_was_given)) {
    throw Error(Errc::config,
                draft.given("spares"_key).where +
                    " needs a rendezvous of kind c10d and several machines, of which none is "
                    "bound to a rank");
  }
}

}  // namespace

LaunchPlan finished(Draft&& draft, LaunchPlan plan) {
  check_rejoin(draft, plan);
  read_elastic_replicas(draft, plan);
  check_spares(draft, plan);
  const std::optional<int> num_processes = plan.layout.num_processes;
  if (num_processes && plan.supervision.stdin_rank >= num_processes) {
    throw bad_value(draft.given("stdin"_key),
                    "below the number of processes, " + std::to_string(*num_processes));
  }
  for (std::string* address : {&plan.rendezvous.address, &plan.rendezvous.local_address}) {
    *address = without_brackets(*address);
  }
  if (draft.knows("role"_key)) {
    plan.role = draft.settings.text("role"_key);
  }
  plan.is_quiet = draft.knows("quiet"_key) && draft.settings.boolean("quiet"_key);
  read_log(draft, plan.variables);
  plan.working_directory = draft.facts.working_directory.string();
  plan.gpus = draft.facts.gpu;
  plan.settings = std::move(draft.settings);
  if (!plan.is_quiet) {
    plan.notices = std::move(draft.notices);
  }
  return plan;
}

}  // namespace acc::launcher::plan
