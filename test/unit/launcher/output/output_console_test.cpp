// SPDX-License-Identifier: Apache-2.0
// Output of the workers if the console has no reader, or a disk is full.
#include "output_fixture.hpp"
#include "support/temporary_folder.hpp"

#include <doctest/doctest.h>
#include <poll.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <sstream>

using namespace acc::launcher;
using namespace acc::test;
using acc::UniqueFd;

namespace {

/// Collects the arguments of `on_lost`.
struct Losses {
  std::vector<std::pair<bool, int>> seen;

  output::OutputMux::Options options() {
    return {.on_lost = [this](const output::Lost& lost) {
      seen.emplace_back(lost.is_stderr, lost.error);
    }};
  }
};

using Seen = std::vector<std::pair<bool, int>>;

/// Opens /dev/full, which behaves as a file on a full disk.
UniqueFd full() {
  return UniqueFd(::open("/dev/full", O_WRONLY | O_CLOEXEC));
}

std::string lines(int count) {
  std::string text;
  for (int number = 0; number < count; ++number) {
    text += "line " + std::to_string(number) + "\n";
  }
  return text;
}

std::string with_prefix(const std::string& prefix, const std::string& text) {
  std::istringstream in(text);
  std::string out;
  for (std::string line; std::getline(in, line);) {
    out += prefix + line + "\n";
  }
  return out;
}

struct IgnoredPipeSignal {
  void (*before)(int) = std::signal(SIGPIPE, SIG_IGN);
  ~IgnoredPipeSignal() { std::signal(SIGPIPE, before); }
};

}  // namespace

TEST_CASE("console: a closed reader is detected even if no worker writes") {
  const IgnoredPipeSignal ignored;
  for (const bool is_stderr : {false, true}) {
    Losses losses;
    Pipe console;
    output::OutputMux::Options options = losses.options();
    (is_stderr ? options.err : options.out) = console.write.get();
    Fixture f(options);
    const output::OutputMux::WorkerEnds silent = f.mux->add_worker(worker(0));
    f.io.poll();
    CHECK(losses.seen.empty());
    console.read.reset();
    while (losses.seen.empty()) {
      f.io.run_one();
    }
    f.mux->write_stderr("still there\n");
    f.drain();
    CHECK(losses.seen == Seen{{is_stderr, EPIPE}});
  }
}

TEST_CASE("console: drain() does not wait for a slow reader, flushed() does") {
  Fixture f({}, /*read_out=*/false);
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0));
  const std::string text = lines(6'000);  // fits into a pipe
  write_all(ends.out.get(), text);
  f.io.poll();
  write_all(ends.out.get(), text);
  f.io.poll();
  write_all(ends.out.get(), text);
  ends = {};
  f.mux->drain();
  f.mux->write_stderr("the report\n");
  f.seen_out = std::async(std::launch::async, read_all, f.out.read.get());
  f.drain();
  CHECK((f.seen_out.get() == with_prefix("[0] ", text + text + text)));
  CHECK(f.seen_err.get() == "the report\n");
}

TEST_CASE("console: a process that keeps writing does not delay the end") {
  const IgnoredPipeSignal ignored;
  Fixture f;
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0));
  std::atomic<bool> begun = false;
  std::jthread stranger([&] {
    while (::write(ends.out.get(), "again\n", 6) > 0) {
      begun = true;
      begun.notify_one();
    }
  });
  begun.wait(false);
  f.drain();
  stranger.join();
  CHECK(f.seen_out.get().starts_with("[0] again\n"));
}

