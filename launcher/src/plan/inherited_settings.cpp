#include "plan/inherited_settings.hpp"

#include "acc/base/error.hpp"
#include "host/own_variables.hpp"

namespace acc::launcher {
namespace {

Mode mode_of(const std::string& origin) {
  return origin == "fsdp" ? Mode::fsdp : origin == "deepspeed" ? Mode::deepspeed : Mode::plain;
}

}  // namespace

std::string_view origin_of(Mode mode) noexcept {
  return mode == Mode::fsdp ? "fsdp" : mode == Mode::deepspeed ? "deepspeed" : "none";
}

void inherit_settings(LaunchPlan& plan, const plugins::Environment& environment,
                      bool gpus_are_visible) {
  const std::string device =
      value_of(environment, variables::device, gpus_are_visible ? "cuda" : "cpu");
  plan.device = device == "cuda" ? plugins::Device::cuda : plugins::Device::cpu;
  plan.environment["ACC_DEVICE"] = device;
  // Reads the environment of the first worker with the code that libacc_runtime uses in the worker.
  try {
    const auto settings = plugins::settings_from_environment(worker_environment(
        plan, planned_assignment(plan, 0), environment, first_local_rank(plan.layout)));
    plan.sharding = settings.sharding;
    plan.mode = mode_of(settings.origin);
  } catch (const Error& error) {
    plan.notices.push_back("a C++ program will reject this environment: " +
                           std::string(error.what()));
  }
}

void remove_outer_settings(LaunchPlan& plan) {
  for (const plugins::SettingRow& row : plugins::settings_table()) {
    if (plugins::reaches_workers(row)) {
      plan.removed_variables.insert(plugins::own_variable(row));
    }
  }
}

}  // namespace acc::launcher
