// SPDX-License-Identifier: Apache-2.0
#include "job/control.hpp"

#include <boost/asio/io_context.hpp>
#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <vector>

using namespace acc::launcher;
using namespace std::chrono_literals;

namespace {

constexpr std::chrono::milliseconds kLong{60'000};

struct Heard {
  std::vector<std::string> messages;
  std::string broken;
};

/// Returns the events of a Control that receives `said`, and then the end of the input or nothing.
Heard listen(const std::string& said, std::chrono::milliseconds silence = kLong,
             bool hangs_up = true, std::chrono::milliseconds suspended = 0ms) {
  std::array<int, 2> ends{};
  REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
  acc::UniqueFd in(ends[1]);
  REQUIRE(::write(in.get(), said.data(), said.size()) == static_cast<ssize_t>(said.size()));
  if (hangs_up) {
    in.reset();
  }
  boost::asio::io_context io(1);
  Heard heard;
  job::Control control(io.get_executor(), acc::UniqueFd(ends[0]),
                       {[&](const auto& message) {
                          heard.messages.push_back(remote_launch::control::encode(message));
                        },
                        [&](const auto& reason) { heard.broken = reason; }},
                       silence);
  std::this_thread::sleep_for(suspended);
  io.run();
  return heard;
}

const std::string kBroken = "the connection to the launcher that started this one";

}  // namespace

TEST_CASE("control: messages are received until the end of the input") {
  const Heard heard = listen("from node0\nbeat\nsignal 10\nbeat\ninsist\nend 2 no\n");
  CHECK(heard.messages == std::vector<std::string>{"signal 10\n", "insist\n", "end 2 no\n"});
  CHECK(heard.broken == kBroken + " (node0) is broken");
}

TEST_CASE("control: an incomplete last line is ignored") {
  const Heard heard = listen("beat\nsignal 1");
  CHECK(heard.messages.empty());
  CHECK(heard.broken == kBroken + " is broken");
}

TEST_CASE("control: an invalid line breaks the connection and is quoted") {
  CHECK(listen("beat\nhello\nsignal 15\n").messages.empty());
  CHECK(listen("beat\nhello\n").broken ==
        kBroken + " is broken: received 'hello', which is not a control message");
  CHECK(listen(std::string(2 * remote_launch::control::kMaxLine, 'x')).broken ==
        kBroken + " is broken: received a line of more than 4096 bytes");
}

TEST_CASE("control: a missing heartbeat breaks the connection") {
  CHECK(listen("from node0\nbeat\n", 1ms, false).broken ==
        kBroken + " (node0) is broken: no heartbeat for 0.001 s (timeout)");
}

TEST_CASE("control: time in which this launcher was suspended does not count") {
  std::string said = "from node0\n";
  while (said.size() < 2 * remote_launch::control::kMaxLine) {  // more than one read returns
    said += "beat\n";
  }
  const Heard heard = listen(said + "signal 10\n", 20ms, false, 40ms);
  CHECK(heard.messages == std::vector<std::string>{"signal 10\n"});
  CHECK(heard.broken == kBroken + " (node0) is broken: no heartbeat for 0.02 s (timeout)");
}

TEST_CASE("control: a stopped sender need not send heartbeats") {
  const Heard heard = listen("signal " + std::to_string(SIGTSTP) + "\n", 200ms, true);
  CHECK(heard.messages.size() == 1);
  CHECK(heard.broken == kBroken + " is broken");
}
