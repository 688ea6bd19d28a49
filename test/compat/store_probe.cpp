// Uses every call of TcpStore on the server at HOST PORT, which holds "from_torch" = "hello".
// Prints "ok", or what was not as expected.
#include "acc/base/error.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
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
  try {
    store->wait(Keys{"absent"}, 20ms);
    expect(false, "wait for an absent key ended");
  } catch (const acc::Error& error) {
    expect(error.code() == acc::Errc::timeout, "wait times out");
  }
  expect(store->num_keys() >= 7, "num_keys");
  expect(store->delete_key("cas") && !store->delete_key("cas"), "delete_key");
  store->clone()->set("from_clone", "c");
  expect(store->get("from_clone", 10s) == "c", "clone");
  PrefixStore("outer", std::make_shared<PrefixStore>("inner", store)).set("k", "nested");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: store_probe HOST PORT\n", stderr);
    return 2;
  }
  try {
    const auto port = static_cast<std::uint16_t>(std::atoi(argv[2]));
    probe(std::make_shared<TcpStore>(argv[1], port, 30s));
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "store_probe: %s\n", error.what());
    return 1;
  }
  std::puts("ok");
}
