// SPDX-License-Identifier: Apache-2.0
#include "secure/secure_link.hpp"

#include <utility>

namespace acc::rendezvous::secure {

SecureLink::SecureLink(std::shared_ptr<const ClientSecurity> security, const std::string& host,
                       Admission wanted, std::optional<Tokens> tokens)
    : security_(std::move(security)),
      wanted_(std::move(wanted)),
      tokens_(tokens ? std::move(*tokens) : security_->tokens.now()),
      tls_(TlsChannel::client(*security_->tls, host)) {}

void SecureLink::receive(std::string_view bytes, std::string& plain, std::string& out) {
  if (is_admitted()) {
    return tls_->receive(bytes, plain, out);
  }
  tls_->receive(bytes, received_, out);
  if (!proof_ && tls_->is_established()) {
    proof_.emplace(tokens_, wanted_, tls_->binding());
    tls_->send(proof_->hello(), out);
  }
  if (!proof_) {
    return;
  }
  std::string_view rest = received_;
  std::string reply;
  while (proof_->step(rest, reply)) {
  }
  tls_->send(reply, out);
  received_.erase(0, received_.size() - rest.size());
  if (is_admitted()) {
    plain += std::exchange(received_, {});
    tls_->send(std::exchange(waiting_, {}), out);
  }
}

void SecureLink::send(std::string_view plain, std::string& out) {
  if (is_admitted()) {
    tls_->send(plain, out);
  } else {
    waiting_ += plain;
  }
}

}  // namespace acc::rendezvous::secure
