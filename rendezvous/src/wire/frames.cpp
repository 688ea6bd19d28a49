// SPDX-License-Identifier: Apache-2.0
#include "wire/frames.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <bit>
#include <cstdint>
#include <cstring>

namespace acc::rendezvous::wire {
namespace {

static_assert(std::endian::native == std::endian::little, "TCPStore sends integers in host order");

template <typename Integer>
void put(std::string& out, Integer value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof value);
}

}  // namespace

void check_size(std::string_view what, std::string_view text, std::size_t limit) {
  if (text.size() > limit) {
    throw Error(Errc::invalid_argument,
                fmt::format("a store {} may have at most {} bytes, this one has {}", what, limit,
                            text.size()));
  }
}

void encode(const Request& request, std::string& out) {
  const Shape& shape = kShapes.at(static_cast<std::size_t>(request.opcode));
  if (request.keys.size() > kMaxKeys) {
    throw Error(Errc::invalid_argument,
                fmt::format("a store request may have at most {} keys, this one has {}", kMaxKeys,
                            request.keys.size()));
  }
  // kShapes drives both this encoder and RequestDecoder.
  out.push_back(static_cast<char>(request.opcode));
  if (shape.repeated) {
    put(out, std::uint64_t{request.keys.size()});
  }
  auto key = request.keys.begin();
  auto value = request.values.begin();
  const std::size_t rounds = shape.repeated ? request.keys.size() : 1;
  for (std::size_t round = 0; round < rounds; ++round) {
    for (const char field : shape.fields) {
      switch (field) {
        case 'k':
          check_size("key", *key, kMaxKeyBytes);
          put_bytes(out, *key++);
          break;
        case 'v':
          check_size("value", *value, kMaxValueBytes);
          put_bytes(out, *value++);
          break;
        case 'n': put(out, request.number); break;
        default: put(out, static_cast<std::uint32_t>(request.number)); break;
      }
    }
  }
}

void put_u32(std::string& out, std::uint32_t value) {
  put(out, value);
}

void put_i64(std::string& out, std::int64_t value) {
  put(out, value);
}

void put_bytes(std::string& out, std::string_view bytes) {
  put(out, std::uint64_t{bytes.size()});
  out.append(bytes);
}

}  // namespace acc::rendezvous::wire
