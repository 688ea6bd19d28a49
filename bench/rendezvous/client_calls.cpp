// SPDX-License-Identifier: Apache-2.0
// Measures the store client: calls the store at 127.0.0.1:PORT from one thread, COUNT times per
// type of call, one by one and in batches of BATCH requests (Pipeline). Prints calls per second as
// JSON.
#include "acc/rendezvous/tcp_store.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace {

using namespace std::chrono_literals;
using acc::rendezvous::Pipeline;
using acc::rendezvous::TcpStore;

template <typename Work>
void report(const char* name, int count, bool is_last, Work&& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::printf("\"%s\": %.0f%s", name, count / seconds.count(), is_last ? "}\n" : ", ");
}

template <typename Call>
void one_by_one(const char* name, int count, Call&& call) {
  report(name, count, false, [&] {
    for (int i = 0; i < count; ++i) {
      call();
    }
  });
}

template <typename Call>
void in_batches(TcpStore& store, const char* name, int count, int size, bool is_last, Call&& call) {
  report(name, count, is_last, [&] {
    for (int done = 0; done < count; done += size) {
      Pipeline batch = store.pipeline();
      for (int i = 0; i < std::min(size, count - done); ++i) {
        call(batch);
      }
      batch.run(60s);
    }
  });
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fputs("usage: client_calls PORT COUNT BATCH\n", stderr);
    return 2;
  }
  TcpStore store("127.0.0.1", static_cast<std::uint16_t>(std::atoi(argv[1])), 10s);
  const int count = std::atoi(argv[2]);
  const int size = std::atoi(argv[3]);
  const std::string value(64, 'v');
  store.set("k", value);
  std::printf("{");
  one_by_one("set", count, [&] { store.set("k", value); });
  one_by_one("get", count, [&] { store.get("k", 10s); });
  one_by_one("add", count, [&] { store.add("n", 1); });
  in_batches(store, "pipelined set", count, size, false,
             [&](auto& batch) { batch.set("k", value); });
  in_batches(store, "pipelined get", count, size, false, [&](auto& batch) { batch.get("k"); });
  in_batches(store, "pipelined add", count, size, true, [&](auto& batch) { batch.add("n", 1); });
}
