// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/hash_store.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "support.hpp"

#include <algorithm>
#include <atomic>
#include <functional>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::kForEver;
using test::kSoon;
using test::ServerThread;
using Keys = std::vector<std::string>;
using namespace std::chrono_literals;

Keys sorted(Keys keys) {
  std::ranges::sort(keys);
  return keys;
}

/// Runs `body` on each kind of store. It checks the contract of Store.
void on_each_store(const std::function<void(Store&)>& body) {
  SUBCASE("HashStore") {
    HashStore store;
    body(store);
  }
  SUBCASE("TcpStore") {
    ServerThread server;
    TcpStore store("127.0.0.1", server.port(), kSoon);
    body(store);
  }
  SUBCASE("PrefixStore over TcpStore") {
    ServerThread server;
    PrefixStore store("p", std::make_shared<TcpStore>("127.0.0.1", server.port(), kSoon));
    body(store);
  }
  SUBCASE("PrefixStore over PrefixStore") {
    PrefixStore store("outer",
                      std::make_shared<PrefixStore>("inner", std::make_shared<HashStore>()));
    body(store);
  }
}

TEST_CASE("a store keeps values") {
  on_each_store([](Store& store) {
    const std::string binary("\0\xff\n", 3);
    store.set("k", "v");
    store.set("k", binary);
    store.set("empty", "");
    CHECK(store.get("k", kSoon) == binary);
    CHECK(store.get("empty", kSoon).empty());
    CHECK(store.check(Keys{"k", "empty"}));
    CHECK_FALSE(store.check(Keys{"k", "absent"}));
    CHECK(store.num_keys() == 2);
    CHECK(store.delete_key("k"));
    CHECK_FALSE(store.delete_key("k"));
    CHECK(store.num_keys() == 1);
  });
}

TEST_CASE("a store counts, compares and appends") {
  on_each_store([](Store& store) {
    CHECK(store.add("n", 5) == 5);
    CHECK(store.add("n", -7) == -2);
    CHECK(store.get("n", kSoon) == "-2");
    CHECK(store.compare_set("c", "x", "new") == "x");
    CHECK_FALSE(store.check(Keys{"c"}));
    CHECK(store.compare_set("c", "", "v1") == "v1");
    CHECK(store.compare_set("c", "other", "v2") == "v1");
    CHECK(store.compare_set("c", "v1", "v2") == "v2");
    store.append("a", "ab");
    store.append("a", "cd");
    CHECK(store.get("a", kSoon) == "abcd");
  });
}

TEST_CASE("a store handles many keys at once") {
  on_each_store([](Store& store) {
    store.multi_set(std::vector<std::pair<std::string, std::string>>{{"a", "1"}, {"b", ""}});
    CHECK(store.multi_get(Keys{"b", "a", "b"}, kSoon) == Keys{"", "1", ""});
    CHECK(store.multi_get(Keys{}, kSoon).empty());
    CHECK(store.check(Keys{}));
    store.multi_set({});
    store.wait(Keys{"a", "b"}, kSoon);
    store.wait(Keys{}, kSoon);
    CHECK(sorted(store.list_keys()) == Keys{"a", "b"});
  });
}

TEST_CASE("multi_get waits for all of its keys") {
  on_each_store([](Store& store) {
    store.set("a", "1");
    CHECK(contains(error_of([&] { store.multi_get(Keys{"a", "b"}, 1ms); }), "timeout: "));
    std::thread setter([other = store.clone()] { other->set("b", "2"); });
    CHECK(store.multi_get(Keys{"a", "b"}, kForEver) == Keys{"1", "2"});
    setter.join();
  });
}

TEST_CASE("a queue returns each value once, in order") {
  on_each_store([](Store& store) {
    CHECK(store.queue_len("q") == 0);
    CHECK(store.try_queue_pop("q") == std::nullopt);
    store.queue_push("q", "x");
    store.queue_push("q", "");
    CHECK(store.queue_len("q") == 2);
    CHECK(store.queue_pop("q", kSoon) == "x");
    CHECK(store.try_queue_pop("q") == "");
    CHECK(store.try_queue_pop("q") == std::nullopt);
  });
}

TEST_CASE("wait accepts a non-empty queue like a key, but it is not a key") {
  on_each_store([](Store& store) {
    store.queue_push("q", "x");
    CHECK(store.check(Keys{"q"}));
    store.wait(Keys{"q"}, kSoon);
    CHECK(store.num_keys() == 0);
    CHECK(store.list_keys().empty());
    CHECK_FALSE(store.delete_key("q"));
    store.set("q", "a key");
    CHECK(store.queue_pop("q", kSoon) == "x");
    CHECK(store.get("q", kSoon) == "a key");
  });
}

TEST_CASE("a pop that times out names its queue and leaves the store usable") {
  on_each_store([](Store& store) {
    const std::string error = error_of([&] { store.queue_pop("idle", 1ms); });
    CAPTURE(error);
    CHECK(contains(error, "timeout: "));
    CHECK(contains(error, "idle"));
    store.set("idle", "a key of that name is no value of the queue");
    CHECK(contains(error_of([&] { store.queue_pop("idle", 1ms); }), "timeout: "));
    store.queue_push("idle", "x");
    CHECK(store.queue_pop("idle", kSoon) == "x");
  });
}

