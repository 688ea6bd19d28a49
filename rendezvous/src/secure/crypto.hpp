// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

struct ssl_ctx_st;

// The cryptographic functions that proofs and TLS need. This folder is the only one that calls
// OpenSSL.
namespace acc::rendezvous::secure {

/// Length of a digest, a nonce and a channel binding, in bytes.
inline constexpr std::size_t kDigestBytes = 32;

/// Returns `size` random bytes that nobody can guess. Throws Error(internal).
std::string random_bytes(std::size_t size);
/// Returns the HMAC-SHA-256 of `text` (RFC 2104). Throws Error(internal).
std::string hmac(std::string_view key, std::string_view text);
/// True if both are equal. The time depends on their lengths only.
bool are_equal(std::string_view a, std::string_view b);
/// Returns lowercase hexadecimal digits.
std::string to_hex(std::string_view bytes);
/// Gives a server a key and a certificate that it has signed itself, for the life of the process.
/// Throws Error(internal).
void use_own_certificate(ssl_ctx_st* context);
/// True if `host` is an address, not a name.
bool is_ip(const std::string& host);

}  // namespace acc::rendezvous::secure
