#pragma once

#include "net/socket_stream.hpp"

#include <cstdint>
#include <string>

namespace acc::rendezvous {

/// Reads the parts of a TCPStore server's replies. Throws the errors of SocketStream, and
/// Error(protocol) for a length beyond the protocol's limits.
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
