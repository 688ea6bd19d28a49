// SPDX-License-Identifier: Apache-2.0
// acclaunch trace: files that are read, aligned, merged and summed up.
#include "commands/trace/summary.hpp"
#include "commands/trace/trace_file.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>

#include <map>

using namespace acc::launcher::commands;
using acc::test::contains;
using acc::test::error_of;
using acc::test::TemporaryFolder;
using acc::test::write_text;
using nlohmann::json;

namespace {

json span(int rank, const char* name, const char* category, double begin, double end) {
  return {{"name", name}, {"cat", category}, {"ph", "X"},         {"pid", rank},
          {"tid", 0},     {"ts", begin},     {"dur", end - begin}};
}

json clock(int rank, double steady, double unix_time) {
  return {{"name", "acc_clock"},
          {"ph", "M"},
          {"pid", rank},
          {"args", {{"steady_us", steady}, {"unix_us", unix_time}}}};
}

TraceFile trace(std::vector<json> events, std::optional<double> to_unix) {
  return {"trace.json", std::move(events), to_unix};
}

/// The waits of a rank whose clock is ahead by `ahead` microseconds. It comes late to the second.
std::vector<json> waits(int rank, double ahead, bool late) {
  return {span(rank, "for the gather of a", "wait", 1000 + ahead, 2000 + ahead),
          span(rank, "for the gather of a", "wait", (late ? 4990 : 3000) + ahead, 5000 + ahead),
          span(rank, "for the reduction of a", "wait", 6000 + ahead, 7000 + ahead),
          span(rank, "for the norm of all ranks", "wait", 8000 + ahead, 9000 + ahead)};
}

}  // namespace

