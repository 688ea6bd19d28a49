// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "collectives/recorded_group.hpp"
#include "collectives/solo/solo_group.hpp"
#include "device/cpu_device.hpp"
#include "support/errors.hpp"
#include "support/temporary_folder.hpp"
#include "support/text.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <random>

using namespace acc::flight;
using acc::test::TemporaryFolder;

namespace {

std::string path_in(const TemporaryFolder& folder) {
  return (folder.path() / "flight_record").string();
}

}  // namespace

TEST_CASE("a record has groups, scope and the last collectives, however the worker ends") {
  const TemporaryFolder folder;
  const std::string path = path_in(folder);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    Recorder recorder(path, 5);
    const int world = recorder.add_group("world", {0, 1, 2, 3, 4, 5});
    const int columns = recorder.add_group("replicate", {1, 5});
    recorder.enter("forward", "transformer.h.0");
    recorder.ended(recorder.call(world, "all_gather", 4096), State::done);
    recorder.enter("prefetch", std::string(200, 'x') + ".h.1");
    recorder.waits(recorder.call(columns, "all_reduce", 64));
    recorder.leave("forward", "transformer.h.0");
    ::kill(::getpid(), SIGKILL);
  }
  ::waitpid(child, nullptr, 0);
  const auto record = read_record(path);
  REQUIRE(record);
  CHECK(record->rank == 5);
  CHECK(record->place.phase == "prefetch");
  CHECK(record->place.unit.ends_with("x.h.1"));
  CHECK(record->place.unit.size() == file::kUnitBytes - 1);
  REQUIRE(record->groups.size() == 2);
  CHECK(record->groups[0] == Group{"world", 0, 1, 6, 1, 0});
  CHECK(record->groups[1] == Group{"replicate", 1, 4, 2, 1, 1});
  REQUIRE(record->last.size() == 2);
  CHECK(record->last[0].kind == "all_gather");
  CHECK(record->last[0].state == State::done);
  CHECK(record->last[0].place == Place{"forward", "transformer.h.0"});
  CHECK(record->last[0].called_us > 0);
  CHECK(record->last[1].state == State::waiting);
  CHECK(record->last[1].nbytes == 64);
  CHECK(record->last[1].place == record->place);
}

TEST_CASE("a step's values and waiting times are in the record, and what the program reports") {
  const TemporaryFolder folder;
  Recorder recorder(path_in(folder), 0);
  CHECK_FALSE(read_record(path_in(folder))->metrics);
  CHECK(recorder.wants_memory());
  recorder.waited("all_gather", std::chrono::seconds(1));
  recorder.waited("reduce_scatter", std::chrono::seconds(2));
  recorder.waited("all_reduce", std::chrono::seconds(3));
  recorder.waited("barrier", std::chrono::seconds(4));
  using Value = std::pair<std::string_view, double>;
  recorder.end_step(std::array{Value{"step", 7.0}, Value{"memory.parameters", 4096.0}});
  CHECK_FALSE(recorder.wants_memory());
  CHECK(recorder.report(std::array{Value{"loss", 2.5}}));
  CHECK_FALSE(recorder.report(std::array{Value{"", 2.5}, Value{"accuracy", 0.5}}));
  const auto metrics = read_record(path_in(folder))->metrics;
  REQUIRE(metrics);
  CHECK(metrics->reported_us > 0);
  CHECK(metrics->values.step == 7);
  CHECK(metrics->values.gather_s == 1.0);
  CHECK(metrics->values.reduce_s == 5.0);
  CHECK(metrics->values.wait_s == 4.0);
  CHECK(metrics->values.compute_s == 0.0);  // never negative
  CHECK(metrics->values.memory.at("parameters") == 4096);
  CHECK(metrics->values.loss == 2.5);
  CHECK(metrics->values.values.at("accuracy") == 0.5);
  recorder.end_step({});
  CHECK(read_record(path_in(folder))->metrics->values.gather_s == 0.0);
}

TEST_CASE("the last 64 collectives are kept, oldest first") {
  const TemporaryFolder folder;
  Recorder recorder(path_in(folder), 0);
  const int world = recorder.add_group("world", {0, 1});
  const auto first = recorder.call(world, "barrier", 0);
  for (int i = 0; i < 200; ++i) {
    recorder.call(world, "all_gather", 8);
  }
  recorder.ended(first, State::done);  // its slot has been reused
  const auto record = read_record(path_in(folder));
  REQUIRE(record);
  REQUIRE(record->last.size() == file::kSlots);
  CHECK(record->last.front().number == 201 - file::kSlots + 1);
  CHECK(record->last.back().number == 201);
  CHECK(record->last.back().state == State::called);
  CHECK(record->groups[0].called == 201);
}

