// SPDX-License-Identifier: Apache-2.0
#include "plan/inherited_settings.hpp"

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher {

std::string_view origin_of(Mode mode) noexcept {
  return mode == Mode::fsdp ? "fsdp" : mode == Mode::deepspeed ? "deepspeed" : "none";
}

}  // namespace acc::launcher

namespace acc::launcher::plan {
namespace {

Mode mode_of(const std::string& origin) {
  return origin == "fsdp" ? Mode::fsdp : origin == "deepspeed" ? Mode::deepspeed : Mode::plain;
}

}  // namespace

InheritedSettings inherit_settings(Draft& draft, Identity identity, const RankLayout& layout,
                                   WorkerVariables variables, bool gpus_are_visible) {
  const std::string device = host::value_of(draft.environment, launcher::host::variables.device,
                                            gpus_are_visible ? "cuda" : "cpu");
  variables.set[kDeviceVariable] = device;
  InheritedSettings inherited = {
      .device = device == "cuda" ? settings::Device::cuda : settings::Device::cpu,
      .variables = std::move(variables)};
  const LaunchPlan workers = {
      .identity = identity, .layout = layout, .variables = inherited.variables};
  // Reads the environment of the first worker with the code that libacc_runtime uses in the worker.
  try {
    const auto settings = settings::settings_from_environment(worker_environment(
        workers, planned_assignment(workers, 0), draft.environment, first_local_rank(layout)));
    inherited.sharding = settings.sharding;
    inherited.mode = mode_of(settings.origin);
  } catch (const Error& error) {
    draft.notice("a C++ program will reject this environment: " + std::string(error.what()));
  }
  return inherited;
}

std::set<std::string> names_of_settings() {
  std::set<std::string> names;
  for (const settings::SettingRow& row : settings::settings_table()) {
    if (settings::reaches_workers(row)) {
      names.insert(settings::own_variable(row));
    }
  }
  return names;
}

}  // namespace acc::launcher::plan
