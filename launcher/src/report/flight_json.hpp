// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/flight_record.hpp"
#include "report/late_ranks.hpp"
#include "report/worker_json.hpp"

#include <nlohmann/json.hpp>

namespace acc::launcher::report {

/// Returns a worker's flight record in the format of docs/report.md.
nlohmann::ordered_json flight_json(const flight::Record& record);

/// Parses the output of `flight_json`. Throws Error(protocol).
flight::Record flight_record(const ReportFields& fields);

/// Returns the ranks that were late in a collective in the format of docs/report.md.
nlohmann::ordered_json late_json(const LateRanks& late);

}  // namespace acc::launcher::report
