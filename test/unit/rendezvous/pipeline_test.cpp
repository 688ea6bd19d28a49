// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/tcp_store.hpp"
#include "support.hpp"

#include <algorithm>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::kSoon;
using test::ServerThread;
using Keys = std::vector<std::string>;
using namespace std::chrono_literals;

struct Fixture {
  ServerThread server;
  TcpStore store{"127.0.0.1", server.port(), kSoon};
};

TEST_CASE_FIXTURE(Fixture, "requests of a pipeline are served in order and have typed replies") {
  auto batch = store.pipeline();
  batch.set("k", "v1");
  const auto value = batch.get("k");
  const auto swapped = batch.compare_set("k", "v1", "v2");
  batch.append("k", "+");
  const auto after = batch.get("k");
  const auto sum = batch.add("n", 5);
  const auto lower = batch.add("n", -7);
  const auto both = batch.check(Keys{"k", "n"});
  const auto absent = batch.check(Keys{"k", "absent"});
  const auto gone = batch.delete_key("k");
  const auto gone_already = batch.delete_key("k");
  batch.queue_push("q", "x");
  const auto length = batch.queue_len("q");
  const auto none = batch.get("absent");
  CHECK(store.num_keys() == 0);  // nothing is sent yet
  batch.run(kSoon);
  CHECK(*value == "v1");
  CHECK(*swapped == "v2");
  CHECK(*after == "v2+");
  CHECK(*sum == 5);
  CHECK(*lower == -2);
  CHECK(*both);
  CHECK_FALSE(*absent);
  CHECK(*gone);
  CHECK_FALSE(*gone_already);
  CHECK(*length == 1);
  CHECK(none->empty());
}

TEST_CASE_FIXTURE(Fixture, "a pipeline may run again, and its replies stay valid") {
  auto batch = store.pipeline();
  batch.run(kSoon);
  const auto first = batch.add("n", 1);
  batch.run(kSoon);
  const auto second = batch.add("n", 1);
  CHECK(*second == 0);
  batch.run(kSoon);
  CHECK(*first == 1);
  CHECK(*second == 2);
  CHECK(store.add("n", 0) == 2);
}

TEST_CASE_FIXTURE(Fixture, "a refused request does not change the rest of a pipeline") {
  auto batch = store.pipeline();
  const auto before = batch.add("n", 1);
  CHECK(contains(error_of([&] { batch.set("k", std::string((std::size_t{8} << 20) + 1, 'v')); }),
                 "invalid_argument: "));
  const auto after = batch.add("n", 1);
  batch.run(kSoon);
  CHECK(*before == 1);
  CHECK(*after == 2);
  CHECK(store.num_keys() == 1);
}

TEST_CASE_FIXTURE(Fixture,
                  "a pipeline may have more requests and replies than both sides can buffer") {
  constexpr int kRequests = 10'000;
  const std::string large(8'000, 'x');  // 80 MB each way, against a server that holds 4 MB
  store.set("k", large);
  auto batch = store.pipeline();
  std::vector<const std::string*> found;
  for (int i = 0; i < kRequests; ++i) {
    found.push_back(batch.compare_set("k", large + "y", ""));
  }
  batch.run(kSoon);
  CHECK(std::ranges::all_of(found, [&](const auto* value) { return *value == large; }));
}

TEST_CASE_FIXTURE(Fixture,
                  "a pipeline over a lost connection keeps the replies that it has received") {
  store.set("text", "no number");
  auto batch = store.pipeline();
  const auto answered = batch.add("n", 1);
  batch.add("text", 1);  // closes the connection
  const auto never = batch.add("n", 1);
  CHECK(contains(error_of([&] { batch.run(kSoon); }), "connection: store at 127.0.0.1:"));
  CHECK(*answered == 1);
  CHECK(*never == 0);
  CHECK(contains(error_of([&] { batch.run(kSoon); }), "connection: "));
}

}  // namespace
}  // namespace acc::rendezvous
