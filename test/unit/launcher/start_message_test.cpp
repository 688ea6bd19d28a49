#include "start/start_message.hpp"

#include "acc/base/error.hpp"
#include "acc/base/unique_fd.hpp"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>

using namespace acc::launcher;
using acc::Errc;
using acc::Error;

namespace {

constexpr std::chrono::milliseconds kLimit{20'000};

const StartMessage kMessage{
    .working_directory = "/some where",
    .arguments = {"torchrun", "--nnodes", "", "it's \"$HOME\"\n\xff"},
    .environment = {{"EMPTY", ""}, {"BYTES", "\x01\xfe=\n"}},
    .machines = {{{"ACC_MACHINE_RANK", "0"}}, {{"ACC_MACHINE_RANK", "1"}}},
};

struct Pipe {
  Pipe() {
    std::array<int, 2> ends{};
    REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
    out.reset(ends[0]);
    in.reset(ends[1]);
  }
  void write(const std::string& bytes) const {
    REQUIRE(::write(in.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()));
  }
  acc::UniqueFd out;
  acc::UniqueFd in;
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

TEST_CASE("a start message leaves what follows it") {
  const Pipe pipe;
  pipe.write(encode(kMessage) + "beat\n");
  CHECK(read_start_message(pipe.out.get(), kLimit) == kMessage);
  std::array<char, 8> rest{};
  CHECK(::read(pipe.out.get(), rest.data(), rest.size()) == 5);
  CHECK(std::string(rest.data()) == "beat\n");
}

TEST_CASE("a start message as a word") {
  const std::string word = encode_word(kMessage);
  CHECK(word.find_first_not_of("0123456789abcdef") == std::string::npos);
  CHECK(decode_word(word) == kMessage);
}

TEST_CASE("every truncation of a start message is a broken connection") {
  const std::string whole = encode(kMessage);
  for (std::size_t size = 0; size < whole.size(); ++size) {
    Pipe pipe;
    pipe.write(whole.substr(0, size));
    pipe.in.reset();
    CAPTURE(size);
    CHECK(code_of([&] { read_start_message(pipe.out.get(), kLimit); }) == Errc::connection);
  }
}

TEST_CASE("a starter that says nothing is not waited for without end") {
  const Pipe pipe;
  CHECK(code_of([&] { read_start_message(pipe.out.get(), std::chrono::milliseconds(1)); }) ==
        Errc::connection);
}

TEST_CASE("what is no start message is not understood") {
  const std::string body = encode(kMessage).substr(encode(kMessage).find('\n') + 1);
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
    CHECK(code_of([&] { read_start_message(pipe.out.get(), kLimit); }) == Errc::protocol);
  }
  for (const std::string word : {"", "a", "a0", "zz", "A0", "-"}) {
    CAPTURE(word);
    CHECK(code_of([&] { decode_word(word); }) == Errc::protocol);
  }
}
