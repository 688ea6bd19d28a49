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
/// answers. Serves pipelined requests in order. A malformed request, one with a body, or one of
/// more than kMaxRequestBytes is answered and ends the connection.
class HttpSession : public ProtocolHandler {
 public:
  static constexpr std::size_t kMaxRequestBytes = 16 * 1024;

  using Ask = std::function<watch::Answer(const watch::Request& request)>;

  explicit HttpSession(Ask ask);

  bool step(std::string_view& bytes, std::string& out) override;
  /// True after the first complete request.
  [[nodiscard]] bool is_open() const noexcept override { return has_served_; }
  [[nodiscard]] bool is_finished() const noexcept override { return is_finished_; }
  /// True if a request was served since the last call, or if a stream is open.
  [[nodiscard]] bool take_activity() noexcept {
    return std::exchange(was_active_, false) || is_stream_;
  }

 private:
  void reply(const watch::Answer& answer, bool has_body, bool keeps_alive, std::string& out);

  Ask ask_;
  bool has_served_ = false;
  bool was_active_ = false;
  bool is_stream_ = false;  // server-sent events: what the client sends is discarded
  bool is_finished_ = false;
};

}  // namespace acc::rendezvous
