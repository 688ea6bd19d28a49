// SPDX-License-Identifier: Apache-2.0
// Plugins in C are tables of fields that are set by name, so that a new field of a plugin needs no
// new function.
#include "acc/base/variables.hpp"
#include "acc/settings/environment.hpp"
#include "capi/capi.hpp"

struct acc_fsdp_plugin {
  acc::FullyShardedDataParallelPlugin value;
};
struct acc_deepspeed_plugin {
  acc::DeepSpeedPlugin value;
};

namespace {

using namespace acc::capi;

template <typename Plugin>
acc_status set(Plugin* plugin, const char* field, const char* value) noexcept {
  return guarded([&] {
    required(plugin, "plugin").value.set(string_of(field, "field"), string_of(value, "value"));
  });
}

template <typename Plugin>
acc_status start(const Plugin* plugin, acc_runtime** runtime) noexcept {
  return create(runtime, "runtime",
                [&] { return acc::Runtime::from_environment(required(plugin, "plugin").value); });
}

}  // namespace

acc_status acc_fsdp_plugin_create(acc_fsdp_plugin** plugin) noexcept {
  return create(plugin, "plugin", [] { return acc_fsdp_plugin{}; });
}
void acc_fsdp_plugin_free(acc_fsdp_plugin* plugin) noexcept {
  delete plugin;
}
acc_status acc_fsdp_plugin_set(acc_fsdp_plugin* plugin, const char* field,
                               const char* value) noexcept {
  return set(plugin, field, value);
}
acc_status acc_runtime_from_environment_with_fsdp(const acc_fsdp_plugin* plugin,
                                                  acc_runtime** runtime) noexcept {
  return start(plugin, runtime);
}
acc_status acc_runtime_in_mode_with_fsdp(const char* mode, const acc_fsdp_plugin* plugin,
                                         acc_runtime** runtime) noexcept {
  return create(runtime, "runtime", [&] {
    acc::settings::Environment environment = acc::settings::current_environment();
    environment.insert_or_assign(acc::kModeVariable, string_of(mode, "mode"));
    acc::settings::RuntimeSettings settings = acc::settings::settings_from_environment(
        environment, required(plugin, "plugin").value.program_settings());
    settings.sharding.save_async = false;  // the program writes checkpoints of its own
    return acc::Runtime::from_settings(settings);
  });
}

acc_status acc_deepspeed_plugin_create(acc_deepspeed_plugin** plugin) noexcept {
  return create(plugin, "plugin", [] { return acc_deepspeed_plugin{}; });
}
void acc_deepspeed_plugin_free(acc_deepspeed_plugin* plugin) noexcept {
  delete plugin;
}
acc_status acc_deepspeed_plugin_set(acc_deepspeed_plugin* plugin, const char* field,
                                    const char* value) noexcept {
  return set(plugin, field, value);
}
acc_status acc_runtime_from_environment_with_deepspeed(const acc_deepspeed_plugin* plugin,
                                                       acc_runtime** runtime) noexcept {
  return start(plugin, runtime);
}
