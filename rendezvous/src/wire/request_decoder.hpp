#pragma once

#include "wire/frames.hpp"

#include <boost/container/small_vector.hpp>

#include <cstdint>
#include <optional>
#include <span>

namespace acc::rendezvous::wire {

/// One request as it lies in the bytes that it came in; fields as in `Request`.
struct RequestView {
  Opcode opcode = Opcode::validate;
  std::span<const std::string_view> keys{};
  std::span<const std::string_view> values{};
  std::int64_t number = 0;

  [[nodiscard]] Request copy() const;
};

/// Finds the requests in a byte stream that is cut anywhere. Holds no bytes, only how far it has
/// read a request that is not complete, so that no byte of it is looked at again.
class RequestDecoder {
 public:
  explicit RequestDecoder(std::size_t max_frame_bytes = kMaxFrameBytes)
      : max_frame_bytes_(max_frame_bytes) {}

  /// The request at the front of `bytes`, which is taken off them; good until they go or `next` is
  /// called again. Nothing while it is not complete: the next call must bring the same bytes, and
  /// more. Throws Error(protocol) as soon as a declared length, count or opcode breaks a limit; the
  /// stream is of no further use then.
  std::optional<RequestView> next(std::string_view& bytes);
  /// Bytes of memory, for where the keys and values of an incomplete request lie.
  [[nodiscard]] std::size_t num_kept() const noexcept { return pieces_.size() * sizeof(Piece); }

  /// It has read a part of a request.
  [[nodiscard]] bool has_begun() const noexcept { return position_ != 0; }
  /// Forgets that part: for another stream.
  void restart() noexcept { position_ = 0; }
  [[nodiscard]] std::size_t max_frame_bytes() const noexcept { return max_frame_bytes_; }

 private:
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
  std::size_t position_ = 0;
  Opcode opcode_ = Opcode::validate;
  std::optional<std::uint64_t> rounds_left_;
  std::size_t field_ = 0;
  std::int64_t number_ = 0;
  boost::container::small_vector<Piece, 3> pieces_;  // keys and values in the order of the frame
  boost::container::small_vector<std::string_view, 1> keys_;
  boost::container::small_vector<std::string_view, 2> values_;
};

}  // namespace acc::rendezvous::wire
