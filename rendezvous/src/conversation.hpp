#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// The server's side of talking to one client in that client's language, without its socket.
class Conversation {
 public:
  virtual ~Conversation() = default;

  /// Serves the request at the front of `bytes`, takes it off them and appends its reply. False
  /// while it is not complete: the next call brings the same bytes, and more. Throws for what must
  /// end the connection: Error(protocol) for a violation, Error(out_of_memory) for a limit.
  virtual bool step(std::string_view& bytes, std::string& out) = 0;
  /// What it keeps of the request that is not complete, besides its bytes.
  [[nodiscard]] virtual std::size_t num_kept() const noexcept { return 0; }
  /// The client has shown that it knows the language: the time limit of the handshake is over.
  [[nodiscard]] virtual bool is_open() const noexcept = 0;
};

}  // namespace acc::rendezvous
