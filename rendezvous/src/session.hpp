#pragma once

#include "key_table.hpp"
#include "wire/request_decoder.hpp"

#include <optional>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// One client's conversation with the table: bytes in, bytes out, no sockets. The release byte of a
/// pending WAIT or BARRIER does not pass here; the table's `Release` reports it.
class Session {
 public:
  Session(KeyTable& table, KeyTable::WaiterId id) : table_(table), id_(id) {}
  ~Session() { table_.cancel(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void feed(std::string_view bytes) { decoder_.feed(bytes); }

  /// Serves one buffered request and appends its reply; false when none is complete. Throws
  /// Error(protocol) for what must end the connection.
  bool step(std::string& out);

  /// True after a correct VALIDATE.
  [[nodiscard]] bool validated() const noexcept { return validated_; }
  /// True after a request for one of the launchers' own keys.
  [[nodiscard]] bool is_launcher() const noexcept { return is_launcher_; }

  /// The machine that tied itself to the store by this connection.
  [[nodiscard]] std::optional<int> tied_machine() const noexcept { return tied_machine_; }

 private:
  void handshake(const wire::Request& request);
  void serve(wire::Request& request, std::string& out);
  void set(const std::string& key, std::string value);
  void serve_waiting(const wire::Request& request, std::string& out);
  void serve_queue(wire::Request& request, std::string& out);
  void multi_get(const wire::Request& request, std::string& out) const;

  KeyTable& table_;
  KeyTable::WaiterId id_;
  wire::RequestDecoder decoder_;
  bool validated_ = false;
  bool is_launcher_ = false;
  std::optional<int> tied_machine_;
};

}  // namespace acc::rendezvous
