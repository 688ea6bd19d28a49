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
  /// A request, or a reply, of more than `max_frame_bytes` is a violation.
  Session(KeyTable& table, KeyTable::WaiterId id,
          std::size_t max_frame_bytes = wire::kMaxFrameBytes)
      : table_(table), id_(id), decoder_(max_frame_bytes), max_reply_bytes_(max_frame_bytes) {}
  ~Session() override { table_.cancel(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] std::size_t num_kept() const noexcept override { return decoder_.num_kept(); }
  /// After a correct VALIDATE.
  [[nodiscard]] bool is_open() const noexcept override { return validated_; }

 private:
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
  wire::RequestDecoder decoder_;
  std::size_t max_reply_bytes_;
  bool validated_ = false;
};

}  // namespace acc::rendezvous
