// SPDX-License-Identifier: Apache-2.0
#include "secure/proof.hpp"

#include "acc/base/error.hpp"
#include "secure/crypto.hpp"

#include <utility>

namespace acc::rendezvous::secure {
namespace {

constexpr char kGranted = 0;  // first byte of each reply of a server that does not refuse

constexpr std::size_t kFixedHello = kProofHello.size() + 1 + 2;  // version, role, length of run id

std::string encoded(const Admission& asked) {
  std::string bytes(1, static_cast<char>(asked.role));
  bytes.push_back(static_cast<char>(asked.run_id.size() & 0xffU));
  bytes.push_back(static_cast<char>(asked.run_id.size() >> 8U));
  return bytes + asked.run_id;
}

/// Returns the digest by which a side, 'c' or 's', proves the key. Every part but the run id, whose
/// length is in front, has a fixed length, so no two handshakes have the same text.
std::string digest_of(char side, const std::string& key, const Admission& asked,
                      const std::string& binding, const std::string& client_nonce,
                      const std::string& server_nonce) {
  return hmac(key, "acclaunch proof 1 " + std::string(1, side) + binding + encoded(asked) +
                       client_nonce + server_nonce);
}

std::string take(std::string_view& bytes, std::size_t size) {
  std::string taken(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return taken;
}

}  // namespace

ClientProof::ClientProof(const Tokens& tokens, Admission wanted, std::string binding)
    : wanted_(std::move(wanted)), binding_(std::move(binding)), nonce_(random_bytes(kDigestBytes)) {
  const auto keys = tokens.keys(wanted_.role, wanted_.run_id);
  if (keys.empty()) {
    tokens.refuse_use();
  }
  if (wanted_.run_id.size() > kMaxRunId) {
    throw Error(Errc::config, "the run id is longer than 1024 bytes");
  }
  key_ = keys.front();
}

std::string ClientProof::hello() const {
  return std::string(kProofHello) + encoded(wanted_) + nonce_;
}

bool ClientProof::step(std::string_view& bytes, std::string& out) {
  if (bytes.empty() || is_over()) {
    return false;
  }
  if (bytes.front() == kProofRefusal && state_ == State::proof) {
    throw TokenRefused(Errc::disagreement,
                       "the server refuses the token: this machine has another token, or one for "
                       "another job (ACC_RENDEZVOUS_TOKEN_FILE)");
  }
  if (bytes.front() != kGranted) {
    throw Error(Errc::disagreement,
                "the server has no token, or knows only other versions of its proof");
  }
  if (bytes.size() < 1 + kDigestBytes) {
    return false;
  }
  bytes.remove_prefix(1);
  const std::string received = take(bytes, kDigestBytes);
  if (state_ == State::hello) {
    server_nonce_ = received;
    out += digest_of('c', key_, wanted_, binding_, nonce_, server_nonce_);
    state_ = State::proof;
    return true;
  }
  if (!are_equal(received, digest_of('s', key_, wanted_, binding_, nonce_, server_nonce_))) {
    throw Error(Errc::disagreement,
                "the server cannot prove that it has the token: it is another server, or somebody "
                "is between this machine and the server");
  }
  state_ = State::over;
  return true;
}

ServerProof::ServerProof(const ServerSecurity& security, std::string binding)
    : security_(security), binding_(std::move(binding)) {}

bool ServerProof::step(std::string_view& bytes, std::string& out) {
  if (admission_) {
    return false;
  }
  return nonce_.empty() ? take_hello(bytes, out) : take_proof(bytes, out);
}

bool ServerProof::take_hello(std::string_view& bytes, std::string& out) {
  if (bytes.substr(0, kProofHello.size()) != kProofHello.substr(0, bytes.size())) {
    out.push_back(kProofRefusal);
    throw Error(Errc::protocol, "not a token proof of this version");
  }
  if (bytes.size() < kFixedHello) {
    return false;
  }
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
  const auto role = byte(kProofHello.size());
  const std::size_t length = byte(kFixedHello - 2) + (std::size_t{byte(kFixedHello - 1)} << 8U);
  if (role < static_cast<unsigned>(Role::agent) || role > static_cast<unsigned>(Role::reader) ||
      length > kMaxRunId) {
    throw Error(Errc::protocol,
                "a token proof of an unknown role or with a run id that is too long");
  }
  if (bytes.size() < kFixedHello + length + kDigestBytes) {
    return false;
  }
  bytes.remove_prefix(kFixedHello);
  asked_ = {static_cast<Role>(role), take(bytes, length)};
  client_nonce_ = take(bytes, kDigestBytes);
  nonce_ = random_bytes(kDigestBytes);
  out.push_back(kGranted);
  out += nonce_;
  return true;
}

bool ServerProof::take_proof(std::string_view& bytes, std::string& out) {
  if (bytes.size() < kDigestBytes) {
    return false;
  }
  const std::string proof = take(bytes, kDigestBytes);
  const bool is_of_job = asked_.role == Role::agent || asked_.role == Role::store;
  const bool is_other_job = is_of_job && security_.only_job && *security_.only_job != asked_.run_id;
  const auto digest = [&](char side, const std::string& key) {
    return digest_of(side, key, asked_, binding_, client_nonce_, nonce_);
  };
  const Tokens tokens = security_.tokens->now();
  for (const std::string& key : tokens.keys(asked_.role, asked_.run_id)) {
    if (are_equal(proof, digest('c', key)) && !is_other_job) {
      out.push_back(kGranted);
      out += digest('s', key);
      admission_ = asked_;
      return true;
    }
  }
  for (const std::string& key : tokens.former_keys(asked_.role, asked_.run_id)) {
    was_right_ = was_right_ || are_equal(proof, digest('c', key));
  }
  out.push_back(kProofRefusal);
  throw Error(Errc::disagreement, "a wrong token proof");
}

}  // namespace acc::rendezvous::secure
