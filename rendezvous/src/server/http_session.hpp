// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/protocol_handler.hpp"
#include "watch/api.hpp"

#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace acc::rendezvous {

/// Returns the token in a header Authorization: that of the scheme Bearer, or the password of
/// Basic, for which browsers ask; "": there is none.
std::string token_of(std::string_view authorization);

/// Protocol handler of an HTTP client: parses requests, passes them to `ask` and writes the
/// answers, large ones in parts. Serves pipelined requests in order. A malformed request, one with
/// a body, or one of more than kMaxRequestBytes is answered and ends the connection.
class HttpSession : public ProtocolHandler {
 public:
  static constexpr std::size_t kMaxRequestBytes = 16 * 1024;

  using Ask = std::function<watch::Answer(const watch::Request& request)>;

  explicit HttpSession(Ask ask);

  bool step(std::string_view& bytes, std::string& out) override;
  /// True after the first complete request.
  [[nodiscard]] bool is_open() const noexcept override { return has_served_; }
  [[nodiscard]] bool is_finished() const noexcept override { return is_finished_; }
  [[nodiscard]] bool is_replying() const noexcept override { return more_ != nullptr; }
  [[nodiscard]] unsigned cost() const noexcept override { return cost_; }
  /// True if a request was served since the last call, or if a stream is open.
  [[nodiscard]] bool take_activity() noexcept {
    return std::exchange(was_active_, false) || is_stream_;
  }

 private:
  /// A request as far as the form of its answer depends on it.
  struct Form {
    bool has_body = true;
    bool keeps_alive = false;
    bool has_chunks = false;  ///< the client knows chunks (HTTP/1.1)
  };

  void reply(watch::Answer answer, const Form& form, std::string& out);
  void reply_further(std::string& out);

  Ask ask_;
  watch::Parts more_;  // of the last answer; null: none
  bool has_chunks_ = false;
  bool ends_after_ = false;  // the connection ends after the parts
  unsigned cost_ = 0;
  bool has_served_ = false;
  bool was_active_ = false;
  bool is_stream_ = false;  // server-sent events: what the client sends is discarded
  bool is_finished_ = false;
};

}  // namespace acc::rendezvous
