// SPDX-License-Identifier: Apache-2.0
#include "secure/crypto.hpp"

#include "acc/base/error.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

namespace acc::rendezvous::secure {

std::string random_bytes(std::size_t size) {
  std::string bytes(size, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) != 1) {
    throw Error(Errc::internal, "OpenSSL has no random numbers");
  }
  return bytes;
}

std::string hmac(std::string_view key, std::string_view text) {
  std::string digest(kDigestBytes, '\0');
  unsigned int size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           reinterpret_cast<unsigned char*>(digest.data()), &size) == nullptr ||
      size != kDigestBytes) {
    throw Error(Errc::internal, "OpenSSL cannot compute HMAC-SHA-256");
  }
  return digest;
}

bool are_equal(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    text.push_back(kDigits[byte >> 4U]);
    text.push_back(kDigits[byte & 15U]);
  }
  return text;
}

}  // namespace acc::rendezvous::secure
