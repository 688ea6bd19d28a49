// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/peers.hpp"
#include "server/protocol_handler.hpp"
#include "store/key_table.hpp"
#include "wire/request_decoder.hpp"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace acc::rendezvous {

/// Protocol handler of a TCPStore client: serves its requests from the key table. The late reply to
/// a pending WAIT or BARRIER does not pass through it; the table reports it by `Release`.
class Session : public ProtocolHandler {
 public:
  /// What the clients of one address may add to the store together.
  struct Share {
    std::shared_ptr<Peer> peer;
    std::int64_t max_keys = 0;
    std::int64_t max_bytes = 0;
  };

  /// `decoder` is shared by all sessions of a server; a session uses it only inside `step`. Its
  /// limit of frame sizes applies to replies, too. `table` and `decoder` must outlive the session.
  Session(KeyTable& table, KeyTable::WaiterId id, wire::RequestDecoder& decoder,
          std::optional<Share> share = std::nullopt)
      : table_(table), id_(id), decoder_(decoder), share_(std::move(share)) {}
  ~Session() override { table_.cancel(id_); }
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  bool step(std::string_view& bytes, std::string& out) override;
  [[nodiscard]] std::uint64_t shown_change() const noexcept override { return shown_; }
  [[nodiscard]] std::size_t num_kept() const noexcept override {
    return begun_ ? begun_->num_kept() : 0;
  }
  /// True after a correct VALIDATE.
  [[nodiscard]] bool is_open() const noexcept override { return validated_; }

 private:
  bool serve_first(std::string_view& bytes, std::string& out);
  bool serve_next(std::string_view& bytes, wire::RequestDecoder& decoder, std::string& out);
  void handshake(const wire::RequestView& request);
  void serve(const wire::RequestView& request, std::string& out);
  void serve_waiting(const wire::RequestView& request, std::string& out);
  void serve_queue(const wire::RequestView& request, std::string& out);
  [[nodiscard]] std::string_view value_of(std::string_view key) const;
  void multi_get(const wire::RequestView& request, std::string& out) const;
  void list_keys(std::string& out) const;
  void check_reply(std::size_t bytes) const;
  [[nodiscard]] std::uint64_t change_shown_by(const wire::RequestView& request) const;

  KeyTable& table_;
  KeyTable::WaiterId id_;
  wire::RequestDecoder& decoder_;
  std::optional<Share> share_;                   // none: no limit but those of the table
  std::unique_ptr<wire::RequestDecoder> begun_;  // progress in an incomplete request; else null
  std::uint64_t shown_ = 0;
  bool validated_ = false;
};

}  // namespace acc::rendezvous
