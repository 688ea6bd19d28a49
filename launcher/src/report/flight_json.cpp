// SPDX-License-Identifier: Apache-2.0
#include "report/flight_json.hpp"

#include <algorithm>
#include <limits>

namespace acc::launcher::report {
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
