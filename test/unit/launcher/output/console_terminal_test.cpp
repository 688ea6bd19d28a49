// SPDX-License-Identifier: Apache-2.0
// Colours and the status line on a pseudo-terminal.
#include "output_fixture.hpp"
#include "support/screen.hpp"

#include <doctest/doctest.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <termios.h>

#include <vector>

using namespace acc::launcher;
using namespace acc::test;
using acc::UniqueFd;

namespace {

/// A pseudo-terminal in raw mode with `columns` columns. bytes() returns the bytes written to it.
class Terminal {
 public:
  explicit Terminal(unsigned short columns = 80)
      : screen_(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)) {
    REQUIRE(::grantpt(screen_.get()) == 0);
    REQUIRE(::unlockpt(screen_.get()) == 0);
    program_.reset(::open(::ptsname(screen_.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    REQUIRE(program_);
    termios mode{};
    ::tcgetattr(program_.get(), &mode);
    ::cfmakeraw(&mode);
    ::tcsetattr(program_.get(), TCSANOW, &mode);
    const winsize size{.ws_row = 25, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    ::ioctl(program_.get(), TIOCSWINSZ, &size);
    bytes_ = std::async(std::launch::async, read_all, screen_.get());
  }

  [[nodiscard]] int fd() const { return program_.get(); }

  std::string bytes() {
    program_.reset();  // the reader then gets an end of file
    return bytes_.get();
  }

 private:
  UniqueFd screen_;
  UniqueFd program_;
  std::future<std::string> bytes_;
};

struct Variable {
  Variable(const char* its_name, const char* value) : name(its_name) { ::setenv(name, value, 1); }
  ~Variable() { ::unsetenv(name); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;
  const char* name;
};

output::JobStatus status(int running, int workers) {
  return {running, workers, 0, std::chrono::steady_clock::now()};
}

}  // namespace

TEST_CASE("terminal: colours only on a terminal, and not if NO_COLOR is set") {
  for (const bool wanted : {true, false}) {
    std::optional<Variable> no_colour;
    if (!wanted) {
      no_colour.emplace("NO_COLOR", "1");
    }
    Terminal terminal;
    Fixture f({.out = terminal.fd()});
    output::OutputMux::WorkerEnds ends = f.mux->add_worker(worker(1));
    write_all(ends.out.get(), "hello\n");
    write_all(ends.err.get(), "trouble\n");
    ends = {};
    f.drain();
    CHECK(terminal.bytes() == (wanted ? "\033[33m[1] \033[0mhello\n" : "[1] hello\n"));
    CHECK(f.seen_err.get() == "[1] trouble\n");
  }
}

TEST_CASE("terminal: the status line is below the output, and erased at the end") {
  const Variable kind("TERM", "xterm");
  Terminal terminal;
  Fixture f({.out = terminal.fd(), .err = terminal.fd(), .status_line = true});
  output::OutputMux::WorkerEnds zero = f.mux->add_worker(worker(0));
  output::OutputMux::WorkerEnds one = f.mux->add_worker(worker(1));
  f.mux->set_status(status(2, 2));
  write_all(zero.out.get(), "first\n");
  f.io.poll();
  write_all(one.err.get(), "second\n");
  f.io.poll();
  one = {};
  f.mux->set_status(status(1, 2));
  write_all(zero.out.get(), "10%\r");
  write_all(zero.out.get(), "20%\r");
  f.io.poll();
  zero = {};
  f.drain();
  const std::string bytes = terminal.bytes();
  const std::size_t both = bytes.find("acclaunch: 2 of 2 workers, 0:0");
  const std::size_t first = bytes.find("first");
  const std::size_t one_left = bytes.find("acclaunch: 1 of 2 workers, 0:0");
  REQUIRE(one_left != std::string::npos);
  CHECK(both < first);
  CHECK(first < one_left);
  CHECK(shown(bytes.substr(0, one_left)).ends_with("[0] first\n[1] second\n"));
  CHECK(bytes.find("acclaunch", bytes.find("10%")) > bytes.find("20%\r\n"));
  CHECK(shown(bytes) == "[0] first\n[1] second\n[0] 20%\n");
}

TEST_CASE("terminal: the status line is redrawn below each new line") {
  const Variable kind("TERM", "xterm");
  Terminal terminal(/*columns=*/21);
  Fixture f({.err = terminal.fd(), .status_line = true});
  f.mux->set_status(status(2, 2));
  f.mux->write_stderr("acclaunch: a notice\n");
  f.mux->hide_status();
  f.mux->write_stderr("acclaunch: stopped\n");
  f.mux->set_status(status(2, 2));
  f.mux.reset();  // as after an error
  const std::string bytes = terminal.bytes();
  CHECK(bytes ==
        "acclaunch: 2 of 2 wo\r\033[Kacclaunch: a notice\nacclaunch: 2 of 2 wo\r\033[K"
        "acclaunch: stopped\nacclaunch: 2 of 2 wo\r\033[K");
  CHECK(shown(bytes) == "acclaunch: a notice\nacclaunch: stopped\n");
}

TEST_CASE("terminal: no status line on a dumb terminal, for one worker, or if disabled") {
  struct Case {
    const char* terminal;
    bool wanted;
    int workers;
  };
  for (const Case& c : {Case{"dumb", true, 2}, {"xterm", false, 2}, {"xterm", true, 1}}) {
    const Variable kind("TERM", c.terminal);
    Terminal terminal;
    Fixture f({.err = terminal.fd(), .status_line = c.wanted});
    f.mux->set_status(status(c.workers, c.workers));
    f.drain();
    CHECK(terminal.bytes().empty());
  }
}
