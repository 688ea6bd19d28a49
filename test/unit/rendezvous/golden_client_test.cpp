// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "golden.hpp"
#include "impostor.hpp"
#include "support.hpp"

#include <functional>
#include <map>

namespace acc::rendezvous {
namespace {

using nlohmann::json;
using test::bytes_of;
using test::contains;
using test::error_of;
using test::Impostor;
using test::kSoon;
using Keys = std::vector<std::string>;
using Pairs = std::vector<Store::KeyValue>;
using namespace std::chrono_literals;

/// Calls of this client that correspond to the recorded ones of PyTorch's client. The results are
/// the same, except that a release that crosses the cancel counts as released here.
const std::map<std::string, std::function<void(Store&)>> kCalls{
    {"client_set", [](Store& store) { store.set("k", "v1"); }},
    {"client_get", [](Store& store) { CHECK(store.get("k", kSoon) == "v1"); }},
    {"client_add", [](Store& store) { CHECK(store.add("k", -3) == -3); }},
    {"client_compare_set", [](Store& store) { CHECK(store.compare_set("k", "a", "b") == "b"); }},
    {"client_check",
     [](Store& store) {
       CHECK(store.check(Keys{"a", "b"}));
     }},
    {"client_wait",
     [](Store& store) {
       store.wait(Keys{"a", "b"}, kSoon);
     }},
    {"client_wait_timeout",
     [](Store& store) {
       CHECK(contains(error_of([&] { store.wait(Keys{"a"}, 1ms); }), "timeout: no key a"));
     }},
    {"client_wait_timeout_crossed", [](Store& store) { store.wait(Keys{"a"}, 1ms); }},
    {"client_delete_key", [](Store& store) { CHECK(store.delete_key("k")); }},
    {"client_num_keys", [](Store& store) { CHECK(store.num_keys() == 3); }},
    {"client_append", [](Store& store) { store.append("k", "zz"); }},
    {"client_multi_get",
     [](Store& store) {
       CHECK(store.multi_get(Keys{"a", "b"}, kSoon) == Keys{"1", ""});
     }},
    {"client_multi_set",
     [](Store& store) {
       store.multi_set(Pairs{{"a", "1"}, {"b", ""}});
     }},
    {"client_queue_push", [](Store& store) { store.queue_push("q", "x"); }},
    {"client_queue_pop_block", [](Store& store) { CHECK(store.queue_pop("q", kSoon) == "x"); }},
    {"client_queue_pop_noblock_empty",
     [](Store& store) { CHECK_FALSE(store.try_queue_pop("q").has_value()); }},
    {"client_queue_len", [](Store& store) { CHECK(store.queue_len("q") == 4); }},
    {"client_list_keys",
     [](Store& store) {
       CHECK(store.list_keys() == Keys{"a", "p/b"});
     }},
    {"client_barrier", [](Store& store) { store.barrier("b", 4, kSoon); }},
    {"client_barrier_timeout",
     [](Store& store) {
       CHECK(contains(error_of([&] { store.barrier("b", 4, 1ms); }), "timeout: fewer than 4"));
     }},
};

TEST_CASE("the client sends the same bytes as PyTorch's") {
  std::size_t replayed = 0;
  for (const json& vector : test::golden_vectors("client")) {
    const auto call = kCalls.find(vector.at("name"));
    if (call == kCalls.end()) {
      continue;
    }
    CAPTURE(call->first);
    ++replayed;
    const std::string sent = bytes_of(vector, "client_sends_hex");
    const std::string replies = bytes_of(vector, "server_replies_hex");
    const bool answers_late = contains(call->first, "timeout");
    Impostor server([&](Impostor::Socket& socket) {
      Impostor::greet(socket);
      if (answers_late) {
        CHECK(Impostor::read(socket, sent.size()) == sent);
        Impostor::write(socket, replies);
      } else {
        Impostor::write(socket, replies);
        CHECK(Impostor::read(socket, sent.size()) == sent);
      }
      CHECK(Impostor::read_to_end(socket).empty());
    });
    TcpStore store("127.0.0.1", server.port(), kSoon);
    call->second(store);
  }
  CHECK(replayed == kCalls.size());
}

TEST_CASE("a PrefixStore sends the same names as PyTorch's") {
  const std::map<std::string, std::string> prefixes{{"client_prefix_set", "p"},
                                                    {"client_prefix_slash_set", "p/"}};
  std::size_t replayed = 0;
  for (const json& vector : test::golden_vectors("client")) {
    const auto found = prefixes.find(vector.at("name"));
    if (found == prefixes.end()) {
      continue;
    }
    ++replayed;
    const std::string sent = bytes_of(vector, "client_sends_hex");
    Impostor server([&](Impostor::Socket& socket) {
      Impostor::greet(socket);
      CHECK(Impostor::read_to_end(socket) == sent);
    });
    PrefixStore(found->second, std::make_shared<TcpStore>("127.0.0.1", server.port(), kSoon))
        .set("k", "v");
  }
  CHECK(replayed == prefixes.size());
}

}  // namespace
}  // namespace acc::rendezvous
