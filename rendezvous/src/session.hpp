#pragma once

#include "conversation.hpp"
#include "key_table.hpp"
#include "wire/request_decoder.hpp"

#include <memory>
#include <string>
#include <string_view>

namespace acc::rendezvous {

/// One client's conversation with the table: bytes in, bytes out, no sockets. The release byte of a
/// pending WAIT or BARRIER does not pass here; the table's `Release` reports it.
class Session : public Conversation {
 public:
  /// `decoder`, whose limit is that of replies too, is lent by whoever has many sessions to each
  /// one that steps; both must outlive it.
  Session(KeyTable& table, KeyTable::WaiterId id, wire::RequestDecoder& decoder)
      : table_(table), id_(id), decoder_(decoder) {}
  ~Session() override { table_.cancel(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] std::size_t num_kept() const noexcept override { return decoder_.num_kept(); }
  /// After a correct VALIDATE.
  [[nodiscard]] bool is_open() const noexcept override { return validated_; }

 private:
  bool serve_next(std::string_view& bytes, wire::RequestDecoder& decoder, std::string& out);
  void handshake(const wire::RequestView& request);
  void serve(const wire::RequestView& request, std::string& out);
  void serve_waiting(const wire::RequestView& request, std::string& out);
  void serve_queue(const wire::RequestView& request, std::string& out);
  [[nodiscard]] std::string_view value_of(std::string_view key) const;
  void multi_get(const wire::RequestView& request, std::string& out) const;
  void list_keys(std::string& out) const;
  void check_reply(std::size_t bytes) const;

  KeyTable& table_;
  KeyTable::WaiterId id_;
  wire::RequestDecoder& decoder_;
  std::unique_ptr<wire::RequestDecoder> begun_;  // of a request that is not complete
  bool validated_ = false;
};

}  // namespace acc::rendezvous
