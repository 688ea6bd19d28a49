// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/http_reader.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "secure/ask.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <optional>
#include <string_view>
#include <utility>

namespace acc::rendezvous {

namespace {

constexpr std::chrono::seconds kAnswerLimit{10};
constexpr std::size_t kLargestAnswer = 64U << 20U;

/// Returns the number of bytes that an answer has by its head, the head included; nothing while the
/// head is incomplete, or if it does not say.
std::optional<std::size_t> size_of(const std::string& answer) {
  constexpr std::string_view kEnd = "\r\n\r\n";
  constexpr std::string_view kLength = "\r\ncontent-length:";
  const auto end = answer.find(kEnd);
  if (end == std::string::npos) {
    return std::nullopt;
  }
  const std::string head = lower(answer.substr(0, end));
  const auto at = head.find(kLength);
  if (at == std::string::npos) {
    return std::nullopt;
  }
  const std::size_t first = std::min(head.find_first_not_of(' ', at + kLength.size()), head.size());
  std::size_t length = 0;
  const auto [rest, error] =
      std::from_chars(head.data() + first, head.data() + head.size(), length);
  return error == std::errc() && length <= kLargestAnswer
             ? std::optional(end + kEnd.size() + length)
             : std::nullopt;
}

}  // namespace

HttpReader::HttpReader(Address address)
    : address_(std::move(address)),
      name_(printable(address_.host) +
            (is_unix(address_.host) ? "" : ":" + std::to_string(address_.port))) {
  if (!address_.is_secure) {
    return;
  }
  const auto tokens = tokens_of_environment();
  if (!tokens) {
    throw Error(Errc::config, name_ +
                                  ": https:// needs a token of the server; set "
                                  "ACC_RENDEZVOUS_TOKEN_FILE to a file with it");
  }
  security_ = ClientSecurity::make(*tokens, client_files_of_environment());
}

// HTTP/1.0, so that the answer is neither in chunks nor followed by another one.
std::string HttpReader::get(const std::string& path, Time until) const {
  until = std::min(until, std::chrono::steady_clock::now() + kAnswerLimit);
  const std::string request =
      fmt::format("GET {} HTTP/1.0\r\nHost: {}\r\nConnection: close\r\n\r\n", path,
                  is_unix(address_.host) ? "localhost" : address_.host);
  std::optional<std::size_t> size;
  try {
    std::string answer = secure::ask(
        {address_.host, address_.port}, security_, Role::reader, request, until,
        [&](const std::string& received) {
          if (received.size() > kLargestAnswer) {
            throw Error(Errc::protocol,
                        fmt::format("an answer of more than {} MiB", kLargestAnswer >> 20U));
          }
          size = size_of(received);
          return size && received.size() >= *size;
        });
    if (size && answer.size() < *size) {
      throw Error(Errc::protocol, "the answer is cut off");
    }
    return answer;
  } catch (const Error& error) {
    throw Error(error.code(), fmt::format("{}: {}", name_, error.what()));
  }
}

}  // namespace acc::rendezvous
