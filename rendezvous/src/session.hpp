#pragma once

#include "conversation.hpp"
#include "key_table.hpp"
#include "wire/request_decoder.hpp"

#include <string>
#include <string_view>

namespace acc::rendezvous {

/// One client's conversation with the table: bytes in, bytes out, no sockets. The release byte of a
/// pending WAIT or BARRIER does not pass here; the table's `Release` reports it.
class Session : public Conversation {
 public:
  Session(KeyTable& table, KeyTable::WaiterId id) : table_(table), id_(id) {}
  ~Session() override { table_.cancel(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  void feed(std::string_view bytes) override { decoder_.feed(bytes); }

  bool step(std::string& out) override;
  /// After a correct VALIDATE.
  [[nodiscard]] bool is_open() const noexcept override { return validated_; }

 private:
  void handshake(const wire::Request& request);
  void serve(wire::Request& request, std::string& out);
  void serve_waiting(const wire::Request& request, std::string& out);
  void serve_queue(wire::Request& request, std::string& out);
  void multi_get(const wire::Request& request, std::string& out) const;

  KeyTable& table_;
  KeyTable::WaiterId id_;
  wire::RequestDecoder decoder_;
  bool validated_ = false;
};

}  // namespace acc::rendezvous
