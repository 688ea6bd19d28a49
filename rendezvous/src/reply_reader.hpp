#pragma once

#include "socket_stream.hpp"

#include <cstdint>
#include <string>

namespace acc::rendezvous {

/// The answers of a TCPStore server, piece by piece. Throws as SocketStream does, and
/// Error(protocol) for a length that no value has.
class ReplyReader {
 public:
  ReplyReader(SocketStream& stream, SocketStream::TimePoint deadline)
      : stream_(stream), deadline_(deadline) {}

  char byte();
  std::uint32_t u32();
  std::int64_t i64();
  std::string bytes();

 private:
  SocketStream& stream_;
  SocketStream::TimePoint deadline_;
};

}  // namespace acc::rendezvous
