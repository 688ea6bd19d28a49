// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/base/input_file.hpp"
#include "acc/base/log.hpp"
#include "acc/base/variables.hpp"
#include "acc/rendezvous/security.hpp"
#include "secure/crypto.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>
#include <utility>

namespace acc::rendezvous {
namespace {

// 32 hexadecimal digits have 128 bits: whoever reads proofs cannot try all tokens.
constexpr std::size_t kMinTokenChars = 32;
constexpr std::size_t kMaxTokenChars = 1024;
constexpr std::string_view kJobPrefix = "job-";        // followed by the secret of one job
constexpr std::string_view kReaderPrefix = "reader-";  // followed by the secret of readers
constexpr std::size_t kMaxFormer = 16;

bool is_token_text(std::string_view text) {
  return text.size() >= kMinTokenChars && text.size() <= kMaxTokenChars &&
         std::ranges::all_of(text, [](char c) { return c > ' ' && c <= '~'; });
}

bool has_form(std::string_view token, std::string_view prefix) {
  return token.starts_with(prefix) && token.size() == prefix.size() + 2 * secure::kDigestBytes;
}

bool is_job_token(std::string_view token) {
  return has_form(token, kJobPrefix);
}

bool is_reader_token(std::string_view token) {
  return has_form(token, kReaderPrefix);
}

/// Returns the secret of one job in hexadecimal digits, as it stands in a job's token.
std::string job_secret(std::string_view token, std::string_view run_id) {
  if (is_job_token(token)) {
    return std::string(token.substr(kJobPrefix.size()));
  }
  return secure::to_hex(secure::hmac(token, "acclaunch job 1 " + std::string(run_id)));
}

std::string reader_token_of(std::string_view token) {
  return is_reader_token(token) ? std::string(token)
                                : std::string(kReaderPrefix) +
                                      secure::to_hex(secure::hmac(token, "acclaunch reader 1"));
}

/// Returns the key of a role; nothing if the token is not worth it.
std::optional<std::string> key_of(std::string_view token, Role role, std::string_view run_id) {
  const bool is_restricted = is_job_token(token) || is_reader_token(token);
  switch (role) {
    case Role::agent:
    case Role::store:
      return is_reader_token(token)
                 ? std::nullopt
                 : std::optional(secure::hmac(job_secret(token, run_id), "acclaunch key 1"));
    case Role::administrator:
      return is_restricted ? std::nullopt
                           : std::optional(secure::hmac(token, "acclaunch administrator 1"));
    case Role::reader:
      return is_job_token(token)
                 ? std::nullopt
                 : std::optional(secure::hmac(
                       std::string_view(reader_token_of(token)).substr(kReaderPrefix.size()),
                       "acclaunch reader key 1"));
  }
  return std::nullopt;
}

std::vector<std::string> keys_of(const std::vector<std::string>& tokens, Role role,
                                 std::string_view run_id) {
  std::vector<std::string> keys;
  for (const std::string& token : tokens) {
    if (auto key = key_of(token, role, run_id)) {
      keys.push_back(std::move(*key));
    }
  }
  return keys;
}

bool let_read(const std::vector<std::string>& tokens, std::string_view text) {
  // Compares digests: their length says nothing about the tokens.
  const std::string digest = secure::hmac("compare", text);
  bool found = false;
  for (const std::string& token : tokens) {
    found = secure::are_equal(secure::hmac("compare", token), digest) || found;
    found = (!is_job_token(token) &&
             secure::are_equal(secure::hmac("compare", reader_token_of(token)), digest)) ||
            found;
  }
  return found;
}

void warn_of_readers(const std::filesystem::path& file) {
  struct stat status {};
  if (::stat(file.c_str(), &status) == 0 && (status.st_mode & S_IRWXO) != 0) {
    logger(Component::rendezvous)
        .warn("other users can read the token file {}: chmod o= {}", file.string(), file.string());
  }
}

std::vector<std::string> tokens_in(const std::filesystem::path& file) {
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
  return tokens;
}

}  // namespace

/// A file of tokens, and what was read of it last.
struct Tokens::Followed {
  std::filesystem::path file;
  Tokens last;
  std::string trouble{};  ///< why the file could not be read
};

Tokens Tokens::read(const std::filesystem::path& file) {
  Tokens tokens(tokens_in(file));
  warn_of_readers(file);
  return tokens;
}

Tokens Tokens::follow(const std::filesystem::path& file) {
  Tokens tokens = read(file);
  tokens.followed_ = std::make_shared<Followed>(Followed{file, tokens});
  return tokens;
}

Tokens Tokens::now() const {
  if (!followed_) {
    return *this;
  }
  try {
    Tokens present(tokens_in(followed_->file));
    present.remember(followed_->last);
    followed_->last = std::move(present);
    followed_->trouble.clear();
  } catch (const Error& error) {  // it may just be replaced
    if (std::exchange(followed_->trouble, error.what()) != error.what()) {
      logger(Component::rendezvous)
          .warn("using the tokens that were read before: {}", error.what());
    }
  }
  return followed_->last;
}

std::vector<Tokens> Tokens::each() const {
  std::vector<Tokens> all;
  for (const std::string& token : tokens_) {
    all.push_back(Tokens({token}));
  }
  return all;
}

void Tokens::remember(const Tokens& before) {
  for (const auto* list : {&before.tokens_, &before.former_}) {
    for (const std::string& token : *list) {
      const bool is_known = std::ranges::find(tokens_, token) != tokens_.end() ||
                            std::ranges::find(former_, token) != former_.end();
      if (!is_known && former_.size() < kMaxFormer) {
        former_.push_back(token);
      }
    }
  }
}

void Tokens::refuse_use() const {
  throw Error(Errc::config, is_for_one_job()
                                ? "the token is for one job only: readers need that of "
                                  "`acc-rendezvous reader-token`, administrators the token itself"
                                : "the token is for readers only: jobs need that of "
                                  "`acc-rendezvous job-token`, administrators the token itself");
}

std::string Tokens::job_token(std::string_view run_id) const {
  if (is_for_readers()) {
    refuse_use();
  }
  return std::string(kJobPrefix) + job_secret(current(), run_id);
}

std::string Tokens::reader_token() const {
  if (is_for_one_job()) {
    refuse_use();
  }
  return reader_token_of(current());
}

bool Tokens::is_for_one_job() const noexcept {
  return is_job_token(tokens_.front());
}

bool Tokens::is_for_readers() const noexcept {
  return is_reader_token(tokens_.front());
}

std::vector<std::string> Tokens::keys(Role role, std::string_view run_id) const {
  return keys_of(tokens_, role, run_id);
}

std::vector<std::string> Tokens::former_keys(Role role, std::string_view run_id) const {
  return keys_of(former_, role, run_id);
}

bool Tokens::contains(std::string_view text) const {
  return let_read(tokens_, text);
}

bool Tokens::was_right(std::string_view text) const {
  return let_read(former_, text);
}

std::optional<Tokens> tokens_of_environment() {
  const std::string file = process_variable(kTokenFileVariable).value_or("");
  return file.empty() ? std::nullopt : std::optional(Tokens::follow(file));
}

TlsFiles client_files_of_environment() {
  return {.certificate = process_variable(kClientCertificateVariable).value_or(""),
          .key = process_variable(kClientKeyVariable).value_or(""),
          .ca = process_variable(kCaFileVariable).value_or("")};
}

std::string make_token() {
  return secure::to_hex(secure::random_bytes(secure::kDigestBytes));
}

}  // namespace acc::rendezvous
