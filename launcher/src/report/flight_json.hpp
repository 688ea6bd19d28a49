#pragma once

#include "acc/base/flight_record.hpp"
#include "report/late_ranks.hpp"
#include "report/worker_json.hpp"

#include <nlohmann/json.hpp>

namespace acc::launcher {

/// A worker's flight record as in docs/report.md.
nlohmann::ordered_json flight_json(const flight::Record& record);

/// What it wrote. Throws Error(protocol).
flight::Record flight_record(const ReportFields& fields);

/// Who was late, as in docs/report.md.
nlohmann::ordered_json late_json(const LateRanks& late);

}  // namespace acc::launcher
