// SPDX-License-Identifier: Apache-2.0
// Uses every call of TcpStore on the server at HOST PORT, which contains "from_torch" = "hello".
// Calls that a torch server supports only with libuv are used if "queues" is given. Prints "ok", or
// the first unexpected result.
#include "acc/base/error.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace std::chrono_literals;
using acc::rendezvous::PrefixStore;
using acc::rendezvous::TcpStore;
using Keys = std::vector<std::string>;

void expect(bool holds, const char* what) {
  if (!holds) {
    throw acc::Error(acc::Errc::internal, std::string("not as expected: ") + what);
  }
}

bool times_out(const std::function<void()>& call) {
  try {
    call();
  } catch (const acc::Error& error) {
    return error.code() == acc::Errc::timeout;
  }
  return false;
}

void probe_queues(TcpStore& store) {
  expect(!store.try_queue_pop("q"), "an empty queue");
  expect(times_out([&] { store.queue_pop("q", 20ms); }), "queue_pop times out");
  store.queue_push("q", "x");
  store.queue_push("q", "");
  expect(store.queue_len("q") == 2, "queue_len");
  expect(store.queue_pop("q", 10s) == "x" && store.try_queue_pop("q") == "", "queue_pop");
}

void probe(const std::shared_ptr<TcpStore>& store) {
  expect(store->get("from_torch", 10s) == "hello", "get what torch set");
  store->set("from_acc", std::string("\0\xff", 2));
  expect(store->check(Keys{"from_acc", "from_torch"}), "check present");
  expect(!store->check(Keys{"from_acc", "absent"}), "check absent");
  expect(store->add("counter", 5) == 5 && store->add("counter", -7) == -2, "add");
  expect(store->compare_set("cas", "", "1") == "1", "compare_set creates");
  expect(store->compare_set("cas", "x", "2") == "1", "compare_set refuses");
  expect(store->compare_set("absent", "x", "2") == "x", "compare_set of an absent key");
  store->append("joined", "ab");
  store->append("joined", "cd");
  store->multi_set(std::vector<std::pair<std::string, std::string>>{{"m1", "1"}, {"m2", ""}});
  expect(store->multi_get(Keys{"m1", "joined", "m2"}, 10s) == Keys{"1", "abcd", ""}, "multi_get");
  store->wait(Keys{"m1", "m2"}, 10s);
  expect(times_out([&] { store->wait(Keys{"absent"}, 20ms); }), "wait times out");
  expect(store->num_keys() >= 7, "num_keys");
  const Keys names = store->list_keys();
  expect(static_cast<std::int64_t>(names.size()) == store->num_keys(), "list_keys");
  expect(std::ranges::count(names, "from_torch") == 1, "list_keys names what torch set");
  expect(store->delete_key("cas") && !store->delete_key("cas"), "delete_key");
  store->barrier("alone", 1, 10s);
  expect(times_out([&] { store->barrier("two", 2, 20ms); }), "barrier times out");
  store->barrier("two", 2, 10s);
  store->ping();
  auto batch = store->pipeline();
  batch.set("piped", "1");
  const auto piped = batch.get("piped");
  const auto sum = batch.add("piped", 1);
  batch.run(10s);
  expect(*piped == "1" && *sum == 2, "pipeline");
  const std::string large(std::size_t{8} << 20, 'x');
  store->set("large", large);
  expect(store->get("large", 10s) == large, "a large value");
  store->clone()->set("from_clone", "c");
  expect(store->get("from_clone", 10s) == "c", "clone");
  PrefixStore("outer", std::make_shared<PrefixStore>("inner", store)).set("k", "nested");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fputs("usage: store_probe HOST PORT [queues]\n", stderr);
    return 2;
  }
  try {
    const auto port = static_cast<std::uint16_t>(std::atoi(argv[2]));
    const auto store = std::make_shared<TcpStore>(argv[1], port, 30s);
    probe(store);
    if (argc > 3) {
      probe_queues(*store);
    }
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "store_probe: %s\n", error.what());
    return 1;
  }
  std::puts("ok");
}
