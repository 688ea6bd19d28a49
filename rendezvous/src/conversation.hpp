#pragma once

#include <string>
#include <string_view>

namespace acc::rendezvous {

/// The server's side of talking to one client in that client's language, without its socket.
class Conversation {
 public:
  virtual ~Conversation() = default;

  /// Takes bytes as they came, cut anywhere; keeps what is not complete.
  virtual void feed(std::string_view bytes) = 0;
  /// Serves one buffered request and appends its reply; false when none is complete. Throws
  /// Error(protocol) for what must end the connection.
  virtual bool step(std::string& out) = 0;
  /// The client has shown that it knows the language: the time limit of the handshake is over.
  [[nodiscard]] virtual bool is_open() const noexcept = 0;
};

}  // namespace acc::rendezvous
