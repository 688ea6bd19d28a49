// SPDX-License-Identifier: Apache-2.0
#include "report/worker_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"
#include "report/flight_json.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

namespace acc::launcher::report {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::system_clock;
using Kind = supervision::ProcessEnd::Kind;

constexpr std::array<std::pair<Kind, const char*>, 3> kKinds = {
    {{Kind::exited, "exited"}, {Kind::killed, "killed"}, {Kind::not_executed, "not_executed"}}};
constexpr std::int64_t kMaxInteger = std::numeric_limits<std::int64_t>::max();
// Limit of times in seconds. In nanoseconds it still fits into 64 bits, so that no clock overflows.
constexpr std::int64_t kHundredYears = 100LL * 366 * 24 * 3600;

Json end_json(const supervision::ProcessEnd& end) {
  const auto* kind = std::ranges::find(kKinds, end.kind, &std::pair<Kind, const char*>::first);
  return {{"kind", kind->second},
          {"value", end.value},
          {"signal",
           end.kind == Kind::killed ? Json(supervision::signal_name(end.value)) : Json(nullptr)},
          {"core_dumped", end.core_dumped},
          {"exit_status", end.shell_status()}};
}

supervision::ProcessEnd process_end(const ReportFields& fields) {
  const std::string text = fields.text("kind");
  const auto* kind = std::ranges::find_if(kKinds, [&](const auto& k) { return k.second == text; });
  if (kind == kKinds.end()) {
    fields.refuse("kind", "exited, killed or not_executed");
  }
  return {kind->first, fields.number("value", 0), fields.boolean("core_dumped")};
}

}  // namespace

ReportFields::ReportFields(const Json& object, std::string where)
    : object_(&object), where_(std::move(where)) {
  if (!object.is_object()) {
    throw Error(Errc::protocol, where_ + " must be an object, it is " + object.type_name());
  }
}

void ReportFields::refuse(const std::string& name, const std::string& expected) const {
  const auto found = object_->find(name);
  const std::string value =
      found == object_->end() ? "is missing" : "is " + lossy_text_of_json(*found).substr(0, 80);
  throw Error(Errc::protocol, where_ + ": " + name + " must be " + expected + ", it " + value);
}

// A missing field is returned as a discarded value, which fails every type check.
const Json& ReportFields::field(const char* name) const {
  static const Json missing = Json::value_t::discarded;
  const auto found = object_->find(name);
  return found == object_->end() ? missing : *found;
}

std::int64_t ReportFields::integer(const char* name, std::int64_t min, std::int64_t max) const {
  const Json& value = field(name);
  const bool fits = value.is_number_unsigned()
                        ? value.get<std::uint64_t>() <= std::uint64_t{kMaxInteger}
                        : value.is_number_integer();
  if (!fits || value.get<std::int64_t>() < min || value.get<std::int64_t>() > max) {
    refuse(name, "an integer from " + std::to_string(min) + " to " + std::to_string(max));
  }
  return value.get<std::int64_t>();
}

int ReportFields::number(const char* name, int min) const {
  return static_cast<int>(integer(name, min, std::numeric_limits<int>::max()));
}

bool ReportFields::boolean(const char* name) const {
  if (!field(name).is_boolean()) {
    refuse(name, "true or false");
  }
  return field(name).get<bool>();
}

std::string ReportFields::text(const char* name) const {
  if (!field(name).is_string()) {
    refuse(name, "a string");
  }
  return field(name).get<std::string>();
}

const Json& ReportFields::array(const char* name) const {
  if (!field(name).is_array()) {
    refuse(name, "a list");
  }
  return field(name);
}

std::vector<std::string> ReportFields::texts(const char* name) const {
  std::vector<std::string> all;
  for (const Json& item : array(name)) {
    if (!item.is_string()) {
      refuse(name, "a list of strings");
    }
    all.push_back(item.get<std::string>());
  }
  return all;
}

bool ReportFields::is_null(const char* name) const {
  return field(name).is_null();
}

std::optional<ReportFields> ReportFields::object(const char* name) const {
  const Json& value = field(name);
  if (!value.is_object() && !value.is_null()) {
    refuse(name, "an object or null");
  }
  return value.is_null() ? std::nullopt : std::optional(ReportFields(value, where_ + "." + name));
}

Json worker_json(const WorkerReport& worker) {
  const auto since_epoch = worker.ended_at.time_since_epoch();
  return {{"rank", worker.rank},
          {"local_rank", worker.local_rank},
          {"machine_rank", worker.machine_rank},
          {"host", worker.host},
          {"pid", worker.pid},
          {"end", worker.end ? end_json(*worker.end) : Json(nullptr)},
          {"told_to_end", worker.told_to_end},
          {"stuck", worker.stuck},
          {"moment_us", worker.moment.count()},
          {"ended_at_us", std::chrono::floor<microseconds>(since_epoch).count()},
          {"ran_for_ms", worker.ran_for.count()},
          {"cause", worker.cause},
          {"error_message", worker.error_message},
          {"traceback", worker.traceback},
          {"last_stderr_lines", worker.last_stderr_lines},
          {"collectives", worker.flight ? flight_json(*worker.flight) : Json(nullptr)}};
}

// The report comes from another machine, so every number is checked against the range of its type.
WorkerReport worker_report(const ReportFields& fields) {
  const auto time = [&](const char* name, std::int64_t units_per_second) {
    const std::int64_t limit = kHundredYears * units_per_second;
    return fields.integer(name, -limit, limit);
  };
  const auto end = fields.object("end");
  const auto flight = fields.object("collectives");
  return {.rank = fields.number("rank", 0),
          .local_rank = fields.number("local_rank", 0),
          .machine_rank = fields.number("machine_rank", 0),
          .host = fields.text("host"),
          .pid = fields.number("pid", -1),
          .end = end ? std::optional(process_end(*end)) : std::nullopt,
          .told_to_end = fields.boolean("told_to_end"),
          .stuck = fields.boolean("stuck"),
          .moment = microseconds(time("moment_us", 1'000'000)),
          .ended_at = system_clock::time_point(microseconds(time("ended_at_us", 1'000'000))),
          .ran_for = milliseconds(time("ran_for_ms", 1000)),
          .cause = fields.text("cause"),
          .error_message = fields.text("error_message"),
          .traceback = fields.texts("traceback"),
          .last_stderr_lines = fields.texts("last_stderr_lines"),
          .flight = flight ? std::optional(flight_record(*flight)) : std::nullopt};
}

}  // namespace acc::launcher::report
