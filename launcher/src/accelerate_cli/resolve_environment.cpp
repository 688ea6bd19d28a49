// SPDX-License-Identifier: Apache-2.0
// Stage `build_environment`: the variables of the workers. They are those that `accelerate launch`
// would set, so that an unchanged Accelerate program behaves the same, plus acclaunch's ACC_* for
// programs on libacc_runtime. A test compares them with recordings of Accelerate
// (test/data/launch_env).
#include "acc/base/variables.hpp"
#include "accelerate_cli/stages.hpp"
#include "host/command_output.hpp"
#include "host/own_variables.hpp"
#include "plan/program_command.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

namespace acc::launcher::accelerate_cli {
namespace {

using settings::Environment;
using settings::Source;

/// Model names of the GPUs and the driver's version.
struct GpuModels {
  std::vector<std::string> names;
  std::string driver_version;
};

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (const std::string_view line : split(text, '\n')) {
    lines.emplace_back(line);
  }
  return lines;
}

/// Queries nvidia-smi. Used only if the driver's libraries reported no GPU.
GpuModels ask_nvidia_smi(const std::string& tool) {
  const auto query = [&](const std::string& what) {
    return lines_of(
        host::command_output({tool, "--query-gpu=" + what, "--format=csv,noheader"}).value_or(""));
  };
  GpuModels models;
  models.names = query("count,name");
  const auto versions = query("driver_version");
  models.driver_version = versions.empty() ? "" : versions.front();
  return models;
}

/// Parses `550.40.07` to three numbers; missing ones are 0.
std::array<std::int64_t, 3> version_numbers(const std::string& text) {
  std::array<std::int64_t, 3> numbers{};
  std::size_t i = 0;
  for (const std::string_view part : split(text, '.')) {
    if (i < numbers.size()) {
      numbers[i++] = parse_integer(part).value_or(0);
    }
  }
  return numbers;
}

/// True for several RTX 40 cards under a driver older than 550.40.07, where peer-to-peer access
/// does not work. Rule of Accelerate 1.15 (utils/environment.py: check_cuda_p2p_ib_support).
bool lacks_peer_access(const GpuModels& models) {
  constexpr std::array<std::int64_t, 3> kFirstGood = {550, 40, 7};
  const auto is_rtx_40 = [](const std::string& name) {
    return name.find("RTX 40") != std::string::npos;
  };
  return models.names.size() > 1 && std::ranges::any_of(models.names, is_rtx_40) &&
         !models.driver_version.empty() && version_numbers(models.driver_version) < kFirstGood;
}

/// True if the workers need ACCELERATE_USE_CPU. Without this variable Accelerate does not connect
/// workers on the CPU, unless the program asks for the CPU itself, and each of them trains alone.
/// It is set whether the CPU was requested or the machine has no GPU. In DeepSpeed mode it is set
/// for --cpu only: DeepSpeed connects workers on the CPU too, and the variable turns it off.
bool is_connected_on_cpu(const AccelerateDraft& draft, const Workers& workers,
                         settings::Device device) {
  const bool ranks = workers.launcher == ProgramLauncher::ranks;
  const bool of_mpi = workers.launcher == ProgramLauncher::mpirun && workers.num_processes > 1;
  const bool by_deepspeed = workers.mode == Mode::deepspeed && !draft.cpu_flag();
  return draft.policy.cpu_is_a_device && device == settings::Device::cpu && (ranks || of_mpi) &&
         !by_deepspeed;
}

/// Adds the variables of Accelerate's launcher for one process (prepare_simple_launcher_cmd_env).
void add_simple_variables(const AccelerateDraft& draft, const Workers& workers,
                          Environment& environment) {
  environment.emplace(kUseCpuVariable, draft.use_cpu() ? "True" : "False");
  if (settings::parse_boolean(environment.at(kUseCpuVariable)) == true) {
    environment["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    environment["KMP_BLOCKTIME"] = "1";
  }
  if (workers.num_processes > 1 || workers.num_machines > 1) {
    environment["MASTER_ADDR"] = workers.main.host;
    environment["MASTER_PORT"] = std::to_string(workers.main.port);
  }
}

/// Adds CUDA_VISIBLE_DEVICES for gpu_ids, and disables NCCL's peer-to-peer transports for GPUs that
/// lack peer access.
void add_gpu_variables(const AccelerateDraft& draft, Mode mode,
                       const std::vector<std::string>& gpu_ids, Environment& environment) {
  if (!gpu_ids.empty()) {
    environment.emplace("CUDA_VISIBLE_DEVICES", fmt::format("{}", fmt::join(gpu_ids, ",")));
  }
  if (mode == Mode::plain) {
    return;
  }
  GpuModels models;
  models.driver_version = draft.facts.gpu.driver_version;
  for (const Gpu& gpu : draft.facts.gpu.devices) {
    models.names.push_back(gpu.name);
  }
  const auto tool =
      plan::find_in_path("nvidia-smi", draft.environment, draft.facts.working_directory);
  if (models.names.empty() && tool) {
    models = ask_nvidia_smi(tool->string());
  }
  if (lacks_peer_access(models)) {
    for (const std::string name : {"NCCL_P2P_DISABLE", "NCCL_IB_DISABLE"}) {
      if (!draft.environment.contains(name)) {
        environment[name] = "1";
      }
    }
  }
}

/// Returns the value of ACCELERATE_CONFIG_DS_FIELDS: the keys of deepspeed_config in the file, by
/// which Accelerate recognises conflicts with the JSON file.
std::string deepspeed_fields(const AccelerateDraft& draft) {
  std::string fields;
  for (const std::string& field : draft.file.deepspeed_fields) {
    if (field == "mixed_precision" &&
        draft.settings.source("mixed_precision"_key).kind != Source::Kind::file) {
      continue;  // overridden by a flag
    }
    fields += (fields.empty() ? "" : ",") + lower(field);
  }
  return fields;
}

/// Returns PYTHONPATH with the working directory added, as Accelerate does in DeepSpeed mode.
std::string python_path(const AccelerateDraft& draft) {
  std::string path;
  const std::string inherited = host::value_of(draft.environment, host::variables.python_path);
  for (const std::string_view entry : split(inherited, ':')) {
    if (!entry.empty()) {
      path += std::string(entry) + ":";
    }
  }
  return path + draft.facts.working_directory.string();
}

/// Replaces all variables except ACC_* by those that Accelerate sets. For several workers
/// Accelerate also copies every variable to its upper-case name (utils/environment.py:
/// patch_environment).
void replace_by_arguments(const AccelerateDraft& draft, Mode mode, Environment& environment) {
  std::erase_if(environment, [](const auto& entry) { return !entry.first.starts_with("ACC_"); });
  environment.merge(argument_variables(*draft.arguments, mode));
  if (mode == Mode::plain) {
    return;
  }
  for (const auto& [name, value] : draft.environment) {
    if (std::string capitals = upper(name); capitals != name) {
      environment.emplace(std::move(capitals), value);
    }
  }
}

}  // namespace

Environment build_environment(const AccelerateDraft& draft, const Workers& workers,
                              const DeviceChoice& device, Threads threads) {
  Environment result =
      settings::settings_to_environment(draft.settings, origin_of(workers.mode), device.device);
  if (draft.arguments) {
    replace_by_arguments(draft, workers.mode, result);
  }
  if (workers.mode == Mode::deepspeed) {
    result["ACCELERATE_CONFIG_DS_FIELDS"] = deepspeed_fields(draft);
    result["PYTHONPATH"] = python_path(draft);
  }
  if (workers.mode == Mode::plain && workers.launcher != ProgramLauncher::ranks) {
    add_simple_variables(draft, workers, result);
  }
  if (is_connected_on_cpu(draft, workers, device.device)) {
    result[kUseCpuVariable] = "True";
  }
  add_gpu_variables(draft, workers.mode, device.gpu_ids, result);
  if (threads.count > 0) {
    result["OMP_NUM_THREADS"] = std::to_string(threads.count);
  }
  return result;
}

}  // namespace acc::launcher::accelerate_cli
