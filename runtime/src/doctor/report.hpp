#pragma once

#include "doctor/findings.hpp"

#include <string>

namespace acc::doctor {

/// For people: machines, pairs, findings with what to do. Ends with a newline.
std::string table(const Examination& examination, const std::vector<Finding>& found);

/// For programs, as docs/doctor.schema.json says. Ends with a newline. `time`: of the report, as
/// "2025-01-31T12:00:00Z".
std::string json(const Examination& examination, const std::vector<Finding>& found,
                 const std::string& time);

/// 1 where one of them is an error, else 0.
int exit_status(const std::vector<Finding>& found) noexcept;

}  // namespace acc::doctor