TEST_CASE("several consumers share a queue") {
  constexpr int kConsumers = 4;
  constexpr int kEach = 100;
  on_each_store([](Store& store) {
    std::atomic<int> sum = 0;
    std::vector<std::jthread> consumers;
    for (int i = 0; i < kConsumers; ++i) {
      consumers.emplace_back([&sum, mine = store.clone()] {
        for (int k = 0; k < kEach; ++k) {
          sum += std::stoi(mine->queue_pop("q", kSoon));
        }
      });
    }
    for (int value = 1; value <= kConsumers * kEach; ++value) {
      store.queue_push("q", std::to_string(value));
    }
    consumers.clear();
    CHECK(sum == kConsumers * kEach * (kConsumers * kEach + 1) / 2);
    CHECK(store.queue_len("q") == 0);
  });
}

TEST_CASE("no client leaves a barrier before all have entered it") {
  constexpr int kSize = 5;
  on_each_store([](Store& store) {
    std::atomic<int> arrived = 0;
    std::atomic<int> too_early = 0;
    std::vector<std::jthread> members;
    for (int i = 0; i < kSize; ++i) {
      members.emplace_back([&, mine = store.clone()] {
        ++arrived;
        mine->barrier("b", kSize, kSoon);
        too_early += arrived < kSize ? 1 : 0;
      });
    }
    members.clear();
    CHECK(too_early == 0);
    store.barrier("b", kSize, 0ms);  // a used barrier stays open
    store.barrier("alone", 1, 0ms);
  });
}

TEST_CASE("a barrier that times out names its key and still counts the client") {
  on_each_store([](Store& store) {
    const std::string error = error_of([&] { store.barrier("b", 2, 1ms); });
    CAPTURE(error);
    CHECK(contains(error, "timeout: "));
    CHECK(contains(error, "b"));
    store.barrier("b", 2, 0ms);
  });
}

TEST_CASE("an invalid argument is refused and changes nothing") {
  const std::string long_key(8191, 'k');
  const std::string long_value(std::size_t{8} << 20, 'v');
  on_each_store([&](Store& store) {
    const std::vector<std::function<void()>> calls{
        [&] { store.set(long_key + 'k', ""); },
        [&] { store.set("k", long_value + 'v'); },
        [&] { store.add(long_key + 'k', 1); },
        [&] { store.compare_set("k", "", long_value + 'v'); },
        [&] { store.append("k", long_value + 'v'); },
        [&] { store.queue_push("k", long_value + 'v'); },
        [&] {
          store.multi_set(std::vector<Store::KeyValue>{{"k", ""}, {"l", long_value + 'v'}});
        },
    };
    for (const auto& call : calls) {
      CHECK(contains(error_of(call), "invalid_argument: "));
    }
    CHECK(store.num_keys() == 0);
    CHECK(store.queue_len("k") == 0);
    store.set("k", long_value);
    CHECK(store.get("k", kSoon) == long_value);
    store.append("k", long_value);
    CHECK(store.get("k", kSoon) == long_value + long_value);
  });
}

TEST_CASE("a key may have 8191 bytes") {
  HashStore in_process;
  ServerThread server;
  TcpStore over_tcp("127.0.0.1", server.port(), kSoon);
  for (Store* store : {static_cast<Store*>(&in_process), static_cast<Store*>(&over_tcp)}) {
    store->set(std::string(8191, 'k'), "v");
    CHECK(store->get(std::string(8191, 'k'), kSoon) == "v");
  }
}

TEST_CASE("a prefix lists its own keys only") {
  auto store = std::make_shared<HashStore>();
  PrefixStore mine("p", store);
  mine.set("b", "");
  mine.set("c/d", "");
  store->set("a", "");
  store->set("pq/c", "");
  CHECK(sorted(mine.list_keys()) == Keys{"b", "c/d"});
}

TEST_CASE("a wait that times out names its keys and leaves the store usable") {
  on_each_store([](Store& store) {
    store.set("here", "");
    const std::string error = error_of([&] { store.wait(Keys{"here", "never"}, 1ms); });
    CAPTURE(error);
    CHECK(contains(error, "timeout: "));
    CHECK(contains(error, "never"));
    CHECK(contains(error_of([&] { store.get("never", 0ms); }), "timeout: "));
    store.set("never", "now");
    CHECK(store.get("never", kSoon) == "now");
  });
}

TEST_CASE("a clone in another thread releases a waiter") {
  on_each_store([](Store& store) {
    auto other = store.clone();
    std::thread setter([&] { other->set("k", "v"); });
    CHECK(store.get("k", kSoon) == "v");
    setter.join();
  });
}

TEST_CASE("concurrent additions of eight threads are all counted") {
  on_each_store([](Store& store) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 8; ++i) {
      threads.emplace_back([mine = store.clone()] {
        for (int k = 0; k < 1000; ++k) {
          mine->add("n", 1);
        }
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(store.add("n", 0) == 8000);
  });
}

TEST_CASE("prefixes are joined as in PyTorch") {
  auto store = std::make_shared<HashStore>();
  PrefixStore outer("outer", std::make_shared<PrefixStore>("inner", store));
  outer.set("k", "1");
  PrefixStore("p/", store).set("k", "2");
  // The prefix of the store that is called ends up closest to the key.
  CHECK(store->get("inner/outer/k", kSoon) == "1");
  CHECK(store->get("p//k", kSoon) == "2");
}

TEST_CASE("adding to a value that is not a number is refused") {
  HashStore store;
  store.set("k", "abc");
  CHECK(contains(error_of([&] { store.add("k", 1); }), "protocol: store key 'k' holds 'abc'"));
}

}  // namespace
}  // namespace acc::rendezvous
