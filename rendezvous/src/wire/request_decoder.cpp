// SPDX-License-Identifier: Apache-2.0
#include "wire/request_decoder.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <cstdint>

namespace acc::rendezvous::wire {
namespace {

// Largest capacity of the vectors that is kept after a request.
constexpr std::size_t kKeptPieces = 64;

[[noreturn]] void violation(const std::string& message) {
  throw Error(Errc::protocol, message);
}

/// Empties a vector and frees its memory if one large request has made it grow.
template <typename Vector>
void empty(Vector& vector) {
  vector.clear();
  if (vector.capacity() > kKeptPieces) {
    vector.shrink_to_fit();
  }
}

}  // namespace

Request RequestView::copy() const {
  return {opcode, {keys.begin(), keys.end()}, {values.begin(), values.end()}, number};
}

std::optional<RequestView> RequestDecoder::next(std::string_view& bytes) {
  // The views of the last request are valid until here.
  if (position_ == 0) {
    forget_frame();
  }
  if (!scan(bytes)) {
    return std::nullopt;
  }
  const RequestView request = view(bytes.data());
  bytes.remove_prefix(position_);
  position_ = 0;
  return request;
}

void RequestDecoder::forget_frame() {
  rounds_left_.reset();
  field_ = 0;
  number_ = 0;
  empty(pieces_);
  empty(keys_);
  empty(values_);
}

/// Parses as far as the bytes suffice; true if the request is complete. All progress is in the
/// members, so the next call continues at the field where this one stopped.
bool RequestDecoder::scan(std::string_view bytes) {
  if (position_ == 0 && !read_opcode(bytes)) {
    return false;
  }
  if (!rounds_left_ && !read_count(bytes)) {
    return false;
  }
  const std::string_view fields = shape().fields;
  for (; *rounds_left_ > 0; --*rounds_left_, field_ = 0) {
    for (; field_ < fields.size(); ++field_) {
      if (!read_field(bytes, fields[field_])) {
        return false;
      }
    }
  }
  return true;
}

bool RequestDecoder::read_opcode(std::string_view bytes) {
  if (bytes.empty()) {
    return false;
  }
  const auto opcode = static_cast<std::uint8_t>(bytes.front());
  if (opcode >= kShapes.size()) {
    violation(fmt::format("there is no command {}", opcode));
  }
  opcode_ = static_cast<Opcode>(opcode);
  position_ = 1;
  if (!shape().repeated) {
    rounds_left_ = 1;
  }
  return true;
}

bool RequestDecoder::read_count(std::string_view bytes) {
  if (bytes.size() - position_ < 8) {
    return false;
  }
  const auto count = static_cast<std::uint64_t>(get_i64(bytes.data() + position_));
  if (count > kMaxKeys) {
    violation(fmt::format("command {} names {} keys, the limit is {}", static_cast<int>(opcode_),
                          count, kMaxKeys));
  }
  position_ += 8;
  rounds_left_ = count;
  return true;
}

bool RequestDecoder::read_field(std::string_view bytes, char field) {
  switch (field) {
    case 'k': return read_string(bytes, true);
    case 'v': return read_string(bytes, false);
    default: break;
  }
  const std::size_t width = field == 'n' ? 8 : 4;
  if (bytes.size() - position_ < width) {
    return false;
  }
  const char* data = bytes.data() + position_;
  number_ = field == 'n' ? get_i64(data) : std::int64_t{get_u32(data)};
  position_ += width;
  return true;
}

/// Parses one string. Its length is checked before its bytes have arrived, so that a client cannot
/// make the server buffer more than the limits.
bool RequestDecoder::read_string(std::string_view bytes, bool is_key) {
  const std::size_t available = bytes.size() - position_;
  if (available < 8) {
    return false;
  }
  const auto length = static_cast<std::uint64_t>(get_i64(bytes.data() + position_));
  const std::size_t limit = is_key ? kMaxKeyBytes : kMaxValueBytes;
  if (length > limit) {
    violation(
        fmt::format("a {} of {} bytes, the limit is {}", is_key ? "key" : "value", length, limit));
  }
  if (position_ + 8 + length > max_frame_bytes_) {
    violation(fmt::format("a request of more than {} bytes", max_frame_bytes_));
  }
  if (available - 8 < length) {
    return false;
  }
  pieces_.push_back({position_ + 8, length, is_key});
  position_ += 8 + length;
  return true;
}

/// Turns offsets into views, now that the whole request lies at `frame`.
RequestView RequestDecoder::view(const char* frame) {
  for (const Piece& piece : pieces_) {
    const std::string_view text(frame + piece.begin, piece.size);
    if (piece.is_key) {
      keys_.push_back(text);
    } else {
      values_.push_back(text);
    }
  }
  return {opcode_, keys_, values_, number_};
}

}  // namespace acc::rendezvous::wire
