// The agent protocol in both directions. Input: what one side sends, without the hello.
#include "acc/base/error.hpp"
#include "input.hpp"
#include "rounds/messages.hpp"

#include <optional>
#include <string>

namespace {

using acc::fuzz::require;
namespace rounds = acc::rendezvous::rounds;

/// A message survives its encoding, and no beginning of its frame is taken for a whole or for
/// wrong.
template <typename Message, typename Take>
void check_message(const Message& message, Take take) {
  std::string frame;
  encode(message, frame);
  for (std::size_t length = 0; length < frame.size(); ++length) {
    std::string_view part = std::string_view(frame).substr(0, length);
    require(!take(part), "a part of a frame is no message");
    require(part.size() == length, "and nothing of it is taken");
  }
  std::string_view whole = frame;
  require(take(whole) == message, "a message is the same after it was sent");
  require(whole.empty(), "its frame is taken whole");
}

template <typename Take>
void check_stream(std::string_view bytes, Take take) {
  try {
    while (const auto message = take(bytes)) {
      check_message(*message, take);
    }
  } catch (const acc::Error& error) {
    require(error.code() == acc::Errc::protocol, "bad bytes are a protocol error");
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_stream(bytes, [](std::string_view& stream) { return rounds::take_agent_message(stream); });
  check_stream(bytes, [](std::string_view& stream) { return rounds::take_server_message(stream); });
  return 0;
}
