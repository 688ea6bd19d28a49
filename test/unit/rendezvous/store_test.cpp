#include "acc/rendezvous/hash_store.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "support.hpp"

#include <functional>

namespace acc::rendezvous {
namespace {

using test::contains;
using test::error_of;
using test::kSoon;
using test::ServerThread;
using Keys = std::vector<std::string>;
using namespace std::chrono_literals;

/// Runs `body` on each kind of store; what it expects is the contract of Store.
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
  SUBCASE("PrefixStore") {
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
    CHECK(store.multi_get(Keys{"b", "a", "absent"}) == Keys{"", "1", ""});
    CHECK(store.multi_get(Keys{}).empty());
    store.wait(Keys{"a", "b"}, kSoon);
    store.wait(Keys{}, kSoon);
  });
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

TEST_CASE("eight threads count to eight thousand") {
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

TEST_CASE("prefixes are joined as torch joins them") {
  auto store = std::make_shared<HashStore>();
  PrefixStore outer("outer", std::make_shared<PrefixStore>("inner", store));
  outer.set("k", "1");
  PrefixStore("p/", store).set("k", "2");
  // The prefix of the store that is called ends up closest to the key.
  CHECK(store->get("inner/outer/k", kSoon) == "1");
  CHECK(store->get("p//k", kSoon) == "2");
}

TEST_CASE("adding to what is no number is refused") {
  HashStore store;
  store.set("k", "abc");
  CHECK(contains(error_of([&] { store.add("k", 1); }), "protocol: store key 'k' holds 'abc'"));
}

}  // namespace
}  // namespace acc::rendezvous
