// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/start_message.hpp"

#include "acc/base/error.hpp"
#include "support/pipe.hpp"

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <string>

using namespace acc::launcher;
using acc::Errc;
using acc::Error;
using acc::test::Pipe;

namespace {

constexpr std::chrono::milliseconds kLimit{20'000};

const remote_launch::StartMessage kMessage{
    .working_directory = "/some where",
    .arguments = {"torchrun", "--nnodes", "", "it's \"$HOME\"\n\xff"},
    .environment = {{"EMPTY", ""}, {"BYTES", "\x01\xfe=\n"}},
    .machines = {{{"ACC_MACHINE_RANK", "0"}}, {{"ACC_MACHINE_RANK", "1"}}},
};

Errc code_of(const auto& body) {
  try {
    body();
  } catch (const Error& error) {
    CHECK(std::string(error.what()).find("started") != std::string::npos);
    return error.code();
  }
  return Errc::internal;
}

}  // namespace

TEST_CASE("reading a start message leaves the bytes after it") {
  const Pipe pipe;
  pipe.write(remote_launch::encode(kMessage) + "beat\n");
  CHECK(remote_launch::read_start_message(pipe.out.get(), kLimit) == kMessage);
  std::array<char, 8> rest{};
  CHECK(::read(pipe.out.get(), rest.data(), rest.size()) == 5);
  CHECK(std::string(rest.data()) == "beat\n");
}

TEST_CASE("every truncated start message is a broken connection") {
  const std::string whole = remote_launch::encode(kMessage);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    Pipe pipe;
    pipe.write(whole.substr(0, size));
    pipe.in.reset();
    CAPTURE(size);
    CHECK(code_of([&] { remote_launch::read_start_message(pipe.out.get(), kLimit); }) ==
          Errc::connection);
  }
}

TEST_CASE("waiting for a start message has a time limit") {
  const Pipe pipe;
  CHECK(code_of([&] {
          remote_launch::read_start_message(pipe.out.get(), std::chrono::milliseconds(1));
        }) == Errc::connection);
}

TEST_CASE("other data than a start message is rejected") {
  const std::string body =
      remote_launch::encode(kMessage).substr(remote_launch::encode(kMessage).find('\n') + 1);
  const std::string size = std::to_string(body.size());
  for (const std::string& bytes :
       {std::string("\n"), std::string("beat\n"), std::string(500, 'x'),
        "acclaunch-start 2 " + size + "\n" + body, "acclaunch-start 1 x\n" + body,
        "acclaunch-start 1 -1\n" + body, "acclaunch-start 1 99999999999999999999\n" + body,
        std::string("acclaunch-start 1 0\n"), std::string("acclaunch-start 1 1\n\xff"),
        std::string("acclaunch-start 1 1\n\xa0"),
        "acclaunch-start 1 " + std::to_string(body.size() - 1) + "\n" + body}) {
    CAPTURE(bytes);
    const Pipe pipe;
    pipe.write(bytes);
    CHECK(code_of([&] { remote_launch::read_start_message(pipe.out.get(), kLimit); }) ==
          Errc::protocol);
  }
}
