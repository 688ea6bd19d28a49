// SPDX-License-Identifier: Apache-2.0
#include "s3/signature.hpp"

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <cctype>
#include <stdexcept>
#include <string_view>

namespace acc::s3 {

namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::string sha256(const void* data, std::size_t nbytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (EVP_Digest(data, nbytes, digest.data(), &length, EVP_sha256(), nullptr) != 1) {
    throw std::runtime_error("OpenSSL computes no SHA-256");
  }
  return {reinterpret_cast<const char*>(digest.data()), length};
}

std::string hmac(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest.data(),
           &length) == nullptr) {
    throw std::runtime_error("OpenSSL computes no HMAC");
  }
  return {reinterpret_cast<const char*>(digest.data()), length};
}

}  // namespace

std::string encoded(const std::string& text, bool path) {
  std::string result;
  for (const char character : text) {
    const auto byte = static_cast<unsigned char>(character);
    const bool plain = (byte < 0x80 && std::isalnum(byte) != 0) || character == '-' ||
                       character == '.' || character == '_' || character == '~' ||
                       (path && character == '/');
    result += plain ? std::string(1, character) : fmt::format("%{:02X}", byte);
  }
  return result;
}

std::string query_text(const std::map<std::string, std::string>& query) {
  std::string text;
  for (const auto& [name, value] : query) {
    text += fmt::format("{}{}={}", text.empty() ? "" : "&", encoded(name), encoded(value));
  }
  return text;
}

void sign(Request& request, const Keys& keys, const std::string& region, std::time_t now) {
  const std::string time = fmt::format("{:%Y%m%dT%H%M%SZ}", fmt::gmtime(now));
  const std::string day = time.substr(0, time.find('T'));
  const std::string payload = hex(sha256(request.body.data(), request.body.size()));
  request.headers["host"] = request.host;
  request.headers["x-amz-date"] = time;
  request.headers["x-amz-content-sha256"] = payload;
  if (!keys.session_token.empty()) {
    request.headers["x-amz-security-token"] = keys.session_token;
  }
  std::string headers;
  std::string names;
  for (const auto& [name, value] : request.headers) {
    headers += fmt::format("{}:{}\n", name, value);
    names += fmt::format("{}{}", names.empty() ? "" : ";", name);
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.path,
                                            query_text(request.query), headers, names, payload);
  const std::string scope = fmt::format("{}/{}/s3/aws4_request", day, region);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", time, scope,
                                       hex(sha256(canonical.data(), canonical.size())));
  const std::string key =
      hmac(hmac(hmac(hmac("AWS4" + keys.secret, day), region), "s3"), "aws4_request");
  request.headers["authorization"] =
      fmt::format("AWS4-HMAC-SHA256 Credential={}/{},SignedHeaders={},Signature={}", keys.id, scope,
                  names, hex(hmac(key, text)));
}

}  // namespace acc::s3
