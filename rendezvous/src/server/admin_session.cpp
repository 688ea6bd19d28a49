// SPDX-License-Identifier: Apache-2.0
#include "server/admin_session.hpp"

#include "acc/base/error.hpp"

#include <cstdint>
#include <cstring>

namespace acc::rendezvous {
namespace {

constexpr std::size_t kMaxCommandBytes = 64 * 1024;
constexpr std::size_t kLengthSize = 4;

/// Splits a command into its words, each of which ends with a zero byte.
std::vector<std::string> words_of(std::string_view command) {
  std::vector<std::string> words;
  while (!command.empty()) {
    const std::size_t end = command.find('\0');
    if (end == std::string_view::npos) {
      throw Error(Errc::protocol, "a word of an administrator's command has no end");
    }
    words.emplace_back(command.substr(0, end));
    command.remove_prefix(end + 1);
  }
  if (words.empty()) {
    throw Error(Errc::protocol, "an administrator's command is empty");
  }
  return words;
}

}  // namespace

bool AdminSession::step(std::string_view& bytes, std::string& out) {
  if (!said_hello_) {
    if (bytes.substr(0, kAdminHello.size()) != kAdminHello.substr(0, bytes.size())) {
      throw Error(Errc::protocol, "not an administrator of this version");
    }
    if (bytes.size() < kAdminHello.size()) {
      return false;
    }
    said_hello_ = true;
    bytes.remove_prefix(kAdminHello.size());
  }
  std::uint32_t size = 0;
  if (bytes.size() < kLengthSize) {
    return false;
  }
  std::memcpy(&size, bytes.data(), kLengthSize);
  if (size > kMaxCommandBytes) {
    throw Error(Errc::protocol, "an administrator's command is too long");
  }
  if (bytes.size() < kLengthSize + size) {
    return false;
  }
  const auto words = words_of(bytes.substr(kLengthSize, size));
  bytes.remove_prefix(kLengthSize + size);
  std::string answer(1, '\0');
  try {
    answer += execute_(words);
  } catch (const Error& error) {
    answer = std::string(1, '\1') + error.what();
  }
  const auto length = static_cast<std::uint32_t>(answer.size());
  out.append(reinterpret_cast<const char*>(&length), kLengthSize);
  out += answer;
  return true;
}

}  // namespace acc::rendezvous
