#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

/// The frames of torch's TCPStore protocol as plain structs and bytes; no sockets here.
namespace acc::rendezvous::wire {

enum class Opcode : std::uint8_t {
  validate,
  set,
  compare_set,
  get,
  add,
  check,
  wait,
  num_keys,
  delete_key,
  append,
  multi_get,
  multi_set,
  cancel_wait,
  ping,
  queue_push,
  queue_pop,
  queue_len,
  list_keys,
  barrier,
};

/// The argument of VALIDATE, the first command of each connection.
inline constexpr std::uint32_t kMagic = 0x3C85F7CE;

/// Limits of torch's libuv server. A request beyond them ends the connection.
inline constexpr std::size_t kMaxKeyBytes = 8192;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxKeys = 131072;
/// Ours: all strings of one frame, or of one reply, together.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{512} << 20;

/// What a WAIT or BARRIER is answered with, now or later, and what a CANCEL_WAIT is.
inline constexpr char kReleased = 0;
inline constexpr char kCancelled = 1;

/// How a request looks after its opcode: one letter a field, `k` key, `v` value, `n` i64, `u` u32.
/// A repeated shape is preceded by a u64 count.
struct Shape {
  std::string_view fields;
  bool repeated = false;
};

inline constexpr std::array<Shape, 19> kShapes{{
    {"u"},         // validate: magic
    {"kv"},        // set
    {"kvv"},       // compare_set: expected, desired
    {"k"},         // get
    {"kn"},        // add: delta
    {"k", true},   // check
    {"k", true},   // wait
    {""},          // num_keys
    {"k"},         // delete_key
    {"kv"},        // append
    {"k", true},   // multi_get
    {"kv", true},  // multi_set
    {""},          // cancel_wait
    {"u"},         // ping: nonce
    {"kv"},        // queue_push
    {"k"},         // queue_pop
    {"k"},         // queue_len
    {""},          // list_keys
    {"kn"},        // barrier: world size
}};

/// One request of any kind; what its opcode does not use stays empty. `number` is the magic, the
/// nonce, the delta or the world size. The i-th pair of MULTI_SET is keys[i], values[i]; the values
/// of COMPARE_SET are expected, desired.
struct Request {
  Opcode opcode = Opcode::validate;
  std::vector<std::string> keys{};
  std::vector<std::string> values{};
  std::int64_t number = 0;

  bool operator==(const Request&) const = default;
};

/// Throws Error(invalid_argument) for a key or value ("what") of more than `limit` bytes.
void check_size(std::string_view what, std::string_view text, std::size_t limit);

/// Appends the bytes of `request`. Throws Error(invalid_argument) for a key, value or count that
/// the receiver would have to refuse.
void encode(const Request& request, std::string& out);

/// The parts that replies are made of, all integers little-endian.
void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
void put_bytes(std::string& out, std::string_view bytes);
inline std::uint32_t get_u32(const char* bytes) noexcept {
  std::uint32_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}
inline std::int64_t get_i64(const char* bytes) noexcept {
  std::int64_t value = 0;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

}  // namespace acc::rendezvous::wire