TEST_CASE("clocks are aligned by common waits, otherwise by the time of day, otherwise not") {
  struct Case {
    const char* name;
    TraceFile first;
    TraceFile second;
    ClockShift expected;
  };
  const std::vector<Case> cases = {
      {"the time of day is wrong by 500 us",
       trace(waits(0, 0, false), 1e6),
       trace(waits(1, 40'000, true), 1e6 - 40'500),
       {-40'000, 3, true}},
      {"no time of day",
       trace(waits(0, 0, false), std::nullopt),
       trace(waits(1, -70, false), 1e6),
       {70, 4, false}},
      {"too few waits",
       trace({waits(0, 0, false)[0]}, 1e6),
       trace(waits(1, 0, false), 2e6),
       {1e6, 0, true}},
      {"neither", trace({}, std::nullopt), trace({}, std::nullopt), {0, 0, false}},
  };
  for (const Case& each : cases) {
    CAPTURE(each.name);
    const auto shifts = align(std::vector{each.first, each.second});
    REQUIRE(shifts.size() == 2);
    CHECK(shifts[0].microseconds == 0.0);
    CHECK(shifts[1].microseconds == doctest::Approx(each.expected.microseconds));
    CHECK(shifts[1].waits == each.expected.waits);
    CHECK(shifts[1].has_clock == each.expected.has_clock);
  }
  CHECK(align({}).empty());
}

TEST_CASE("a merged trace holds all events, with shifted times") {
  const std::vector<TraceFile> traces = {
      trace({clock(0, 5, 6), span(0, "a", "compute", 10, 20)}, 1.0),
      trace({span(1, "b", "compute", 110, 120)}, 1.0)};
  const json all = json::parse(merged(traces, std::vector<ClockShift>{{}, {-100.0, 3, true}}));
  REQUIRE(all.size() == 3);
  CHECK(all[0] == traces[0].events[0]);
  CHECK(all[1] == traces[0].events[1]);
  CHECK(all[2].at("ts") == 10.0);
  CHECK(all[2].at("dur") == 10.0);
  CHECK(json::parse(merged({}, {})).empty());
}

TEST_CASE("a merged trace has arrows from the last rank of a collective to those that waited") {
  const auto entered = [](int rank, const char* collective, double begin, double end) {
    json event = span(rank, "all_gather 8 bytes", "communication", begin, end);
    event["tid"] = 10 + rank;
    event["args"] = {{"collective", collective}};
    return event;
  };
  std::vector<TraceFile> traces = {
      trace({entered(0, "world 1", 10, 50), entered(1, "world 1", 20, 50),
             entered(0, "pair 1", 60, 70), entered(1, "world 2", 80, 90)},
            1.0),
      trace({entered(2, "world 1", 140, 150), entered(3, "world 1", 125, 126)}, 1.0)};
  const std::vector<ClockShift> shifts = {{}, {-100.0, 3, true}};
  const json all = json::parse(merged(traces, shifts));
  std::map<int, std::vector<json>> arrows;  // by id
  for (const json& event : all) {
    if (event.contains("id")) {
      arrows[event.at("id")].push_back(event);
    }
  }
  REQUIRE(arrows.size() == 2);  // the clock of rank 3 is wrong
  for (const auto& [id, ends] : arrows) {
    REQUIRE(ends.size() == 2);
    const int to = id - 1;
    CHECK(ends[0] == json{{"ph", "s"},
                          {"pid", 2},
                          {"tid", 12},
                          {"ts", 40.0},
                          {"id", id},
                          {"bp", "e"},
                          {"name", "last to enter"},
                          {"cat", "collective"}});
    CHECK(ends[1] == json{{"ph", "f"},
                          {"pid", to},
                          {"tid", 10 + to},
                          {"ts", 40.0},
                          {"id", id},
                          {"bp", "e"},
                          {"name", "last to enter"},
                          {"cat", "collective"}});
  }
  const TraceFile once = trace(all.get<std::vector<json>>(), 1.0);
  CHECK(json::parse(merged(std::vector{once}, std::vector<ClockShift>{{}})) == all);
}

TEST_CASE("a summary: parts of a step, exposed and hidden communication") {
  const auto ranks = summarize(std::vector{trace(
      {span(3, "forward a", "compute", 0, 1000), span(3, "for the gather of b", "wait", 1000, 1500),
       span(3, "forward b", "compute", 1500, 2500), span(3, "backward b", "compute", 3000, 5000),
       span(3, "for the reduction of a", "wait", 5000, 5250),
       span(3, "for the norm of all ranks", "wait", 5250, 5300),
       span(3, "optimizer step", "optimizer", 5300, 6000),
       span(3, "update a", "optimizer", 6000, 6300),
       span(3, "checkpoint save", "checkpoint", 7000, 9000), span(3, "step 8", "step", 0, 6300),
       span(3, "step 9", "step", 6300, 9000),
       // Two collectives overlap; together they last from 200 to 1500, and 3500 to 5250.
       span(3, "all_gather 8 bytes of b", "communication", 200, 900),
       span(3, "all_gather 8 bytes", "communication", 700, 1500),
       span(3, "reduce_scatter 8 bytes of gather, backward", "communication", 3500, 5250)},
      std::nullopt)});
  REQUIRE(ranks.size() == 1);
  const RankTimes& times = ranks.front();
  const std::map<const char*, std::pair<double, double>> expected = {
      {"total", {times.total, 9.0}},
      {"forward", {times.forward, 2.0}},
      {"backward", {times.backward, 2.0}},
      {"optimizer", {times.optimizer, 1.0}},
      {"checkpoint", {times.checkpoint, 2.0}},
      {"gather wait", {times.gather_wait, 0.5}},
      {"reduce wait", {times.reduce_wait, 0.25}},
      {"other wait", {times.other_wait, 0.05}},
      {"outside", {times.outside, 1.2}},
      {"gather", {times.gather, 1.5}},
      {"reduce", {times.reduce, 1.75}},
      {"hidden", {times.hidden, 0.8 + 1.5}}};
  for (const auto& each : expected) {
    CAPTURE(each.first);
    CHECK(each.second.first == doctest::Approx(each.second.second));
  }
  CHECK(times.rank == 3);
  CHECK(times.steps == 2);
  const json object = summary_json(ranks)[0];
  CHECK(object.at("gather_wait_ms") == doctest::Approx(0.5));
  CHECK(object.at("exposed_ms") == doctest::Approx(0.8));
  CHECK(contains(summary_text(ranks), "   3      2        4.500        1.000"));
  CHECK(contains(summary_text(ranks), "  8.9 %\n"));
}

TEST_CASE("trace files that are wrong are refused with file and place") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.json";
  struct Case {
    const char* text;
    const char* message;
  };
  for (const auto& [text, message] : {
           Case{"[\n{\"name\":", "parse error at line 2"},
           Case{"{}", "expected a JSON array of events"},
           Case{"[1]", "event 1: expected an object"},
           Case{R"([{"ph":"M","name":"x","pid":0},{"ph":"X","name":"x","pid":0,"ts":1}])",
                "event 2: expected numbers in \"ts\" and \"dur\""},
           Case{R"([{"ph":"X","name":"x","pid":"a"}])", "event 1: expected a rank, an integer"},
           Case{R"([{"ph":"M","name":1,"pid":0}])", "event 1: expected a text in \"name\""},
           Case{R"([{"ph":"M","name":"acc_clock","pid":0,"args":{"unix_us":"a","steady_us":1}}])",
                "type must be number"},
       }) {
    write_text(path, text);
    const std::string error = error_of([&] { return read_traces(std::vector{path.string()}); });
    CAPTURE(error);
    CHECK(error.starts_with("config: trace: " + path.string() + ": "));
    CHECK(contains(error, message));
  }
}

TEST_CASE("a trace whose last line is incomplete lacks that line only") {
  const TemporaryFolder folder;
  const auto path = folder.path() / "a.json";
  const std::string line = R"({"ph":"M","name":"x","pid":0},)"
                           "\n";
  write_text(path, "[\n" + line + line + line.substr(0, 12));
  CHECK(read_traces(std::vector{path.string()}).front().events.size() == 2);
}

TEST_CASE("a folder stands for its trace files; a rank is in one of them only") {
  const TemporaryFolder folder;
  const auto write = [&](const char* name, int rank) {
    write_text(folder.path() / name, json::array({clock(rank, 1, 101)}).dump());
  };
  const std::vector<std::string> paths = {folder.path().string()};
  CHECK(
      contains(error_of([&] { return read_traces(paths); }), "not_found: trace: no .json file in"));
  write("b.json", 2);
  write("a.json", 0);
  write_text(folder.path() / "notes.txt", "none");
  const auto traces = read_traces(paths);
  REQUIRE(traces.size() == 2);
  CHECK(traces[0].ranks() == std::vector{0});
  CHECK(traces[1].ranks() == std::vector{2});
  CHECK(traces[1].to_unix == 100.0);
  write("c.json", 0);
  CHECK(contains(error_of([&] { return read_traces(paths); }),
                 "c.json: rank 0 is also in " + (folder.path() / "a.json").string()));
  CHECK(contains(
      error_of([&] { return read_traces(std::vector{(folder.path() / "none").string()}); }),
      "none does not exist"));
}