TEST_CASE(
    "a file that cannot be opened, or belongs to another recorder, does not stop the program") {
  const TemporaryFolder folder;
  const auto use = [](Recorder& recorder) {
    recorder.ended(recorder.call(recorder.add_group("world", {0}), "barrier", 0), State::done);
  };
  for (const std::string& path :
       {std::string(), std::string("/nowhere/record"), folder.path().string()}) {
    Recorder recorder(path, 0);
    CHECK_NOTHROW(use(recorder));
  }
  Recorder first(path_in(folder), 1);
  Recorder second(path_in(folder), 2);
  use(second);
  CHECK(read_record(path_in(folder))->rank == 1);
}

TEST_CASE("a file with any content is read safely") {
  const TemporaryFolder folder;
  {
    Recorder recorder(path_in(folder), 0);
    const int world = recorder.add_group("world", {0, 1});
    for (int i = 0; i < 100; ++i) {
      recorder.ended(recorder.call(world, "all_gather", 8), State::done);
    }
  }
  const std::string good = acc::test::file_text(path_in(folder));
  REQUIRE(decode(good));
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, good.size() - 1}) {
    CHECK_FALSE(decode(std::string_view(good).substr(0, size)));
  }
  CHECK_FALSE(decode(good + "x"));
  std::string other_version = good;
  other_version[offsetof(file::FileHead, version)] = 1;
  CHECK_FALSE(decode(other_version));
  CHECK_FALSE(read_record(folder.path().string()));
  CHECK_FALSE(read_record("/nowhere"));
  std::mt19937 random(7);
  int taken = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bad = good;
    for (std::size_t changes = 1 + random() % 200; changes > 0; --changes) {
      bad[8 + random() % (bad.size() - 8)] = static_cast<char>(random());
    }
    if (const auto record = decode(bad)) {
      ++taken;
      CHECK(record->last.size() <= file::kSlots);
      for (const Collective& each : record->last) {
        REQUIRE(each.group < record->groups.size());
        REQUIRE(each.place.unit.size() <= file::kUnitBytes);
        REQUIRE(each.ended_us >= 0);
      }
    }
  }
  CHECK(taken > 0);
}

TEST_CASE("a collective that fails in progress() is recorded with the rank at fault") {
  class Failing final : public acc::collectives::SoloGroup {
   public:
    using SoloGroup::SoloGroup;
    void progress() override { throw acc::Error(acc::Errc::collective, "lost rank 3", 3); }
  };
  const TemporaryFolder folder;
  const auto recorder = std::make_shared<Recorder>(path_in(folder), 0);
  const auto group = acc::collectives::record_group(
      std::make_shared<Failing>(acc::collectives::GroupSpec{.name = "world", .ranks = {0}},
                                acc::device::open_cpu_device()),
      recorder, "world", {0});
  CHECK(acc::test::refusal([&] { group->progress(); }, {acc::Errc::collective}) == "lost rank 3");
  group->abort("lost rank 3", acc::Errc::collective);
  CHECK_THROWS_AS(group->barrier()->wait(), acc::Error);  // names no rank
  const auto record = read_record(path_in(folder));
  REQUIRE(record);
  REQUIRE(record->failure);
  CHECK(record->failure->at_fault == 3);
  CHECK(record->failure->reason == "lost rank 3");
}

TEST_CASE("the error of a failed collective names its purpose once") {
  const auto recorder = std::make_shared<Recorder>("", 0);
  const auto cpu = acc::device::open_cpu_device();
  const auto solo = std::make_shared<acc::collectives::SoloGroup>(
      acc::collectives::GroupSpec{.name = "world", .ranks = {0}}, cpu);
  const auto group = acc::collectives::record_group(solo, recorder, "world", {0});
  const auto message = [](const auto& run) {
    return acc::test::refusal(run, {acc::Errc::collective});
  };
  std::vector<float> data(4);
  const auto gather = [&] { group->all_gather(data.data(), data.data(), 16)->wait(); };
  CHECK_NOTHROW(gather());
  group->abort("rank 1 is gone", acc::Errc::collective);
  {
    const Scope scope(recorder.get(), "forward", "transformer.h.3");
    CHECK(message(gather) == "rank 1 is gone (in the gather of unit transformer.h.3, forward)");
    const Scope step(recorder.get(), "step", "");
    CHECK(message([&] { group->barrier()->wait(); }) == "rank 1 is gone (in the step)");
  }
  CHECK(message(gather) == "rank 1 is gone");
}
