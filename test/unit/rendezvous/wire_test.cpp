// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"
#include "wire/request_decoder.hpp"

namespace acc::rendezvous {
namespace {

using test::encoded;
using wire::Opcode;
using wire::Request;
using wire::RequestDecoder;

const std::vector<Request> kOneOfEach{
    {.opcode = Opcode::validate, .number = wire::kMagic},
    {.opcode = Opcode::set, .keys = {"/k"}, .values = {"value"}},
    {.opcode = Opcode::compare_set, .keys = {"/k"}, .values = {"old", ""}},
    {.opcode = Opcode::get, .keys = {""}},
    {.opcode = Opcode::add, .keys = {"/n"}, .number = -3},
    {.opcode = Opcode::check, .keys = {"/a", "/b"}},
    {.opcode = Opcode::wait},
    {.opcode = Opcode::num_keys},
    {.opcode = Opcode::delete_key, .keys = {"/k"}},
    {.opcode = Opcode::append, .keys = {"/k"}, .values = {std::string("\0\xff", 2)}},
    {.opcode = Opcode::multi_get, .keys = {"/a", "/b", "/a"}},
    {.opcode = Opcode::multi_set, .keys = {"/a", "/b"}, .values = {"1", ""}},
    {.opcode = Opcode::cancel_wait},
    {.opcode = Opcode::ping, .number = 0xFFFFFFFF},
    {.opcode = Opcode::queue_push, .keys = {"/q"}, .values = {"x"}},
    {.opcode = Opcode::queue_pop, .keys = {"/q"}},
    {.opcode = Opcode::queue_len, .keys = {"/q"}},
    {.opcode = Opcode::list_keys},
    {.opcode = Opcode::barrier, .keys = {"/b"}, .number = 4},
};

std::string count(std::uint64_t value) {
  std::string bytes;
  wire::put_i64(bytes, static_cast<std::int64_t>(value));
  return bytes;
}

/// Feeds bytes in pieces to a decoder and collects the requests.
class Stream {
 public:
  void feed(std::string_view bytes) { received_.append(bytes); }

  std::optional<Request> next() {
    std::string_view rest = received_;
    if (const auto request = decoder_.next(rest)) {
      Request copy = request->copy();
      received_.erase(0, received_.size() - rest.size());
      return copy;
    }
    return std::nullopt;
  }

  std::string& received() { return received_; }

