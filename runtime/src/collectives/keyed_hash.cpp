// SPDX-License-Identifier: Apache-2.0
#include "collectives/keyed_hash.hpp"

#include <bit>
#include <charconv>
#include <cstring>

namespace acc::collectives {
namespace {

static_assert(std::endian::native == std::endian::little, "SipHash reads little-endian words");

/// State of SipHash-2-4: four words, two rounds per message word and four rounds at the end.
class SipState {
 public:
  // The constants are the ASCII text "somepseudorandomlygeneratedbytes", as in the paper.
  explicit SipState(const HashKey& key)
      : v0_(key[0] ^ 0x736f6d6570736575U),
        v1_(key[1] ^ 0x646f72616e646f6dU),
        v2_(key[0] ^ 0x6c7967656e657261U),
        v3_(key[1] ^ 0x7465646279746573U) {}

  /// Adds one word of the message.
  void take(std::uint64_t word) noexcept {
    v3_ ^= word;
    rounds(2);
    v0_ ^= word;
  }
  std::uint64_t finish() noexcept {
    v2_ ^= 0xffU;
    rounds(4);
    return v0_ ^ v1_ ^ v2_ ^ v3_;
  }

 private:
  void rounds(int count) noexcept {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_;
      v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  std::uint64_t v0_, v1_, v2_, v3_;
};

}  // namespace

HashKey hash_key(std::string_view job_secret) noexcept {
  HashKey key{};
  for (std::size_t i = 0; i < key.size() && job_secret.size() >= 16 * (i + 1); ++i) {
    const char* const digits = job_secret.data() + 16 * i;
    std::from_chars(digits, digits + 16, key[i], 16);
  }
  return key;
}

std::uint64_t keyed_hash(const HashKey& key, std::string_view message) noexcept {
  SipState state(key);
  const std::uint64_t length = message.size();
  for (; message.size() >= sizeof(std::uint64_t); message.remove_prefix(sizeof(std::uint64_t))) {
    std::uint64_t word = 0;
    std::memcpy(&word, message.data(), sizeof word);
    state.take(word);
  }
  std::uint64_t last = 0;
  if (!message.empty()) {
    std::memcpy(&last, message.data(), message.size());
  }
  // The last word has the remaining bytes and, in its top byte, the length modulo 256.
  state.take(last | length << 56U);
  return state.finish();
}

}  // namespace acc::collectives
