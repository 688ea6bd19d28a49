// SPDX-License-Identifier: Apache-2.0
// The front ends of `acclaunch test` and `acclaunch doctor`. They plan a launch like `acclaunch
// launch` with the same flags, of the programs acc_self_test and acc_doctor. The doctor reduces the
// job to one worker per machine. The workers meet through the same rendezvous, so that the check
// takes the path of the real job.
#include "acc/base/error.hpp"
#include "acc/launcher/front_end.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

namespace acc::launcher {
namespace {

constexpr std::string_view kSelfTestUsage =
    "acclaunch test starts a small built-in training program, as `acclaunch launch` with the same\n"
    "flags would start yours, and reports what works.\n\n"
    "  acclaunch test [flags]\n";

constexpr std::string_view kDoctorUsage =
    "acclaunch doctor checks the machines of a job and the network between them. Run it on each\n"
    "machine with the flags that would start your job. It checks host names, ports, latency and\n"
    "bandwidth of each pair of machines, clocks, versions, memory and limits. Machine 0 prints\n"
    "the findings and what to do.\n\n"
    "  acclaunch doctor [flags]\n";

/// Shorter than a launch's default, since a user waits: machines that are missing then are a
/// finding.
constexpr std::chrono::seconds kJoinTimeout{120};

constexpr settings::SettingRow kFileRow{
    .key = "doctor_file",
    .alias = "output",
    .flag = settings::Flag::value,
    .in_file = false,
    .help = "file to which machine 0 writes the report as JSON"};
constexpr settings::SettingKey kFileKey = kFileRow;

std::span<const settings::SettingRow> doctor_table() noexcept {
  static const std::vector<settings::SettingRow> kAll = [] {
    const auto launch = accelerate_front_end().table;
    std::vector<settings::SettingRow> rows = {kFileRow};
    rows.insert(rows.end(), launch.begin(), launch.end());
    return rows;
  }();
  return kAll;
}

/// Returns flags that start `program` of this installation.
Flags with_program(Flags flags, const char* command, const char* program, const HostFacts& facts) {
  if (!flags.program.empty()) {
    throw Error(Errc::invalid_argument, fmt::format("{} starts its own program; remove {}, or use "
                                                    "acclaunch launch",
                                                    command, flags.program));
  }
  flags.program = (facts.executable_directory / program).string();
  return flags;
}

LaunchPlan plan_self_test(const Flags& flags, const settings::Environment& environment,
                          const HostFacts& facts) {
  const Flags started = with_program(flags, "acclaunch test", "acc_self_test", facts);
  LaunchPlan launch = accelerate_front_end().plan(started, environment, facts);
  launch.success = "acclaunch test: everything works";
  return launch;
}

/// Returns the arguments of acc_doctor: the output file, and the driver version and GPU names,
/// which only the launcher has queried.
std::vector<std::string> program_arguments(const Flags& flags, const HostFacts& facts) {
  std::vector<std::string> arguments;
  if (const Flags::Value* file = flags.find(kFileKey)) {
    arguments = {"--output", (facts.working_directory / file->text).string()};
  }
  if (!facts.gpu.driver_version.empty()) {
    arguments.insert(arguments.end(), {"--driver", facts.gpu.driver_version});
  }
  for (const Gpu& gpu : facts.gpu.devices) {
    arguments.insert(arguments.end(), {"--gpu", gpu.name});
  }
  return arguments;
}

/// Reduces the plan to one worker per machine, without restarts, input, line prefix or role. A
/// launcher with a rank slot has only one worker already; acc_doctor itself uses the first of each
/// machine.
void start_one_a_machine(LaunchPlan& plan) {
  plan.supervision.max_restarts = 0;
  plan.output.folds_lines = false;
  plan.supervision.stdin_rank.reset();
  plan.role.clear();
  plan.output.line_prefix = "${role_name}";  // empty: only machine 0 prints, a table
  if (plan.layout.rank_slot) {
    return;
  }
  if (plan.layout.num_processes) {
    plan.layout.num_processes = plan.layout.num_machines;
  }
  plan.layout.local_world_size = 1;
  plan.binding.workers.resize(std::min<std::size_t>(plan.binding.workers.size(), 1));
  plan.output.to_file.resize(std::min<std::size_t>(plan.output.to_file.size(), 1));
  plan.output.to_console.resize(std::min<std::size_t>(plan.output.to_console.size(), 1));
}

LaunchPlan plan_doctor(const Flags& flags, const settings::Environment& environment,
                       const HostFacts& facts) {
  Flags started = with_program(flags, "acclaunch doctor", "acc_doctor", facts);
  std::erase_if(started.values, [](const auto& each) { return each.key == kFileKey.name(); });
  started.one_process_a_machine = true;
  started.arguments = program_arguments(flags, facts);
  LaunchPlan launch = accelerate_front_end().plan(started, environment, facts);
  start_one_a_machine(launch);
  launch.explains_failure = true;
  launch.rendezvous.compares_arguments = false;  // they name the driver and the GPUs of the machine
  if (launch.layout.num_machines > 1) {
    if (launch.rendezvous.join_timeout == RendezvousPlan{}.join_timeout) {
      launch.rendezvous.join_timeout = kJoinTimeout;
    }
    launch.unmet_command = launch.command;
    launch.unmet_command.insert(
        launch.unmet_command.end(),
        {"--alone", "--machine_rank", std::to_string(launch.layout.machine_rank), "--meet",
         launch.rendezvous.address + ":" + std::to_string(launch.rendezvous.port)});
  }
  return launch;
}

}  // namespace

const FrontEnd& self_test_front_end() noexcept {
  static const FrontEnd kFrontEnd{accelerate_front_end(), "test", kSelfTestUsage, plan_self_test};
  return kFrontEnd;
}

const FrontEnd& doctor_front_end() noexcept {
  static const FrontEnd kFrontEnd{
      {.table = doctor_table(), .refused = accelerate_front_end().refused},
      "doctor",
      kDoctorUsage,
      plan_doctor};
  return kFrontEnd;
}

}  // namespace acc::launcher
