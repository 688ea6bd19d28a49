#pragma once

#include "wire/frames.hpp"

#include <optional>

namespace acc::rendezvous::wire {

/// Turns a byte stream, cut anywhere, into requests. Each byte is looked at a bounded number of
/// times: what a frame already holds is kept, not parsed again when more arrives.
class RequestDecoder {
 public:
  void feed(std::string_view bytes);

  /// The next complete request, if there is one. Throws Error(protocol) as soon as a declared
  /// length, count or opcode breaks a limit; the stream is of no further use then.
  std::optional<Request> next();

  /// The opcode byte of a request that `next` has not begun to read, where it is here.
  [[nodiscard]] std::optional<std::uint8_t> peek_opcode() const noexcept;

 private:
  [[nodiscard]] std::size_t available() const noexcept { return buffer_.size() - begin_; }
  [[nodiscard]] const char* data() const noexcept { return buffer_.data() + begin_; }
  bool start_frame();
  bool read_count();
  bool read_field(char field);
  bool read_string(std::string_view what, std::size_t limit, std::vector<std::string>& into);

  std::string buffer_;
  std::size_t begin_ = 0;

  bool open_ = false;  // a frame has begun; the rest describes how far it is
  Request request_;
  std::optional<std::uint64_t> rounds_left_;
  std::size_t field_ = 0;
  std::size_t frame_bytes_ = 0;
};

}  // namespace acc::rendezvous::wire
