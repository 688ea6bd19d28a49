// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "wire/frames.hpp"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace acc::rendezvous::wire {

/// One request as views into the received bytes, without copies; fields as in `Request`.
struct RequestView {
  Opcode opcode = Opcode::validate;
  std::span<const std::string_view> keys{};
  std::span<const std::string_view> values{};
  std::int64_t number = 0;

  [[nodiscard]] Request copy() const;
};

/// Incremental decoder of requests in a byte stream that may be cut anywhere. It stores no bytes,
/// only its progress in an incomplete request, so that each byte is parsed once. (A decoder that
/// starts over at every read needs quadratic time for large MULTI_SET requests.)
class RequestDecoder {
 public:
  explicit RequestDecoder(std::size_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  /// Decodes the first request of `bytes` and removes it. The result is valid as long as the bytes
  /// and until the next call. Returns nothing while the request is incomplete; the next call must
  /// then pass the same bytes followed by more. Throws Error(protocol) as soon as a declared
  /// length, count or opcode is beyond its limit; the stream cannot be used any more then.
  std::optional<RequestView> next(std::string_view& bytes);
  /// Memory for the positions of keys and values of an incomplete request, in bytes.
  [[nodiscard]] std::size_t num_kept() const noexcept { return pieces_.size() * sizeof(Piece); }

  /// True if it has parsed a part of an incomplete request.
  [[nodiscard]] bool has_begun() const noexcept { return position_ != 0; }
  /// Discards its progress, for use with another stream.
  void restart() noexcept { position_ = 0; }
  [[nodiscard]] std::size_t max_frame_bytes() const noexcept { return max_frame_bytes_; }
  /// Changes the limit, between two requests.
  void limit(std::size_t max_frame_bytes) noexcept { max_frame_bytes_ = max_frame_bytes; }

 private:
  /// Position of a key or value, as an offset, because the bytes may move between calls.
  struct Piece {
    std::size_t begin;
    std::size_t size;
    bool is_key;
  };

  bool scan(std::string_view bytes);
  bool read_opcode(std::string_view bytes);
  bool read_count(std::string_view bytes);
  bool read_field(std::string_view bytes, char field);
  bool read_string(std::string_view bytes, bool is_key);
  RequestView view(const char* frame);
  void forget_frame();
  [[nodiscard]] const Shape& shape() const noexcept {
    return kShapes[static_cast<std::size_t>(opcode_)];
  }

  std::size_t max_frame_bytes_;
  std::size_t position_ = 0;  // bytes of the current request that are parsed
  Opcode opcode_ = Opcode::validate;
  std::optional<std::uint64_t> rounds_left_;  // repetitions of the shape; nothing: count not read
  std::size_t field_ = 0;                     // index of the next field of the shape
  std::int64_t number_ = 0;
  boost::container::small_vector<Piece, 3> pieces_;  // keys and values in the order of the frame
  boost::container::small_vector<std::string_view, 1> keys_;
  boost::container::small_vector<std::string_view, 2> values_;
};

}  // namespace acc::rendezvous::wire
