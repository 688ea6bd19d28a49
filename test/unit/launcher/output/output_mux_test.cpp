// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "output_fixture.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <map>
#include <sstream>

namespace asio = boost::asio;
using namespace acc::launcher;
using namespace acc::test;
using acc::UniqueFd;
using namespace std::string_literals;

TEST_CASE("output mux: streams stay separate; partial and binary lines are complete") {
  Fixture f;
  output::OutputMux::WorkerEnds zero = f.mux->add_worker(worker(0));
  output::OutputMux::WorkerEnds twelve = f.mux->add_worker(worker(12));
  write_all(zero.out.get(), "hello\n\0\xff binary\nno newline"s);
  write_all(zero.err.get(), "trouble\nlast words");
  write_all(twelve.out.get(), "from twelve\n");
  zero = {};
  twelve = {};
  f.drain();
  const std::string out = f.seen_out.get();
  CHECK(out.find("[0] hello\n[0] \0\xff binary\n"s) != std::string::npos);
  CHECK(out.find("[0] no newline\n") != std::string::npos);
  CHECK(out.find("[12] from twelve\n") != std::string::npos);
  CHECK(f.seen_err.get() == "[0] trouble\n[0] last words\n");
}

TEST_CASE("output mux: output without a prefix is copied unchanged") {
  Fixture f;
  output::OutputMux::WorkerEnds ends = f.mux->add_worker({.rank = 0});
  write_all(ends.out.get(), "10%\r20%\nend");
  ends = {};
  f.drain();
  CHECK(f.seen_out.get() == "10%\r20%\nend");
}

TEST_CASE("output mux: 8 writers of 100,000 lines; no line is split, lost or out of order") {
  constexpr int kWriters = 8;
  constexpr int kLines = 100'000;
  Fixture f;
  std::vector<std::jthread> writers;
  for (int rank = 0; rank < kWriters; ++rank) {
    writers.emplace_back([ends = f.mux->add_worker(worker(rank)), rank] {
      std::string block;
      for (int line = 0; line < kLines; ++line) {
        block += "rank " + std::to_string(rank) + " line " + std::to_string(line) + "\n";
        if (block.size() > static_cast<std::size_t>(1000 * (rank + 1))) {
          write_all(ends.out.get(), block);
          block.clear();
        }
      }
      write_all(ends.out.get(), block);
    });
  }
  f.drain_after([&writers] { writers.clear(); });
  std::istringstream out(f.seen_out.get());
  std::map<int, int> next;
  int wrong = 0;
  for (std::string line; std::getline(out, line);) {
    int prefix = -1;
    int rank = -1;
    int number = -1;
    std::sscanf(line.c_str(), "[%d] rank %d line %d", &prefix, &rank, &number);
    wrong += prefix != rank || number != next[rank] ? 1 : 0;
    ++next[rank];
  }
  CHECK(wrong == 0);
  CHECK(next.size() == kWriters);
  for (const auto& [rank, count] : next) {
    CHECK(count == kLines);
  }
}

TEST_CASE("output mux: a pipe that is still open in a process does not delay the end") {
  Fixture f;
  const output::OutputMux::WorkerEnds held = f.mux->add_worker(worker(3));
  write_all(held.err.get(), "before the end");
  f.drain();
  CHECK(f.seen_err.get() == "[3] before the end\n");
}

TEST_CASE("output mux: workers get EPIPE after the reader has gone") {
  Fixture f({}, /*read_out=*/false);
  const auto pipe_before = std::signal(SIGPIPE, SIG_IGN);
  f.out.read.reset();
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0));
  std::jthread writer([&ends] {
    const std::string line(1000, '\n');
    ssize_t count = 0;
    while ((count = ::write(ends.out.get(), line.data(), line.size())) > 0) {
    }
    write_all(ends.err.get(), errno == EPIPE ? "closed\n" : "no error\n");
    ends = {};
  });
  f.drain_after([&writer] { writer.join(); });
  std::signal(SIGPIPE, pipe_before);
  CHECK(f.seen_err.get() == "[0] closed\n");
}

