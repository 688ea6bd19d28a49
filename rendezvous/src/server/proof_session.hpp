// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "secure/proof.hpp"
#include "server/protocol_handler.hpp"

#include <functional>
#include <memory>
#include <string>
#include <utility>

namespace acc::rendezvous {

/// Protocol handler of a client that proves its token; another one follows it.
class ProofSession : public ProtocolHandler {
 public:
  /// `on_failure` is called once if the proof is wrong; true: it is that of a former token.
  ProofSession(std::shared_ptr<const ServerSecurity> security, std::string binding,
               std::function<void(bool was_right)> on_failure)
      : security_(std::move(security)),
        proof_(*security_, std::move(binding)),
        on_failure_(std::move(on_failure)) {}

  bool step(std::string_view& bytes, std::string& out) override {
    try {
      return proof_.step(bytes, out);
    } catch (...) {
      on_failure_(proof_.was_right());
      throw;
    }
  }
  [[nodiscard]] bool is_open() const noexcept override { return false; }
  [[nodiscard]] unsigned cost() const noexcept override { return 256; }  // reads the token file
  [[nodiscard]] const secure::Admission* admission() const noexcept override {
    return proof_.admission() ? &*proof_.admission() : nullptr;
  }

 private:
  std::shared_ptr<const ServerSecurity> security_;
  secure::ServerProof proof_;
  std::function<void(bool)> on_failure_;
};

}  // namespace acc::rendezvous
