#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace acc::collectives {

/// 128 bits, as two words.
using HashKey = std::array<std::uint64_t, 2>;

/// The key that a job secret stands for (32 hexadecimal digits); zero where there is none.
HashKey hash_key(std::string_view job_secret) noexcept;

/// SipHash-2-4 (Aumasson and Bernstein, 2012): who does not have the key can neither compute the
/// hash of a message nor learn the key from hashes.
std::uint64_t keyed_hash(const HashKey& key, std::string_view message) noexcept;

}  // namespace acc::collectives
