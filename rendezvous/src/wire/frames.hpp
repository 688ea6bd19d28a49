// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

/// The TCPStore protocol of PyTorch 2.13 as plain structs and bytes; no sockets. The source is
/// torch/csrc/distributed/c10d/TCPStoreBackend.hpp and TCPStoreLibUvBackend.cpp.
///
/// A request is an opcode and its fields, without an outer length. Integers are little-endian, a
/// string is u64 length + bytes. Replies have neither opcode nor id: they come in the order of the
/// requests. The exception is the release byte of a WAIT or BARRIER, sent whenever it is satisfied.
namespace acc::rendezvous::wire {

/// Commands. The values are the opcodes on the wire.
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

/// Limits of PyTorch's libuv server. A request beyond them closes the connection.
inline constexpr std::size_t kMaxKeyBytes = 8192;
inline constexpr std::size_t kMaxValueBytes = std::size_t{8} << 20;
inline constexpr std::size_t kMaxKeys = 131072;
/// Default limit of this project's server: bytes of one request or one reply.
inline constexpr std::size_t kMaxFrameBytes = std::size_t{512} << 20;

/// Reply to WAIT and BARRIER, sent at once or when the wait is satisfied.
inline constexpr char kReleased = 0;
/// Reply to CANCEL_WAIT.
inline constexpr char kCancelled = 1;

/// Fields of a request after the opcode, one letter per field: `k` key, `v` value, `n` i64, `u`
/// u32. Repeated fields are preceded by a u64 count.
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

/// One request of any kind; fields that its opcode does not use are empty. `number` is the magic,
/// nonce, delta or world size. The i-th pair of MULTI_SET is keys[i], values[i]. The values of
/// COMPARE_SET are expected, desired.
struct Request {
  Opcode opcode = Opcode::validate;
  std::vector<std::string> keys{};
  std::vector<std::string> values{};
  std::int64_t number = 0;

  bool operator==(const Request&) const = default;
};

/// Throws Error(invalid_argument) if `text` has more than `limit` bytes. `what` ("key", "value") is
/// for the message.
void check_size(std::string_view what, std::string_view text, std::size_t limit);

/// Appends the bytes of `request`. Throws Error(invalid_argument) for a key, value or count beyond
/// the limits above; `out` may then end in a partial frame.
void encode(const Request& request, std::string& out);

/// Parts of replies. Integers are little-endian.
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
