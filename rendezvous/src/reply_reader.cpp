#include "reply_reader.hpp"

#include "acc/base/error.hpp"
#include "wire/frames.hpp"

#include <fmt/format.h>

#include <array>

namespace acc::rendezvous {

char ReplyReader::byte() {
  char byte = 0;
  stream_.read(&byte, 1, deadline_);
  return byte;
}

std::uint32_t ReplyReader::u32() {
  std::array<char, 4> bytes{};
  stream_.read(bytes.data(), bytes.size(), deadline_);
  return wire::get_u32(bytes.data());
}

std::int64_t ReplyReader::i64() {
  std::array<char, 8> bytes{};
  stream_.read(bytes.data(), bytes.size(), deadline_);
  return wire::get_i64(bytes.data());
}

std::string ReplyReader::bytes() {
  const auto length = static_cast<std::uint64_t>(i64());
  if (length > wire::kMaxFrameBytes) {
    throw Error(Errc::protocol, fmt::format("a value of {} bytes was announced", length));
  }
  std::string bytes(length, '\0');
  stream_.read(bytes.data(), bytes.size(), deadline_);
  return bytes;
}

}  // namespace acc::rendezvous
