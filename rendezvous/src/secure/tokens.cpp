// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/log.hpp"
#include "acc/rendezvous/security.hpp"
#include "secure/crypto.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <utility>

namespace acc::rendezvous {
namespace {

// 32 hexadecimal digits have 128 bits: whoever reads proofs cannot try all tokens.
constexpr std::size_t kMinTokenChars = 32;
constexpr std::size_t kMaxTokenChars = 1024;
constexpr std::string_view kJobPrefix = "job-";  // followed by the key of one job

bool is_token_text(std::string_view text) {
  return text.size() >= kMinTokenChars && text.size() <= kMaxTokenChars &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

bool is_job_token(std::string_view token) {
  return token.starts_with(kJobPrefix) &&
         token.size() == kJobPrefix.size() + 2 * secure::kDigestBytes;
}

/// Returns the secret of one job in hexadecimal digits, as it stands in a job's token.
std::string job_secret(std::string_view token, std::string_view run_id) {
  if (is_job_token(token)) {
    return std::string(token.substr(kJobPrefix.size()));
  }
  return secure::to_hex(secure::hmac(token, "acclaunch job 1 " + std::string(run_id)));
}

void warn_of_readers(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & S_IRWXO) != 0) {
    logger(Component::rendezvous)
        .warn("other users can read the token file {}: chmod o= {}", file.string(), file.string());
  }
}

}  // namespace

Tokens Tokens::read(const std::filesystem::path& file) {
  const std::string text = read_input_file(file);
  std::vector<std::string> tokens;
  std::size_t number = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (line.empty()) {
      continue;
    }
    if (!is_token_text(line)) {
      throw Error(Errc::config,
                  fmt::format("{}:{}: expected a token of {} to {} printable characters without "
                              "blanks, found {} characters; `openssl rand -hex 32` makes one",
                              file.string(), number, kMinTokenChars, kMaxTokenChars, line.size()));
    }
    tokens.push_back(std::move(line));
  }
  if (tokens.empty()) {
    throw Error(Errc::config, fmt::format("{}: expected a token in the first line, found none; "
                                          "`openssl rand -hex 32` makes one",
                                          file.string()));
  }
  warn_of_readers(file);
  return Tokens(std::move(tokens));
}

std::string Tokens::job_token(std::string_view run_id) const {
  return std::string(kJobPrefix) + job_secret(current(), run_id);
}

bool Tokens::is_for_one_job() const noexcept {
  return is_job_token(tokens_.front());
}

std::vector<std::string> Tokens::keys(Role role, std::string_view run_id) const {
  std::vector<std::string> keys;
  for (const std::string& token : tokens_) {
    if (role != Role::administrator) {
      keys.push_back(secure::hmac(job_secret(token, run_id), "acclaunch key 1"));
    } else if (!is_job_token(token)) {
      keys.push_back(secure::hmac(token, "acclaunch administrator 1"));
    }
  }
  return keys;
}

bool Tokens::contains(std::string_view text) const {
  // Compares digests: their length says nothing about the tokens.
  const std::string digest = secure::hmac("compare", text);
  bool found = false;
  for (const std::string& token : tokens_) {
    found = secure::are_equal(secure::hmac("compare", token), digest) || found;
  }
  return found;
}

std::string make_token() {
  return secure::to_hex(secure::random_bytes(secure::kDigestBytes));
}

}  // namespace acc::rendezvous