TEST_CASE("console: a full disk is reported on the other stream, and the job continues") {
  const acc::test::TemporaryFolder folder;
  for (const bool is_stderr : {false, true}) {
    CAPTURE(is_stderr);
    const UniqueFd disk = full();
    const std::string path = (folder.path() / (is_stderr ? "err" : "out")).string();
    const output::StreamTarget tee{.file = path};
    const output::StreamTarget plain;
    Losses losses;
    output::OutputMux::Options options = losses.options();
    (is_stderr ? options.err : options.out) = disk.get();
    Fixture f(options);
    output::OutputMux::WorkerEnds ends = f.mux->add_worker(
        worker(3, {.out = is_stderr ? plain : tee, .err = is_stderr ? tee : plain}));
    UniqueFd& lost = is_stderr ? ends.err : ends.out;
    UniqueFd& other = is_stderr ? ends.out : ends.err;
    f.drain_after([&] {
      write_all(lost.get(), lines(50'000));
      write_all(other.get(), "all well\n");
      ends = {};
    });
    const std::string seen = (is_stderr ? f.seen_out : f.seen_err).get();
    const std::string notice = std::string("acclaunch: cannot write to ") +
                               (is_stderr ? "stderr" : "stdout") +
                               ": No space left on device; its further output is dropped\n";
    CHECK(seen == notice + "[3] all well\n");
    CHECK(losses.seen == Seen{{is_stderr, ENOSPC}});
    CHECK((file_text(path) == lines(50'000)));
  }
}

TEST_CASE("console: only the file on the full disk is ended") {
  Fixture f;
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0, {.out = {.file = "/dev/full"}}));
  f.drain_after([&] {
    write_all(ends.out.get(), lines(50'000));
    ends = {};
  });
  CHECK(f.seen_err.get() ==
        "acclaunch: cannot write /dev/full: No space left on device; this file gets no further "
        "output\n");
  CHECK((f.seen_out.get() == with_prefix("[0] ", lines(50'000))));
}

TEST_CASE("console: files are still written after the console's reader has gone") {
  const IgnoredPipeSignal ignored;
  const acc::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "out").string();
  Fixture f({}, /*read_out=*/false);
  f.out.read.reset();
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0, {.out = {.file = path}}));
  f.drain_after([&] {
    write_all(ends.out.get(), lines(50'000));
    ends = {};
  });
  CHECK((file_text(path) == lines(50'000)));
}

TEST_CASE("console: a launcher without stdout drops the output for it") {
  Fixture f({.out = -1});
  output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(0));
  f.drain_after([&] {
    write_all(ends.out.get(), lines(50'000));
    write_all(ends.err.get(), "here\n");
    ends = {};
  });
  CHECK(f.seen_err.get() == "[0] here\n");
}

TEST_CASE("console: filtered lines of all ranks go to one file") {
  const acc::test::TemporaryFolder folder;
  const std::string path = (folder.path() / "filtered_stdout.log").string();
  const output::WorkerTargets targets{.out = {.filter = {{"loss", "err"}, path}}};
  Fixture f;
  output::OutputMux::WorkerEnds zero = f.mux->add_worker(worker(0, targets));
  output::OutputMux::WorkerEnds one = f.mux->add_worker(worker(1, targets));
  output::OutputMux::WorkerEnds bare = f.mux->add_worker({2, "", targets});
  write_all(zero.out.get(), "loss 1\nnothing\nan error\nlo");
  write_all(zero.out.get(), "ss 2");
  write_all(zero.err.get(), "loss 3\n");
  write_all(one.out.get(), "loss 1\n");
  write_all(bare.out.get(), "\rloss of two\n");
  zero = {};
  one = {};
  bare = {};
  f.drain();
  CHECK(file_text(path) == "[0] loss 1\n[0] an error\n[0] loss 2\n[1] loss 1\nloss of two\n");
  CHECK(f.seen_out.get() ==
        "[0] loss 1\n[0] nothing\n[0] an error\n[0] loss 2\n[1] loss 1\n\rloss of two\n");
}

TEST_CASE("console: equal lines of several ranks are shown once") {
  Fixture f({.folds_lines = true});
  std::vector<output::OutputMux::WorkerEnds> workers;
  for (int rank = 0; rank < 4; ++rank) {
    workers.push_back(f.mux->add_worker(worker(rank)));
  }
  for (int rank = 0; rank < 4; ++rank) {
    const auto own = static_cast<std::size_t>(rank);
    write_all(workers[own].out.get(), "start\nrank " + std::to_string(rank) + "\n");
    write_all(workers[own].err.get(), rank % 2 == 0 ? "even\n" : "odd\n");
  }
  workers.clear();
  f.drain();
  CHECK(f.seen_out.get() == "[0-3] start\n[0] rank 0\n[1] rank 1\n[2] rank 2\n[3] rank 3\n");
  CHECK(f.seen_err.get() == "[0,2] even\n[1,3] odd\n");
}

TEST_CASE("console: a line of only one rank is shown while the workers still run") {
  Fixture f({.folds_lines = true}, /*read_out=*/false);
  const output::OutputMux::WorkerEnds zero = f.mux->add_worker(worker(0));
  const output::OutputMux::WorkerEnds one = f.mux->add_worker(worker(1));
  write_all(zero.out.get(), "alone\n");
  for (pollfd out{f.out.read.get(), POLLIN, 0}; ::poll(&out, 1, 0) == 0;) {
    f.io.run_one();
  }
  f.drain();
  CHECK(read_all(f.out.read.get()) == "[0] alone\n");
}

TEST_CASE("console: a prompt is shown before its line ends") {
  Pipe console;
  ::fcntl(console.read.get(), F_SETFL, O_NONBLOCK);
  output::OutputMux::Options options;
  options.out = console.write.get();
  Fixture f(options);
  std::string seen;
  const auto run_until = [&](const std::string& text) {
    while (!contains(seen, text)) {
      f.io.run_one();
      seen += read_all(console.read.get());
    }
  };
  output::WorkerOutput asking = worker(0);
  asking.prompts = true;
  const output::OutputMux::WorkerEnds first = f.mux->add_worker(asking);
  const output::OutputMux::WorkerEnds second = f.mux->add_worker(worker(1));
  write_all(first.out.get(), "line\nname? ");
  run_until("name? ");
  write_all(first.out.get(), "hello\n");
  run_until("hello\n");
  write_all(first.out.get(), "age? ");
  run_until("age? ");
  write_all(second.out.get(), "half");  // not a prompt
  write_all(second.out.get(), " a line\n");
  run_until("a line\n");
  write_all(first.out.get(), "old\n");
  run_until("old\n");
  CHECK(seen == "[0] line\n[0] name? hello\n[0] age? \n[1] half a line\n[0] old\n");
}
