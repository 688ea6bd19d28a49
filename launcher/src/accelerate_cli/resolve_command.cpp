// SPDX-License-Identifier: Apache-2.0
// Stage `choose_command`: the command line of the workers, or of the tool that starts them (mpirun,
// deepspeed). Also the checks that need the program's Python.
#include "acc/settings/fsdp_plugin.hpp"
#include "accelerate_cli/commands_of_others.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/command_output.hpp"
#include "host/own_variables.hpp"
#include "plan/program_command.hpp"

namespace acc::launcher::accelerate_cli {
namespace {

plan::ProgramKind program_kind(const AccelerateDraft& draft, const Workers& workers) {
  plan::ProgramKind kind = plan::read_program_kind(draft);
  kind.only_binaries_without_python = !draft.policy.starts_executables;
  kind.unbuffered = workers.launcher == ProgramLauncher::ranks;
  return kind;
}

std::vector<std::string> program(const AccelerateDraft& draft, const Workers& workers) {
  return plan::program_command(draft.flags, program_kind(draft, workers), draft.environment,
                               draft.facts);
}

/// Adds a notice if a Python program that uses Accelerate will train full replicas on the CPU, or
/// is rejected, though it is to shard. Accelerate 1.15 supports FSDP on accelerators only
/// (state.py: AcceleratorState), and its FSDP 1 plugin raises an error if it has to synchronise
/// weights (utils/dataclasses.py). It uses DeepSpeed on the CPU too, but not with --cpu; its own
/// number of processes is then 1 (PartialState), unless the program asks for the CPU. Python
/// programs without Accelerate may shard on the CPU, so this is no fault.
void notice_accelerate_on_cpu(AccelerateDraft& draft, const Workers& workers,
                              const settings::ShardingSettings& sharding) {
  const bool shards = workers.mode == Mode::fsdp || workers.mode == Mode::deepspeed;
  if (!shards || !draft.policy.cpu_is_a_device ||
      !plan::is_for_python(draft.flags.program, program_kind(draft, workers), draft.facts)) {
    return;
  }
  if (workers.mode == Mode::deepspeed && draft.cpu_flag()) {
    draft.notice(
        "with --cpu Accelerate does not use DeepSpeed: a program that uses it trains full replicas "
        "(MULTI_CPU); without --cpu it uses DeepSpeed, also on the CPU");
    return;
  }
  if (workers.mode == Mode::deepspeed) {
    if (workers.num_processes > 1) {
      draft.notice(
          "on the CPU Accelerate counts each worker of DeepSpeed as the only process, which reads "
          "all data, except in a Trainer with use_cpu");
    }
    return;
  }
  const bool stops = settings::is_fsdp1(draft.settings) && sharding.sync_module_states;
  draft.notice(std::string("Accelerate does not support FSDP on the CPU: a program that uses "
                           "Accelerate ") +
               (stops ? "is rejected by its FSDP 1 plugin, which needs a GPU for "
                        "fsdp_sync_module_states; with --fsdp_version 2 it trains full replicas"
                      : "trains full replicas (MULTI_CPU)"));
}

/// True if the program's Python has a library for fp8. Uses Accelerate's test (utils/imports.py:
/// is_fp8_available).
bool has_fp8_library(const AccelerateDraft& draft) {
  constexpr std::string_view kProbe =
      "import importlib.metadata as m, importlib.util as u\n"
      "names = {d.metadata['Name'].lower() for d in m.distributions() if d.metadata['Name']}\n"
      "pairs = [('msamp', 'msamp'), ('transformer_engine', 'transformer-engine'),"
      " ('torchao', 'torchao')]\n"
      "print(any(u.find_spec(a) and b in names for a, b in pairs))";
  const std::string python = plan::find_python(draft.environment, draft.facts);
  return host::command_output({python, "-c", std::string(kProbe)}).value_or("").starts_with("True");
}

}  // namespace

void check_as_accelerate(AccelerateDraft& draft, Mode mode) {
  if (!draft.arguments) {
    return;
  }
  check_arguments(
      *draft.arguments,
      {.mode = mode,
       .has_config = draft.config.has_value(),
       .threads_are_given = draft.flags.find("num_cpu_threads_per_process"_key) != nullptr,
       .has_fp8_library = [&] { return has_fp8_library(draft); }},
      draft.faults);
}

std::vector<std::string> choose_command(AccelerateDraft& draft, const Workers& workers,
                                        settings::Device device,
                                        const settings::ShardingSettings& sharding) {
  if (device == settings::Device::cpu && draft.keeps_engine()) {
    notice_accelerate_on_cpu(draft, workers, sharding);
  }
  switch (workers.launcher) {
    case ProgramLauncher::ranks:
    case ProgramLauncher::one_process: return program(draft, workers);
    case ProgramLauncher::mpirun: return mpirun_command(draft, workers, program(draft, workers));
    case ProgramLauncher::deepspeed:
      return deepspeed_command(draft, workers, program_kind(draft, workers));
  }
  return {};
}

PreloadPlan choose_preload(const AccelerateDraft& draft, const Workers& workers,
                           const std::vector<std::string>& command) {
  if (draft.settings.has("preload"_key) && (workers.launcher == ProgramLauncher::mpirun ||
                                            workers.launcher == ProgramLauncher::deepspeed)) {
    throw Error(Errc::not_supported,
                draft.place("preload"_key) + ": " +
                    (workers.launcher == ProgramLauncher::mpirun ? "mpirun" : "deepspeed") +
                    " starts the workers, so that acclaunch cannot fork them; remove it");
  }
  return plan::read_preload(draft, program_kind(draft, workers), command);
}

// DeepSpeed's launcher reads .deepspeed_env on this machine and exports its lines on the others. As
// in Accelerate, variables with characters that would break the shell line there are left out.
std::optional<AppendedFile> plan_deepspeed_environment(AccelerateDraft& draft,
                                                       const Workers& workers,
                                                       const WorkerVariables& variables) {
  if (workers.launcher != ProgramLauncher::deepspeed) {
    return std::nullopt;
  }
  settings::Environment whole = draft.environment;
  std::erase_if(whole, [&](const auto& entry) { return variables.removed.contains(entry.first); });
  for (const auto& [name, value] : variables.set) {
    whole[name] = value;
  }
  std::string left_out;
  std::string text;
  for (const auto& [name, value] : whole) {
    if ((name + value).find_first_of(" ;\n<>") != std::string::npos) {
      left_out += (left_out.empty() ? "" : ", ") + name;
    } else if (!value.empty()) {
      text.append(name).append("=").append(value).append("\n");
    }
  }
  const std::string file = host::value_of(
      draft.environment, host::variables.deepspeed_environment_file, ".deepspeed_env");
  if (!left_out.empty()) {
    draft.notice("variables that " + file + " cannot pass to other machines: " + left_out);
  }
  return AppendedFile{(draft.facts.working_directory / file).string(), text};
}

}  // namespace acc::launcher::accelerate_cli
