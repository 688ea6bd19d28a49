// SPDX-License-Identifier: Apache-2.0
#include "report/machine_report.hpp"

#include "acc/base/error.hpp"
#include "report/words.hpp"
#include "support/errors.hpp"

#include <doctest/doctest.h>

using namespace acc::launcher;
using namespace std::chrono_literals;
using Kind = supervision::ProcessEnd::Kind;

namespace {

report::WorkerReport full_worker(int rank, std::optional<supervision::ProcessEnd> end) {
  return {.rank = rank,
          .local_rank = 1,
          .machine_rank = 2,
          .host = "node2",
          .pid = 4711,
          .end = end,
          .told_to_end = rank % 2 == 0,
          .moment = -1234567us,
          .ended_at = std::chrono::system_clock::time_point(1'795'291'405'123'456us),
          .ran_for = 86'400'001ms,
          .cause = "out of memory",
          .error_message = "ValueError: \"quoted\"\nümläut \x1b[31m",
          .traceback = {"Traceback (most recent call last):", "", "ValueError"},
          .last_stderr_lines = {"a\tb", std::string("nul \0 byte", 10), "\xe2\x82\xac"}};
}

/// Returns the error message for an invalid report; empty if `text` is valid.
std::string refusal(std::string_view text) {
  return acc::test::refusal([&] { return report::decode_machine_report(text); },
                            {acc::Errc::protocol});
}

std::string with(std::string text, std::string_view from, std::string_view to) {
  const std::size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

}  // namespace

TEST_CASE("a machine's report is decoded as it was encoded, and has one line") {
  const report::MachineReport report{
      2,
      "node2",
      {full_worker(7, supervision::ProcessEnd{Kind::killed, 11, true}),
       full_worker(8, std::nullopt), full_worker(9, supervision::ProcessEnd{Kind::exited, 3}),
       full_worker(10, supervision::ProcessEnd{Kind::exited, 0}),
       full_worker(11, supervision::ProcessEnd{Kind::not_executed, 8})}};
  const std::string text = report::encode(report);
  CHECK(text.find('\n') == std::string::npos);
  CHECK(report::decode_machine_report(text) == report);
  CHECK(report::decode_machine_report(report::encode({})) == report::MachineReport{});
}

TEST_CASE("a machine's report is valid JSON for all bytes that a worker writes") {
  report::WorkerReport worker;
  for (int byte = 0; byte < 256; ++byte) {
    worker.last_stderr_lines.assign(1, std::string(3, static_cast<char>(byte)));
    worker.error_message = worker.host = worker.cause = worker.last_stderr_lines[0];
    const report::WorkerReport read =
        report::decode_machine_report(report::encode({0, "", {worker}})).workers.at(0);
    CAPTURE(byte);
    CHECK(read.cause == (byte < 0x80 ? worker.cause : "\ufffd\ufffd\ufffd"));
    CHECK(read.last_stderr_lines.at(0) == read.cause);
  }
}

TEST_CASE("a machine's report limits the length of its texts") {
  report::WorkerReport worker = full_worker(1, supervision::ProcessEnd{Kind::exited, 1});
  worker.error_message = std::string(100'000, 'm');
  worker.traceback.assign(500, std::string(5000, 't'));
  worker.traceback.back() = "ValueError: last";
  worker.last_stderr_lines.assign(500, std::string(5000, '\x01'));
  const report::WorkerReport read =
      report::decode_machine_report(report::encode({0, "", {worker}})).workers.at(0);
  CHECK(read.error_message.size() == 4000);
  CHECK(read.traceback.size() == 50);
  CHECK(read.traceback.front().size() == 1000);
  CHECK(read.traceback.back() == "ValueError: last");
  CHECK(read.last_stderr_lines.size() == 20);
}

TEST_CASE("a report of many workers fits into the store, with all facts of the root cause") {
  report::MachineReport report;
  report.root_cause = 300;
  for (int rank = 0; rank < 512; ++rank) {
    report::WorkerReport& worker =
        report.workers.emplace_back(full_worker(1, supervision::ProcessEnd{Kind::exited, 1}));
    worker.error_message = std::string(4000, '\x01');
    worker.traceback.assign(50, std::string(1000, '\x01'));
    worker.last_stderr_lines.assign(20, std::string(1000, '\x01'));
  }
  const std::string text = report::encode(report);
  CHECK(text.size() < std::size_t{8} << 20);
  const report::MachineReport read = report::decode_machine_report(text);
  REQUIRE(read.workers.size() == 512);
  CHECK(read.workers[300] == report.workers[300]);
  CHECK(read.workers[299].error_message.size() == 200);
}

TEST_CASE("an invalid machine's report is rejected with the reason") {
  const std::string good =
      report::encode({2, "node2", {full_worker(7, supervision::ProcessEnd{Kind::killed, 11})}});
  const std::string machine = "the report of another machine";
  const std::string worker = "the report of machine 2, worker 0";
  const std::pair<std::string, std::string> cases[] = {
      {"", machine + " must be JSON, it is \"\""},
      {"\x1b]0;x\xff", machine + R"( must be JSON, it is "\x1b]0;x\xff")"},
      {good.substr(0, good.size() - 1), machine + " must be JSON"},
      {good + "x", machine + " must be JSON"},
      {"[]", machine + " must be an object, it is array"},
      {"{}", machine + ": machine_rank must be an integer from 0 to 2147483647, it is missing"},
      {with(good, "\"machine_rank\":2", "\"machine_rank\":-1"), "it is -1"},
      {with(good, "\"machine_rank\":2", "\"machine_rank\":2.0"), "it is 2.0"},
      {with(good, "\"machine_rank\":2", "\"machine_rank\":18446744073709551615"), "it is 1844"},
      {with(good, "\"host\":\"node2\"", "\"host\":null"), "host must be a string, it is null"},
      {with(good, "\"workers\":[", "\"workers\":[7,"), worker + " must be an object, it is number"},
      {with(good, "\"pid\":4711", "\"pid\":\"4711\""), worker + ": pid must be an integer"},
      {with(good, "\"pid\":4711", "\"pid\":2147483648"), worker + ": pid must be an integer"},
      {with(good, "\"killed\"", "\"gone\""), worker + ".end: kind must be exited, killed or"},
      {with(good, "\"value\":11", "\"value\":true"), worker + ".end: value must be an integer"},
      {with(good, "\"core_dumped\":false", "\"core_dumped\":0"), "core_dumped must be true or"},
      {with(good, "\"end\":", "\"end\":[],\"x\":"), worker + ": end must be an object or null"},
      {with(good, "\"moment_us\":-", "\"moment_us\":-99999999999"), "moment_us must be an integer"},
      {with(good, "\"ended_at_us\":1", "\"ended_at_us\":9111"), "ended_at_us must be an integer"},
      {with(good, "\"traceback\":[", "\"traceback\":[1,"), "traceback must be a list of strings"},
      {with(good, "\"traceback\":[", "\"traceback\":{},\"x\":["), "traceback must be a list"},
  };
  CHECK(refusal(good).empty());
  for (const auto& [text, reason] : cases) {
    CAPTURE(text);
    CAPTURE(refusal(text));
    CHECK(refusal(text).find(reason) != std::string::npos);
  }
  for (std::size_t length = 0; length < good.size(); ++length) {
    CHECK_FALSE(refusal(good.substr(0, length)).empty());
  }
}

TEST_CASE("shortened text is valid UTF-8") {
  CHECK(report::clipped("seven b", 7) == "seven b");
  CHECK(report::clipped("eight by", 7) == "eigh...");
  CHECK(report::clipped("\xe2\x82\xac\xe2\x82\xac\xe2\x82\xac", 8) == "\xe2\x82\xac...");
  CHECK(report::clipped("long", 2) == "..");
  CHECK(report::clipped("long", 0) == "");
}
