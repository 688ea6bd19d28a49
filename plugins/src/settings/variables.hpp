// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/base/variables.hpp"
#include "acc/settings/environment.hpp"
#include "acc/settings/faults.hpp"

#include <string>
#include <string_view>

/// Names of variables and helpers that the encoder and the decoders of an environment share.
namespace acc::settings {

/// Places of the values that the launcher passes on: "key=config.yaml:12" or "key=--flag", joined
/// by ';'. Messages of the worker name these places instead of the variable.
inline constexpr std::string_view kSourcesVariable = "ACC_SETTING_SOURCES";

/// Returns the value of a variable, or nullptr if it is unset.
const std::string* value_of(const Environment& environment, std::string_view name);

/// Returns an Error(config) with the variable, the expected and the found value.
Error bad_variable(std::string_view name, const std::string& value, const std::string& expected);

/// Reads the worker's identity from the variables of torchrun or of DeepSpeed's launcher. Adds
/// wrong values to `faults`.
WorkerIdentity read_identity(const Environment& environment, Faults& faults);

}  // namespace acc::settings
