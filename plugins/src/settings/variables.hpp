#pragma once

#include "acc/base/error.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/plugins/faults.hpp"

#include <string>
#include <string_view>

/// Reading one variable; what the readers of an environment share.
namespace acc::plugins {

inline constexpr std::string_view kOriginVariable = "ACC_MODE";
inline constexpr std::string_view kDeviceVariable = "ACC_DEVICE";
/// Where the launcher found the values that it passes on: "key=config.yaml:12" or "key=--flag",
/// joined by ';'. A worker's messages name these places.
inline constexpr std::string_view kSourcesVariable = "ACC_SETTING_SOURCES";

/// nullptr: it is unset.
const std::string* value_of(const Environment& environment, std::string_view name);

/// Error(config): the variable, what was expected, and what was found.
Error bad_variable(std::string_view name, const std::string& value, const std::string& expected);

/// Who the worker is, by the variables of torchrun or DeepSpeed's launcher.
WorkerIdentity read_identity(const Environment& environment, Faults& faults);

}  // namespace acc::plugins
