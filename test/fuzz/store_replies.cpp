// SPDX-License-Identifier: Apache-2.0
// Fuzzes the store client with arbitrary replies. Input: the number of calls, the calls, and the
// bytes that the server sends after the handshake before it closes.
#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "input.hpp"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <filesystem>
#include <mutex>
#include <string>
#include <thread>

namespace {

using acc::Errc;
using acc::UniqueFd;
using acc::fuzz::Input;
using acc::fuzz::require;
using acc::rendezvous::TcpStore;
using namespace std::chrono_literals;

/// A server that sends the same bytes to each client and keeps its connection open until the next
/// one.
class Peer {
 public:
  Peer() : path_("/tmp/fuzz_store_replies." + std::to_string(getpid())) {
    sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    listener_.reset(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    require(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0 &&
                listen(listener_.get(), 16) == 0,
            "the peer can listen");
    thread_ = std::thread([this] { serve(); });
  }
  ~Peer() {
    shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
    std::filesystem::remove(path_);
  }

  [[nodiscard]] std::string host() const { return "unix:" + path_; }

  void answer_with(std::string_view replies) {
    const auto nonce = static_cast<std::uint32_t>(getpid());
    const std::lock_guard lock(mutex_);
    replies_.assign(reinterpret_cast<const char*>(&nonce), sizeof nonce);
    replies_.append(replies);
  }

 private:
  void serve() {
    UniqueFd client;
    while (true) {
      UniqueFd next(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!next) {
        return;
      }
      client = std::move(next);
      const std::lock_guard lock(mutex_);
      [[maybe_unused]] const auto sent =
          send(client.get(), replies_.data(), replies_.size(), MSG_NOSIGNAL);
      shutdown(client.get(), SHUT_WR);
    }
  }

  std::string path_;
  UniqueFd listener_;
  std::mutex mutex_;
  std::string replies_;
  std::thread thread_;
};

void call(TcpStore& store, int which) {
  const std::array<std::string, 2> keys{"a", "b"};
  switch (which) {
    case 0: store.get("a", 1ms); break;
    case 1: store.add("a", 1); break;
    case 2: store.check(keys); break;
    case 3: store.wait(keys, 1ms); break;
    case 4: store.compare_set("a", "b", "c"); break;
    case 5: store.delete_key("a"); break;
    case 6: store.num_keys(); break;
    case 7: store.list_keys(); break;
    case 8: store.multi_get(keys, 1ms); break;
    case 9: store.queue_pop("a", 1ms); break;
    case 10: store.try_queue_pop("a"); break;
    case 11: store.queue_len("a"); break;
    case 12: store.barrier("a", 2, 1ms); break;
    case 13: store.ping(); break;
    default: {
      auto batch = store.pipeline();
      batch.get("a");
      batch.add("a", 1);
      batch.check(keys);
      batch.compare_set("a", "b", "c");
      batch.run(1'000ms);
      break;
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Peer peer;
  Input input(data, size);
  const std::string_view calls = input.take(static_cast<std::size_t>(input.below(8)));
  peer.answer_with(input.rest());
  TcpStore store(peer.host(), 0, 10s);
  bool lost = false;
  for (const char each : calls) {
    try {
      call(store, static_cast<unsigned char>(each) % 15);
      require(!lost, "a call on a lost connection fails");
    } catch (const acc::Error& error) {
      require(error.code() == Errc::connection || error.code() == Errc::protocol ||
                  (error.code() == Errc::timeout && !lost),
              "a call returns or throws one of its documented errors");
      lost = lost || error.code() != Errc::timeout;
    }
  }
  return 0;
}
