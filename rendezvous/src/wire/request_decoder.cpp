#include "wire/request_decoder.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <utility>

namespace acc::rendezvous::wire {
namespace {

constexpr std::size_t kKeptCapacity = 64 * 1024;

[[noreturn]] void violation(const std::string& message) {
  throw Error(Errc::protocol, message);
}

}  // namespace

void RequestDecoder::feed(std::string_view bytes) {
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    begin_ = 0;
    if (buffer_.capacity() > kKeptCapacity) {
      buffer_.shrink_to_fit();
    }
  } else if (begin_ > buffer_.size() / 2) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  buffer_.append(bytes);
}

std::optional<std::uint8_t> RequestDecoder::peek_opcode() const noexcept {
  if (open_ || available() == 0) {
    return std::nullopt;
  }
  return static_cast<std::uint8_t>(*data());
}

std::optional<Request> RequestDecoder::next() {
  if (!open_ && !start_frame()) {
    return std::nullopt;
  }
  if (!rounds_left_ && !read_count()) {
    return std::nullopt;
  }
  const std::string_view fields = kShapes[static_cast<std::size_t>(request_.opcode)].fields;
  for (; *rounds_left_ > 0; --*rounds_left_, field_ = 0) {
    for (; field_ < fields.size(); ++field_) {
      if (!read_field(fields[field_])) {
        return std::nullopt;
      }
    }
  }
  open_ = false;
  return std::exchange(request_, {});
}

bool RequestDecoder::start_frame() {
  const auto opcode = peek_opcode();
  if (!opcode) {
    return false;
  }
  if (*opcode >= kShapes.size()) {
    violation(fmt::format("there is no command {}", *opcode));
  }
  ++begin_;
  open_ = true;
  request_.opcode = static_cast<Opcode>(*opcode);
  rounds_left_.reset();
  if (!kShapes[*opcode].repeated) {
    rounds_left_ = 1;
  }
  field_ = 0;
  frame_bytes_ = 0;
  return true;
}

bool RequestDecoder::read_count() {
  if (available() < 8) {
    return false;
  }
  const auto count = static_cast<std::uint64_t>(get_i64(data()));
  if (count > kMaxKeys) {
    violation(fmt::format("command {} names {} keys, the limit is {}",
                          static_cast<int>(request_.opcode), count, kMaxKeys));
  }
  begin_ += 8;
  rounds_left_ = count;
  return true;
}

bool RequestDecoder::read_field(char field) {
  switch (field) {
    case 'k': return read_string("key", kMaxKeyBytes, request_.keys);
    case 'v': return read_string("value", kMaxValueBytes, request_.values);
    default: break;
  }
  const std::size_t width = field == 'n' ? 8 : 4;
  if (available() < width) {
    return false;
  }
  request_.number = field == 'n' ? get_i64(data()) : std::int64_t{get_u32(data())};
  begin_ += width;
  return true;
}

bool RequestDecoder::read_string(std::string_view what, std::size_t limit,
                                 std::vector<std::string>& into) {
  if (available() < 8) {
    return false;
  }
  const auto length = static_cast<std::uint64_t>(get_i64(data()));
  if (length > limit) {
    violation(fmt::format("a {} of {} bytes, the limit is {}", what, length, limit));
  }
  if (frame_bytes_ + length > kMaxFrameBytes) {
    violation(fmt::format("a request of more than {} bytes", kMaxFrameBytes));
  }
  if (available() - 8 < length) {
    return false;
  }
  into.emplace_back(data() + 8, length);
  begin_ += 8 + length;
  frame_bytes_ += length;
  return true;
}

}  // namespace acc::rendezvous::wire
