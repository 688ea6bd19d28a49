// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/unique_fd.hpp"
#include "output/output_mux.hpp"
#include "support/text.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <future>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace acc::test {

struct Pipe {
  UniqueFd read;
  UniqueFd write;
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
};

inline void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    REQUIRE(count > 0);
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
}

inline std::string read_all(int fd) {
  std::string all;
  std::array<char, 65536> chunk{};
  for (ssize_t count = 0; (count = ::read(fd, chunk.data(), chunk.size())) > 0;) {
    all.append(chunk.data(), static_cast<std::size_t>(count));
  }
  return all;
}

inline boost::asio::awaitable<void> end_of(launcher::output::OutputMux& mux) {
  mux.drain();
  co_await mux.flushed();
}

/// Parameters of a worker whose lines have its rank as prefix.
inline launcher::output::WorkerOutput worker(int rank,
                                             const launcher::output::WorkerTargets& targets = {}) {
  return {rank, "[" + std::to_string(rank) + "] ", targets};
}

/// An OutputMux that writes to pipes of the test. `out` and `err` replace the launcher's stdout and
/// stderr, unless the options give other descriptors. Threads read them.
struct Fixture {
  Pipe out;
  Pipe err;
  std::future<std::string> seen_out;
  std::future<std::string> seen_err = std::async(std::launch::async, read_all, err.read.get());
  boost::asio::io_context io{1};
  std::optional<launcher::output::OutputMux> mux;

  explicit Fixture(launcher::output::OutputMux::Options options = {}, bool read_out = true) {
    if (read_out) {
      seen_out = std::async(std::launch::async, read_all, out.read.get());
    }
    options.out = options.out == STDOUT_FILENO ? out.write.get() : options.out;
    options.err = options.err == STDERR_FILENO ? err.write.get() : options.err;
    mux.emplace(io.get_executor(), options);
  }

  ~Fixture() { close(); }  // otherwise the readers would wait for ever

  void close() {
    mux.reset();
    out.write.reset();
    err.write.reset();
  }

  /// Runs the loop until all output is written. All writers must have finished.
  void drain() {
    boost::asio::co_spawn(io, end_of(*mux), boost::asio::detached);
    io.run();
    close();
  }

  /// Runs the loop until `writers_end`, called in another thread, has returned and all output is
  /// written.
  template <typename WritersEnd>
  void drain_after(const WritersEnd& writers_end) {
    const std::jthread waiter([this, &writers_end] {
      writers_end();
      boost::asio::co_spawn(io, end_of(*mux), boost::asio::detached);
    });
    io.run();
    close();
  }
};

}  // namespace acc::test
