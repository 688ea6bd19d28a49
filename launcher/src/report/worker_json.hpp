// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/flight_record.hpp"
#include "report/late_ranks.hpp"
#include "report/machine_report.hpp"

#include <nlohmann/json.hpp>

#include <string>

namespace acc::launcher::report {
/// Returns a worker's report in the format of docs/report.md.
nlohmann::ordered_json worker_json(const WorkerReport& worker);

/// Checked access to the fields of a JSON object that another machine sent. Each method throws
/// Error(protocol) if the field is missing, of another type or out of range; the message begins
/// with `where` and names the field.
class ReportFields {
 public:
  ReportFields(const nlohmann::ordered_json& object, std::string where);

  [[nodiscard]] std::int64_t integer(const char* name, std::int64_t min, std::int64_t max) const;
  [[nodiscard]] int number(const char* name, int min) const;
  [[nodiscard]] bool boolean(const char* name) const;
  [[nodiscard]] std::string text(const char* name) const;
  [[nodiscard]] std::vector<std::string> texts(const char* name) const;
  [[nodiscard]] const nlohmann::ordered_json& array(const char* name) const;
  [[nodiscard]] bool is_null(const char* name) const;
  /// Returns empty if the field is null.
  [[nodiscard]] std::optional<ReportFields> object(const char* name) const;

  [[noreturn]] void refuse(const std::string& name, const std::string& expected) const;

 private:
  [[nodiscard]] const nlohmann::ordered_json& field(const char* name) const;

  const nlohmann::ordered_json* object_;
  std::string where_;
};

/// Parses the output of `worker_json`. Throws Error(protocol).
WorkerReport worker_report(const ReportFields& fields);

/// Returns a worker's flight record in the format of docs/report.md.
nlohmann::ordered_json flight_json(const flight::Record& record);

/// Parses the output of `flight_json`. Throws Error(protocol).
flight::Record flight_record(const ReportFields& fields);

/// Returns the ranks that were late in a collective in the format of docs/report.md.
nlohmann::ordered_json late_json(const LateRanks& late);

}  // namespace acc::launcher::report
