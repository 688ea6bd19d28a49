#include "store/reply_reader.hpp"

#include "acc/base/error.hpp"
#include "wire/frames.hpp"

#include <fmt/format.h>

#include <algorithm>
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
    throw Error(Errc::protocol, fmt::format("the server announced a value of {} bytes", length));
  }
  // Allocates as bytes arrive: a wrong length alone costs at most kMaxValueBytes of memory.
  std::string bytes;
  while (bytes.size() < length) {
    const std::size_t begin = bytes.size();
    bytes.resize(std::min<std::size_t>(length, begin + std::max(begin, wire::kMaxValueBytes)));
    stream_.read(bytes.data() + begin, bytes.size() - begin, deadline_);
  }
  return bytes;
}

}  // namespace acc::rendezvous
