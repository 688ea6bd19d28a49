// SPDX-License-Identifier: Apache-2.0
#include "rounds/messages.hpp"

#include "rounds/codec.hpp"

#include <cstring>
#include <utility>

namespace acc::rendezvous::rounds {
namespace {

/// Appends a frame: u32 length, u8 type (the index in the variant), fields.
template <typename Message>
void encode_frame(const Message& message, std::string& out) {
  const std::size_t begin = out.size();  // the length is filled in at the end
  Writer writer(out);
  writer(std::uint32_t{0}, message);
  const auto size = static_cast<std::uint32_t>(out.size() - begin - sizeof(std::uint32_t));
  std::memcpy(out.data() + begin, &size, sizeof size);
}

template <typename Message>
std::optional<Message> take_frame(std::string_view& bytes, std::size_t limit) {
  constexpr std::size_t kNumTypes = std::variant_size_v<Message>;
  std::uint32_t size = 0;
  if (bytes.size() < sizeof size) {
    return std::nullopt;
  }
  std::memcpy(&size, bytes.data(), sizeof size);
  if (size == 0 || size > limit) {
    throw Error(Errc::protocol,
                fmt::format("a message of {} bytes, expected 1 to {}", size, limit));
  }
  // The type is checked as soon as its byte is there, before the rest of a wrong frame is buffered.
  Reader reader(bytes.substr(sizeof size, size));
  if (bytes.size() == sizeof size) {
    return std::nullopt;
  }
  const std::uint8_t type = reader.take_byte(kNumTypes - 1);
  if (bytes.size() < sizeof size + size) {
    return std::nullopt;
  }
  std::optional<Message> message(std::in_place);
  reader.take_alternative(type, *message);
  reader.expect_end();
  check(*message);
  bytes.remove_prefix(sizeof size + size);
  return message;
}

}  // namespace

void encode(const AgentMessage& message, std::string& out) {
  encode_frame(message, out);
}

void encode(const ServerMessage& message, std::string& out) {
  encode_frame(message, out);
}

std::optional<AgentMessage> take_agent_message(std::string_view& bytes, std::size_t limit) {
  return take_frame<AgentMessage>(bytes, limit);
}

std::optional<ServerMessage> take_server_message(std::string_view& bytes) {
  return take_frame<ServerMessage>(bytes, kMaxAnswerBytes);
}

}  // namespace acc::rendezvous::rounds
