// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/machine.hpp"
#include "doctor/alone.hpp"
#include "doctor/answering.hpp"
#include "doctor/examine.hpp"
#include "doctor/gather.hpp"
#include "doctor/probe.hpp"
#include "doctor/report.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"
#include "unit/runtime/doctor_fixture.hpp"

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <set>

using namespace acc::doctor;
using std::chrono::seconds;

TEST_CASE("every pair of machines meets once, and no machine is in two pairs of a round") {
  for (int count = 0; count <= 17; ++count) {
    CAPTURE(count);
    const auto rounds = rounds_of_pairs(count);
    CHECK(rounds.size() == static_cast<std::size_t>(count == 0 ? 0 : count - 1 + count % 2));
    std::set<std::pair<int, int>> met;
    for (const auto& round : rounds) {
      std::set<int> busy;
      for (const auto& [a, b] : round) {
        CHECK(a < b);
        CHECK(b < count);
        CHECK(busy.insert(a).second);
        CHECK(busy.insert(b).second);
        CHECK(met.insert({a, b}).second);
      }
    }
    CHECK(met.size() == static_cast<std::size_t>(count * (count - 1) / 2));
  }
}

TEST_CASE("the page cache of a control group is available memory") {
  const acc::test::TemporaryFolder folder;
  const auto write = [&](const char* name, const char* text) {
    acc::test::write_text(folder.path() / name, text);
  };
  CHECK_FALSE(acc::memory_of_group(folder.path()).limit);
  write("memory.max", "max\n");
  write("memory.current", "900\n");
  write("memory.stat", "anon 200\nfile 700\ninactive_file 400\nactive_file 250\nshmem 50\n");
  CHECK_FALSE(acc::memory_of_group(folder.path()).limit);
  write("memory.max", "1000\n");
  CHECK(acc::memory_of_group(folder.path()).limit == 1000);
  CHECK(acc::memory_of_group(folder.path()).used == 250);
  write("memory.limit_in_bytes", "2000\n");
  write("memory.usage_in_bytes", "1500\n");
  write("memory.stat", "inactive_file 1\ntotal_inactive_file 600\ntotal_active_file 300\n");
  CHECK(acc::memory_of_group(folder.path()).limit == 2000);
  CHECK(acc::memory_of_group(folder.path()).used == 600);
}

TEST_CASE("facts survive encoding and decoding") {
  Examination job = sound_job(3);
  MachineFacts& machine = machine_of(job, 1);
  machine.gpus = {"H200", "H200"};
  machine.visible_devices = "all";
  machine.cpu_quota = 2.5;
  machine.memory_limit = 1 << 20;
  machine.interfaces.push_back({.name = "ib0", .addresses = {}});
  CHECK(encode(decode_machine(encode(machine))) == encode(machine));
  CHECK(decode_machine(encode(machine)).main_interface()->speed_mbps == 10000);
  pair_of(job, 0, 1).attempts[0].reached = Reached::silent;
  pair_of(job, 0, 1).latency_us.reset();
  pair_of(job, 0, 2).failure = "no \xff text";
  CHECK(encode(decode_pairs(encode(job.pairs))) == encode(job.pairs));
  for (const std::string text : {"", "{}", "[1]", "null", R"([{"from": 1}])"}) {
    CHECK_THROWS_AS(decode_pairs(text), const acc::Error&);
    CHECK_THROWS_AS(decode_machine(text), const acc::Error&);
  }
}

TEST_CASE("the text report has all machines, pairs and findings") {
  Examination job = sound_job(3);
  machine_of(job, 1).nofile = 256;
  job.machines[2].reset();
  std::erase_if(job.pairs, [](const auto& each) { return each.from == 2 || each.to == 2; });
  const std::vector<Finding> found = findings(job);
  const std::string text = table(job, found);
  for (const char* words : {"node0", "node1", "10.0.0.2", "did not answer", "50 / 9", "failed",
                            "few_open_files", "no_facts", "->"}) {
    CAPTURE(words);
    CHECK(text.find(words) != std::string::npos);
  }
  CHECK(exit_status(found) == 1);
  CHECK(exit_status(findings(sound_job(2))) == 0);
}