TEST_CASE("output mux: a reader that stops reading blocks the writers, not the loop") {
  for (const bool is_own : {true, false}) {
    CAPTURE(is_own);
    Pipe out;
    Pipe err;
    std::string expected;
    std::future<std::string> seen;
    {
      asio::io_context io(1);
      bool lost = false;
      const output::OutputMux::Options options{
          .out = out.write.get(), .err = err.write.get(), .on_lost = [&lost](const output::Lost&) {
            lost = true;
          }};
      // The mux cannot reopen a pipe of another user. A different effective user ID simulates that
      // where the test may set one.
      const bool changed = !is_own && ::seteuid(65534) == 0;
      output::OutputMux mux(io.get_executor(), options);
      REQUIRE((!changed || ::seteuid(0) == 0));
      output::OutputMux::WorkerEnds ends = mux.add_worker(worker(0));
      const std::string line = std::string(999, 'x') + "\n";
      // Nothing reads `out`: the worker's pipe finally stays full although the loop runs.
      for (pollfd pipe{ends.out.get(), POLLOUT, 0}; ::poll(&pipe, 1, 0) == 1; io.poll()) {
        REQUIRE(expected.size() < 10'000'000);
        write_all(ends.out.get(), line);
        expected += "[0] " + line;
      }
      CHECK(expected.size() > 100'000);
      CHECK_FALSE(lost);
      CHECK((::fcntl(out.write.get(), F_GETFL) & O_NONBLOCK) == 0);  // shared with other processes
      ends = {};
      seen = std::async(std::launch::async, read_all, out.read.get());
      asio::co_spawn(io, end_of(mux), asio::detached);
      io.run();
    }
    out.write.reset();
    CHECK((seen.get() == expected));
  }
}

TEST_CASE("output mux: sockets and files as output") {
  std::array<int, 2> pair{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair.data()) == 0);
  UniqueFd socket(pair[0]);
  const UniqueFd peer(pair[1]);
  std::FILE* file = std::tmpfile();
  REQUIRE(file != nullptr);
  {
    asio::io_context io(1);
    output::OutputMux mux(io.get_executor(), {socket.get(), ::fileno(file)});
    output::OutputMux::WorkerEnds ends = mux.add_worker(worker(1));
    write_all(ends.out.get(), "to the socket\n");
    write_all(ends.err.get(), "to the file\n");
    ends = {};
    asio::co_spawn(io, end_of(mux), asio::detached);
    io.run();
  }
  CHECK((::fcntl(socket.get(), F_GETFL) & O_NONBLOCK) == 0);
  socket.reset();
  CHECK(read_all(peer.get()) == "[1] to the socket\n");
  ::lseek(::fileno(file), 0, SEEK_SET);
  CHECK(read_all(::fileno(file)) == "[1] to the file\n");
  std::fclose(file);
}

TEST_CASE("output mux: a stream goes to its file, to the console, or to both") {
  const acc::test::TemporaryFolder folder;
  const std::string both = (folder.path() / "both").string();
  const std::string alone = (folder.path() / "alone").string();
  Fixture f;
  output::OutputMux::WorkerEnds zero =
      f.mux->add_worker(worker(0, {.out = {both, true}, .err = {alone, false}}));
  output::OutputMux::WorkerEnds one =
      f.mux->add_worker(worker(1, {.out = {"", false}, .err = {"", true}}));
  write_all(zero.out.get(), "half a ");
  write_all(zero.out.get(), "line\n");
  write_all(zero.err.get(), "first\nlast\n");
  write_all(one.out.get(), "nobody reads this\n");
  zero = {};
  one = {};
  asio::co_spawn(f.io, end_of(*f.mux), asio::detached);
  f.io.run();
  CHECK(f.mux->last_stderr_lines(0) == std::vector<std::string>{"first", "last"});
  f.close();
  CHECK(f.seen_out.get() == "[0] half a line\n");
  CHECK(f.seen_err.get().empty());
  CHECK(file_text(both) == "half a line\n");
  CHECK(file_text(alone) == "first\nlast\n");
}

TEST_CASE("output mux: the last lines of a worker are those of its last attempt") {
  Fixture f;
  for (const char* words : {"first attempt\n", "second attempt\n"}) {
    output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(3));
    write_all(ends.err.get(), words);
    ends = {};
    asio::co_spawn(f.io, end_of(*f.mux), asio::detached);
    f.io.restart();
    f.io.run();
    CHECK(f.mux->last_stderr_lines(3) ==
          std::vector<std::string>{std::string(words, std::strlen(words) - 1)});
  }
  f.close();
  CHECK(f.seen_err.get() == "[3] first attempt\n[3] second attempt\n");
}

TEST_CASE("output mux: a worker gets another rank, and its next lines have its prefix") {
  Fixture f;
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(3));
  write_all(ends.out.get(), "before\n");
  write_all(ends.err.get(), "early\n");
  f.mux->rename(3, 1, "[1] ");
  write_all(ends.out.get(), "behind\n");
  write_all(ends.err.get(), "late\n");
  ends = {};
  f.mux->catch_up(1);
  CHECK(f.mux->last_stderr_lines(1) == std::vector<std::string>{"early", "late"});
  f.drain();
  CHECK(f.seen_out.get() == "[3] before\n[1] behind\n");
}

TEST_CASE("output mux: a file that cannot be written is an error") {
  Fixture f;
  CHECK_THROWS_WITH_AS(f.mux->add_worker(worker(0, {.out = {"/no/such/folder/file", false}})),
                       "cannot write /no/such/folder/file: No such file or directory", acc::Error);
}
