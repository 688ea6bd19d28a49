// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/findings.hpp"

#include <string>

namespace acc::doctor {

/// Text report: tables of machines and pairs, and the findings with their remedies. Ends with a
/// newline.
std::string table(const Examination& examination, const std::vector<Finding>& found);

/// JSON report, described by docs/doctor.schema.json. Ends with a newline. `time`: time of the
/// report, such as "2025-01-31T12:00:00Z".
std::string json(const Examination& examination, const std::vector<Finding>& found,
                 const std::string& time);

/// 1 if a finding is an error, else 0.
int exit_status(const std::vector<Finding>& found) noexcept;

}  // namespace acc::doctor
