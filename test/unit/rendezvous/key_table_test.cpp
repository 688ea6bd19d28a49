// SPDX-License-Identifier: Apache-2.0
#include "store/key_table.hpp"

#include "support/errors.hpp"

#include <doctest/doctest.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace acc::rendezvous {
namespace {

using Ids = std::vector<KeyTable::WaiterId>;
using KeyViews = std::vector<std::string_view>;

/// A table that records the waiters that it has released.
struct Fixture {
  Ids released;
  KeyTable table{[this](KeyTable::WaiterId id) { released.push_back(id); }};

  Ids take() { return std::exchange(released, {}); }
};

TEST_CASE_FIXTURE(Fixture, "numbers are read as strtoll reads them and wrap around") {
  struct Case {
    std::string text;
    std::int64_t delta;
    std::optional<std::int64_t> sum;
  };
  for (const Case& each : std::vector<Case>{
           {"41", 1, 42},
           {"-2", -3, -5},
           {" 12abc", 1, 13},
           {"+7", 0, 7},
           {"9223372036854775807", 1, std::numeric_limits<std::int64_t>::min()},
           {"-9223372036854775808", -1, std::numeric_limits<std::int64_t>::max()},
           {"", 1, std::nullopt},
           {"   ", 1, std::nullopt},
           {"abc", 1, std::nullopt},
           {"-", 1, std::nullopt},
           {"+-1", 1, std::nullopt},
           {"9223372036854775808", 1, std::nullopt},
       }) {
    CAPTURE(each.text);
    table.set("n", each.text);
    CHECK(table.add("n", each.delta) == each.sum);
    CHECK(*table.find("n") == (each.sum ? std::to_string(*each.sum) : each.text));
  }
  CHECK(table.add("new", 0) == 0);
  CHECK(*table.find("new") == "0");
}

TEST_CASE_FIXTURE(Fixture, "compare_set stores on a match only") {
  CHECK(table.compare_set("k", "x", "new") == "x");
  CHECK(table.find("k") == nullptr);
  CHECK(table.compare_set("k", "", "new") == "new");
  CHECK(table.compare_set("k", "", "other") == "new");
  CHECK(table.compare_set("k", "old", "other") == "new");
  CHECK(table.compare_set("k", "new", "other") == "other");
  CHECK(*table.find("k") == "other");
}

TEST_CASE_FIXTURE(Fixture, "every way of creating a key releases its waiters") {
  CHECK_FALSE(table.wait(1, KeyViews{"a"}));
  table.set("a", "");
  CHECK(take() == Ids{1});
  CHECK_FALSE(table.wait(1, KeyViews{"b"}));
  table.add("b", 0);
  CHECK(take() == Ids{1});
  CHECK_FALSE(table.wait(1, KeyViews{"c"}));
  table.append("c", "");
  CHECK(take() == Ids{1});
  CHECK_FALSE(table.wait(1, KeyViews{"d"}));
  table.compare_set("d", "", "x");
  CHECK(take() == Ids{1});
  CHECK(table.wait(1, KeyViews{"a", "b", "c", "d"}));
  CHECK(table.wait(1, KeyViews{}));
  CHECK(released.empty());
}

TEST_CASE_FIXTURE(Fixture, "a waiter is released once, by the last of its keys") {
  CHECK_FALSE(table.wait(1, KeyViews{"a", "b", "a"}));
  table.set("a", "1");
  table.set("a", "2");
  table.erase("a");
  CHECK(released.empty());
  table.set("b", "1");
  CHECK(take() == Ids{1});
  table.set("a", "3");
  CHECK(released.empty());
}

TEST_CASE_FIXTURE(Fixture, "a compare_set that stores nothing releases no waiter") {
  CHECK_FALSE(table.wait(1, KeyViews{"k"}));
  table.compare_set("k", "expected", "desired");
  CHECK(released.empty());
}

TEST_CASE_FIXTURE(Fixture, "a cancelled or replaced wait is forgotten") {
  CHECK_FALSE(table.wait(1, KeyViews{"a", "b"}));
  table.cancel(1);
  table.cancel(1);
  table.set("a", "");
  table.set("b", "");
  CHECK(released.empty());

  CHECK_FALSE(table.wait(1, KeyViews{"old"}));
  CHECK_FALSE(table.wait(1, KeyViews{"new"}));
  table.set("old", "");
  CHECK(released.empty());
  table.set("new", "");
  CHECK(take() == Ids{1});
}

TEST_CASE_FIXTURE(Fixture, "a queue is first in, first out, and is not a key") {
  table.queue_push("q", "x");
  table.queue_push("q", "");
  CHECK(table.queue_size("q") == 2);
  CHECK(table.all_present(KeyViews{"q"}));
  CHECK(table.find("q") == nullptr);
  CHECK_FALSE(table.erase("q"));
  CHECK(table.values().empty());
  CHECK(table.queue_pop("q") == "x");
  CHECK(table.queue_pop("q") == "");
  CHECK(table.queue_pop("q") == std::nullopt);
  CHECK_FALSE(table.all_present(KeyViews{"q"}));
}

TEST_CASE_FIXTURE(Fixture, "each push releases the client that has waited longest") {
  for (const KeyTable::WaiterId id : {3, 1, 2}) {
    CHECK_FALSE(table.wait(id, KeyViews{"q"}));
  }
  table.cancel(1);
  table.queue_push("q", "x");
  CHECK(take() == Ids{3});
  table.queue_push("q", "y");
  CHECK(take() == Ids{2});
  table.queue_push("q", "z");
  CHECK(released.empty());
}

TEST_CASE_FIXTURE(Fixture, "a waiter that a queue has released is not registered there any more") {
  CHECK_FALSE(table.wait(1, KeyViews{"q"}));
  table.queue_push("q", "x");
  CHECK(take() == Ids{1});
  CHECK_FALSE(table.wait(1, KeyViews{"unrelated"}));
  table.queue_push("q", "y");
  CHECK(released.empty());
}

TEST_CASE_FIXTURE(Fixture, "a barrier releases all waiters when the last one arrives") {
  CHECK(table.barrier(1, "b", 3) == false);
  CHECK(table.barrier(2, "b", 3) == false);
  CHECK(released.empty());
  CHECK(table.barrier(3, "b", 3) == true);
  CHECK(take() == Ids{1, 2});
  CHECK(*table.find("b") == "3");
  CHECK(table.barrier(1, "b", 3) == true);  // the counter is never reset
  CHECK(table.barrier(1, "one", 1) == true);
  CHECK(table.barrier(1, "none", 0) == true);

  table.set("text", "no number");
  CHECK(table.barrier(1, "text", 2) == std::nullopt);
}

TEST_CASE_FIXTURE(Fixture, "a cancelled arrival stays counted") {
  CHECK(table.barrier(1, "b", 2) == false);
  table.cancel(1);
  CHECK(table.barrier(2, "b", 2) == true);
  CHECK(released.empty());
}

TEST_CASE("a call that would exceed a limit changes nothing, and later calls that fit succeed") {
  KeyTable table([](KeyTable::WaiterId) {}, {.max_keys = 2});
  const auto refused = [&](auto&& call) {
    return acc::test::error_of(call) == "out_of_memory: the store is full: it may hold 2 keys";
  };
  table.set("a", "1");
  CHECK(refused([&] { table.set_all(KeyViews{"b", "c"}, KeyViews{"2", "3"}); }));
  CHECK(table.find("b") == nullptr);
  table.set("b", "2");
  CHECK(refused([&] { table.set("c", "3"); }));
  CHECK(refused([&] { table.add("c", 1); }));
  CHECK(refused([&] { table.append("c", ""); }));
  CHECK(refused([&] { table.compare_set("c", "", "3"); }));
  CHECK(refused([&] { table.barrier(1, "c", 2); }));
  CHECK(table.values().size() == 2);
  table.set("a", "another");
  CHECK(table.erase("a"));
  table.set("c", "3");
  CHECK(*table.find("c") == "3");
}

TEST_CASE("memory is counted for everything that is stored, and released with it") {
  constexpr std::size_t kMost = 100'000;
  KeyTable table([](KeyTable::WaiterId) {}, {.max_bytes = kMost});
  const auto fill = [&](auto&& call) {
    int calls = 0;
    const std::string error = acc::test::error_of([&] {
      for (; calls < 10'000; ++calls) {
        call("name" + std::to_string(calls));
      }
    });
    CHECK(error == "out_of_memory: the store is full: it may hold 100000 bytes");
    CHECK(calls > 50);
    CHECK(table.bytes() <= kMost);
  };
  fill([&](const std::string& name) { table.set(name, "value"); });
  table.clear();
  fill([&](const std::string& /*name*/) { table.append("one", std::string(100, 'x')); });
  CHECK(table.erase("one"));
  CHECK(table.bytes() == 0);
  fill([&](const std::string& name) { table.queue_push(name, ""); });
  table.clear();
  fill([&](const std::string& /*name*/) { table.queue_push("queue", ""); });
  while (table.queue_pop("queue")) {
  }
  CHECK(table.bytes() == 0);
  KeyTable::WaiterId waiter = 0;
  fill([&](const std::string& name) { table.wait(++waiter, KeyViews{name, "other"}); });
  for (; waiter > 1; --waiter) {
    table.cancel(waiter);
  }
  table.wait(1, KeyViews{"b"});
  table.set("b", "");
  CHECK(table.erase("b"));
  CHECK(table.bytes() == 0);
}

}  // namespace
}  // namespace acc::rendezvous
