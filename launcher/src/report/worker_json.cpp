// SPDX-License-Identifier: Apache-2.0
#include "report/worker_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"

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

namespace {

using Json = nlohmann::ordered_json;
using flight::Collective;
using flight::Group;
using flight::State;

constexpr std::int64_t kAnyCount = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t kMostCalls = std::numeric_limits<std::uint32_t>::max();
constexpr State kStates[] = {State::called, State::waiting, State::done, State::failed};

/// Returns a time in microseconds, or null for 0, which means that it was not recorded.
Json time_json(std::int64_t us) {
  return us > 0 ? Json(us) : Json(nullptr);
}

std::uint32_t calls(const ReportFields& fields, const char* name) {
  return static_cast<std::uint32_t>(fields.integer(name, 0, kMostCalls));
}

Json collective_json(const Collective& each) {
  return {{"group", each.group},
          {"number", each.number},
          {"kind", each.kind},
          {"bytes", each.nbytes},
          {"phase", each.place.phase},
          {"unit", each.place.unit},
          {"state", to_string(each.state)},
          {"called_at_us", time_json(each.called_us)},
          {"waiting_since_us", time_json(each.waiting_us)},
          {"ended_at_us", time_json(each.ended_us)}};
}

Json failure_json(const flight::Failure& failure) {
  return {{"rank_at_fault", failure.at_fault ? Json(*failure.at_fault) : Json(nullptr)},
          {"timed_out", failure.timed_out},
          {"message", failure.reason}};
}

flight::Failure failure(const ReportFields& fields) {
  return {.at_fault = fields.is_null("rank_at_fault")
                          ? std::nullopt
                          : std::optional(fields.number("rank_at_fault", 0)),
          .timed_out = fields.boolean("timed_out"),
          .reason = fields.text("message")};
}

/// Parses a collective. Its group must be one of the record's `num_groups` groups, since the index
/// is used without further checks.
Collective collective(const ReportFields& fields, std::size_t num_groups) {
  const std::string word = fields.text("state");
  const auto* state =
      std::ranges::find_if(kStates, [&](State each) { return to_string(each) == word; });
  if (state == std::end(kStates)) {
    fields.refuse("state", "called, waiting, done or failed");
  }
  const auto time = [&](const char* name) {
    return fields.is_null(name) ? 0 : fields.integer(name, 0, kAnyCount);
  };
  return {.group = static_cast<std::size_t>(
              fields.integer("group", 0, static_cast<std::int64_t>(num_groups) - 1)),
          .number = calls(fields, "number"),
          .kind = fields.text("kind"),
          .nbytes = static_cast<std::uint64_t>(fields.integer("bytes", 0, kAnyCount)),
          .state = *state,
          .place = {fields.text("phase"), fields.text("unit")},
          .called_us = time("called_at_us"),
          .waiting_us = time("waiting_since_us"),
          .ended_us = time("ended_at_us")};
}

}  // namespace

Json flight_json(const flight::Record& record) {
  Json groups = Json::array();
  for (const Group& group : record.groups) {
    groups.push_back({{"name", group.name},
                      {"first_rank", group.first},
                      {"stride", group.stride},
                      {"num_ranks", group.count},
                      {"called", group.called},
                      {"waiting_in", group.waiting}});
  }
  Json last = Json::array();
  for (const Collective& each : record.last) {
    last.push_back(collective_json(each));
  }
  return {{"rank", record.rank},
          {"phase", record.place.phase},
          {"unit", record.place.unit},
          {"has_left", record.has_left},
          {"failure", record.failure ? failure_json(*record.failure) : Json(nullptr)},
          {"groups", std::move(groups)},
          {"last", std::move(last)}};
}

flight::Record flight_record(const ReportFields& fields) {
  const auto failed = fields.object("failure");
  flight::Record record{.rank = fields.number("rank", 0),
                        .place = {fields.text("phase"), fields.text("unit")},
                        .has_left = fields.boolean("has_left"),
                        .failure = failed ? std::optional(failure(*failed)) : std::nullopt,
                        .groups = {},
                        .last = {}};
  for (const Json& json : fields.array("groups")) {
    const ReportFields group(json, "a group of a flight record");
    record.groups.push_back({.name = group.text("name"),
                             .first = group.number("first_rank", 0),
                             .stride = group.number("stride", 1),
                             .count = group.number("num_ranks", 1),
                             .called = calls(group, "called"),
                             .waiting = calls(group, "waiting_in")});
  }
  for (const Json& json : fields.array("last")) {
    record.last.push_back(
        collective(ReportFields(json, "a collective of a flight record"), record.groups.size()));
  }
  return record;
}

Json late_json(const LateRanks& late) {
  return {{"ranks", late.ranks},
          {"group", late.group.name},
          {"number", late.what.number},
          {"kind", late.what.kind},
          {"bytes", late.what.nbytes},
          {"phase", late.what.place.phase},
          {"unit", late.what.place.unit},
          {"waiting_ranks", late.waiting},
          {"waited_ms", late.waited.count()},
          {"called_instead", late.called},
          {"without_record", late.unknown}};
}

}  // namespace acc::launcher::report
