// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace acc::collectives {

/// 128-bit key as two words.
using HashKey = std::array<std::uint64_t, 2>;

/// Parses the job secret (32 hexadecimal digits) into a key. Returns zero if there is no secret.
HashKey hash_key(std::string_view job_secret) noexcept;

/// Message authentication code SipHash-2-4 (Aumasson and Bernstein, "SipHash: a fast short-input
/// PRF", 2012). Without the key, one can neither compute the hash of a message nor derive the key
/// from hashes.
std::uint64_t keyed_hash(const HashKey& key, std::string_view message) noexcept;

}  // namespace acc::collectives