 private:
  RequestDecoder decoder_;
  std::string received_;
};

TEST_CASE("every request is decoded from its bytes, split at every position") {
  REQUIRE(kOneOfEach.size() == wire::kShapes.size());
  for (const Request& request : kOneOfEach) {
    const std::string bytes = encoded(request);
    CAPTURE(static_cast<int>(request.opcode));
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      Stream stream;
      stream.feed(std::string_view(bytes).substr(0, cut));
      CHECK_FALSE(stream.next());
      stream.feed(std::string_view(bytes).substr(cut));
      CHECK(stream.next() == request);
      CHECK_FALSE(stream.next());
    }
  }
}

TEST_CASE("a stream of requests is decoded byte by byte") {
  std::string bytes;
  for (const Request& request : kOneOfEach) {
    wire::encode(request, bytes);
  }
  Stream stream;
  std::vector<Request> decoded;
  for (const char byte : bytes) {
    stream.feed(std::string_view(&byte, 1));
    while (auto request = stream.next()) {
      decoded.push_back(*request);
    }
  }
  CHECK(decoded == kOneOfEach);
}

TEST_CASE("the parsed part of an incomplete request is never parsed again") {
  Request request{.opcode = Opcode::multi_set};
  std::string bytes = "\x0b" + count(1000);
  std::string spoilt = bytes;  // same size, with other lengths inside
  for (int i = 0; i < 1000; ++i) {
    request.keys.push_back("/k" + std::to_string(i));
    request.values.emplace_back(static_cast<std::size_t>(i % 50), 'v');
    bytes += count(request.keys.back().size()) + request.keys.back();
    bytes += count(request.values.back().size()) + request.values.back();
    spoilt += count(~std::uint64_t{0}) + request.keys.back();
    spoilt += count(~std::uint64_t{0}) + request.values.back();
  }
  Stream stream;
  constexpr std::size_t kPiece = 100;
  std::size_t pieces = 0;
  for (std::size_t at = 0; at < bytes.size(); at += kPiece, ++pieces) {
    stream.feed(std::string_view(bytes).substr(at, kPiece));
    const auto whole = stream.next();
    CHECK(whole.has_value() == (at + kPiece >= bytes.size()));
    if (whole) {
      CHECK(*whole == request);
    }
    // The incomplete field is parsed when the next piece has completed it.
    const std::size_t surely_read = at < 2 * kPiece ? 0 : at - 2 * kPiece;
    if (!whole) {
      stream.received().replace(0, surely_read, spoilt, 0, surely_read);
    }
  }
  CHECK(pieces > 300);
}

TEST_CASE("limits are exact") {
  const Request longest{.opcode = Opcode::set,
                        .keys = {std::string(wire::kMaxKeyBytes, 'k')},
                        .values = {std::string(wire::kMaxValueBytes, 'v')}};
  Stream stream;
  stream.feed(encoded(longest));
  CHECK(stream.next() == longest);

  Request most{.opcode = Opcode::check, .keys = std::vector<std::string>(wire::kMaxKeys)};
  stream.feed(encoded(most));
  CHECK(stream.next() == most);
}

TEST_CASE("a string beyond its limit is refused before its bytes arrive") {
  struct Case {
    std::string bytes;
    std::string reason;
  };
  const std::string key = count(1) + "k";
  for (const Case& each : std::vector<Case>{
           {"\x13", "no command 19"},
           {"\xff", "no command 255"},
           {"\x03" + count(wire::kMaxKeyBytes + 1), "a key of 8193 bytes"},
           {"\x03" + count(~std::uint64_t{0}), "a key of 18446744073709551615 bytes"},
           {"\x01" + key + count(wire::kMaxValueBytes + 1), "a value of 8388609 bytes"},
           {"\x06" + count(wire::kMaxKeys + 1), "131073 keys"},
           {"\x0b" + count(~std::uint64_t{0}), "18446744073709551615 keys"},
           {"\x0b" + count(1) + key + count(wire::kMaxValueBytes + 1), "a value of 8388609 bytes"},
       }) {
    Stream stream;
    stream.feed(each.bytes);
    const std::string error = test::error_of([&] { stream.next(); });
    CAPTURE(error);
    CHECK(test::contains(error, "protocol: "));
    CHECK(test::contains(error, each.reason));
  }
}

TEST_CASE("a request beyond the frame limit is refused before its bytes arrive") {
  const std::string frame = encoded({.opcode = Opcode::set, .keys = {"/k"}, .values = {"value"}});
  RequestDecoder exact(frame.size());
  std::string_view rest = frame;
  CHECK(exact.next(rest));
  RequestDecoder tight(frame.size() - 1);
  rest = std::string_view(frame).substr(0, frame.size() - 5);
  CHECK(test::contains(test::error_of([&] { tight.next(rest); }),
                       "protocol: a request of more than 23 bytes"));
}

TEST_CASE("the encoder refuses what a server would refuse") {
  std::string out;
  const auto error = [&](Request request) {
    return test::error_of([&] { wire::encode(request, out); });
  };
  CHECK(test::contains(
      error({.opcode = Opcode::get, .keys = {std::string(wire::kMaxKeyBytes + 1, 'k')}}),
      "invalid_argument: a store key may have at most 8192 bytes, this one has 8193"));
  CHECK(test::contains(error({.opcode = Opcode::set,
                              .keys = {"k"},
                              .values = {std::string(wire::kMaxValueBytes + 1, 'v')}}),
                       "a store value may have at most 8388608 bytes"));
  CHECK(test::contains(
      error({.opcode = Opcode::wait, .keys = std::vector<std::string>(wire::kMaxKeys + 1)}),
      "131072 keys"));
}

}  // namespace
}  // namespace acc::rendezvous
