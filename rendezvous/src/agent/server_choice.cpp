// SPDX-License-Identifier: Apache-2.0
#include "agent/server_choice.hpp"

namespace acc::rendezvous {
namespace {

/// Time limit of one attempt to connect and enter. It bounds the delay by a lost SYN packet.
constexpr ServerChoice::Milliseconds kAttemptTimeout{10'000};
/// The same, if the rendezvous has other addresses too.
constexpr ServerChoice::Milliseconds kBriefAttemptTimeout{2'000};

/// Time after which a token that a server has refused is proved again. A server counts wrong proofs
/// (ServerOptions::max_failed_proofs), but may read a new token later than this machine.
constexpr std::chrono::seconds kRefusalPause{30};

}  // namespace

ServerChoice::Milliseconds ServerChoice::attempt_timeout() const {
  return servers_.size() > 1 ? kBriefAttemptTimeout : kAttemptTimeout;
}

bool ServerChoice::choose_token() {
  if (security_) {
    token_ = token_to_prove();
  }
  return !security_ || token_;
}

bool ServerChoice::refuse_token() {
  refused_[{current_, token_->current()}] = std::chrono::steady_clock::now();
  return token_to_prove().has_value();
}

/// Returns the first of the tokens that the server has not refused a moment ago. The file of the
/// tokens may have been changed since the last connection.
std::optional<Tokens> ServerChoice::token_to_prove() const {
  const auto now = std::chrono::steady_clock::now();
  for (Tokens& token : security_->tokens.now().each()) {
    const auto found = refused_.find({current_, token.current()});
    if (found == refused_.end() || now >= found->second + kRefusalPause) {
      return std::move(token);
    }
  }
  return std::nullopt;
}

std::unique_ptr<secure::SecureLink> ServerChoice::encryption(const std::string& run_id) const {
  return security_ ? std::make_unique<secure::SecureLink>(
                         security_, current().host, secure::Admission{Role::agent, run_id}, token_)
                   : nullptr;
}

}  // namespace acc::rendezvous