TEST_CASE("the JSON report has the same content") {
  Examination job = sound_job(3);
  machine_of(job, 1).nofile = 256;
  job.machines[2].reset();
  const auto report = nlohmann::json::parse(json(job, findings(job), "2025-01-31T12:00:00Z"));
  CHECK(report["machines"].size() == 3);
  CHECK(report["machines"][2].is_null());
  CHECK_FALSE(report["machines"][0].contains("token"));
  CHECK(report["pairs"].size() == 6);
  CHECK(report["findings"].size() == 2);
  CHECK(report["exit_status"] == 1);
}

TEST_CASE("a machine answers at all of its ports, and only the right answer is accepted") {
  const Answering answering(40000, 40999, 5);
  REQUIRE(answering.ports().size() == Answering::kPorts);
  std::vector<Target> targets;
  for (const std::uint16_t port : answering.ports()) {
    targets.push_back({"127.0.0.1", port, 5});
  }
  targets.push_back({"127.0.0.1", answering.ports()[0], 6});
  targets.push_back({"127.0.0.1", answering.ports()[0], 0});
  const std::vector<Attempt> attempts = connect_to(targets, seconds(20));
  for (std::size_t i = 0; i < answering.ports().size(); ++i) {
    CHECK(attempts[i].reached == Reached::yes);
  }
  CHECK(attempts[Answering::kPorts].reached == Reached::other);
  CHECK(attempts[Answering::kPorts + 1].reached == Reached::yes);
  const auto clocks = compare_clocks(targets[0], seconds(20));
  REQUIRE(clocks);
  CHECK(std::abs(clocks->offset_ms) * 1000 <= clocks->round_trip_us);  // the same clock
  CHECK_FALSE(compare_clocks(targets[Answering::kPorts], seconds(20)));
}

TEST_CASE("a closed port gives no answer") {
  std::uint16_t port = 0;
  { port = Answering(41000, 41999, 5).ports()[0]; }
  const auto attempts = connect_to({{"127.0.0.1", port, 5}, {"no address", 1, 5}}, seconds(20));
  CHECK(attempts[0].reached == Reached::refused);
  CHECK(attempts[1].reached == Reached::no_route);
}

TEST_CASE("host names are looked up in parallel") {
  const auto found = resolve({"127.0.0.1", "no such name"}, seconds(20));
  CHECK(found.at("127.0.0.1").addresses == std::vector<std::string>{"127.0.0.1"});
  CHECK(found.at("no such name").addresses.empty());
  CHECK_FALSE(found.at("no such name").failure.empty());
}

TEST_CASE("two machines with the same name do not cause a wait until the timeout") {
  const auto found = resolve({"127.0.0.1", "127.0.0.1"}, std::chrono::hours(1));
  CHECK(found.at("127.0.0.1").failure.empty());
}

TEST_CASE("a single machine reports what it can see of the rendezvous") {
  struct Case {
    const char* kind;
    MeetingPlace place;
  };
  const auto place = [](bool serves, std::vector<std::string> addresses,
                        std::vector<Attempt> attempts) {
    return MeetingPlace{.host = "head",
                        .port = 29500,
                        .serves = serves,
                        .name = {std::move(addresses), "no such name"},
                        .attempts = std::move(attempts)};
  };
  const MachineFacts own = sound_machine(1);
  const std::string there = "10.0.0.1";
  const std::vector<Case> cases = {
      {"main_process_unknown", place(false, {}, {})},
      {"main_process_elsewhere", place(true, {there}, {})},
      {"main_process_is_here", place(false, {own.address}, {})},
      {"main_process_answers", place(false, {there}, {{there, 29500, Reached::yes}})},
      {"main_process_refuses", place(false, {there}, {{there, 29500, Reached::refused}})},
      {"main_process_unreachable", place(false, {there}, {{there, 29500, Reached::no_answer}})},
      {"main_process_unreachable", place(false, {there}, {{there, 29500, Reached::no_route}})},
  };
  for (const Case& each : cases) {
    const auto found = meeting_findings(each.place, own);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == each.kind);
    CHECK(found[0].what.find("head") != std::string::npos);
  }
  CHECK(meeting_findings(place(true, {own.address}, {}), own).empty());
}
