// SPDX-License-Identifier: Apache-2.0
#include "secure/tls.hpp"

#include "acc/base/error.hpp"
#include "secure/crypto.hpp"

#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509_vfy.h>

#include <array>
#include <climits>
#include <fstream>
#include <utility>

namespace acc::rendezvous {
namespace {

std::string openssl_reason() {
  const unsigned long code = ERR_peek_last_error();
  const char* reason = ERR_reason_error_string(code);
  ERR_clear_error();
  return reason != nullptr ? reason : "unknown error";
}

void check_opens(const std::filesystem::path& file) {
  if (!std::ifstream(file)) {
    throw Error(Errc::not_found, file.string() + ": cannot open the file");
  }
}

[[noreturn]] void refuse_file(const std::filesystem::path& file, const std::string& expected) {
  throw Error(Errc::config,
              fmt::format("{}: expected {} ({})", file.string(), expected, openssl_reason()));
}

/// Refuses a certificate whose time is over, before clients do.
void check_dates(SSL_CTX* context, const std::filesystem::path& file) {
  const X509* certificate = SSL_CTX_get0_certificate(context);
  if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0) {
    throw Error(Errc::config, file.string() + ": the certificate has expired");
  }
  if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0) {
    throw Error(Errc::config, file.string() + ": the certificate is not valid yet");
  }
}

void use_identity(SSL_CTX* context, const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    throw Error(Errc::config,
                fmt::format("{}: a certificate and its private key belong together; give both",
                            (files.key.empty() ? files.certificate : files.key).string()));
  }
  if (files.certificate.empty()) {
    return;
  }
  check_opens(files.certificate);
  check_opens(files.key);
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    refuse_file(files.certificate, "a certificate in PEM format");
  }
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) != 1 ||
      SSL_CTX_check_private_key(context) != 1) {
    refuse_file(files.key, "the private key of " + files.certificate.string() + " in PEM format");
  }
  check_dates(context, files.certificate);
}

void use_ca(SSL_CTX* context, const std::filesystem::path& ca) {
  if (ca.empty()) {
    return;
  }
  check_opens(ca);
  if (SSL_CTX_load_verify_locations(context, ca.c_str(), nullptr) != 1) {
    refuse_file(ca, "certificates in PEM format");
  }
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
}

std::shared_ptr<TlsContext> make_context(const SSL_METHOD* method, const TlsFiles& files,
                                         TlsMessages messages = {},
                                         int oldest_version = TLS1_3_VERSION) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> owned(SSL_CTX_new(method), SSL_CTX_free);
  SSL_CTX* const raw = owned.get();
  if (raw == nullptr || SSL_CTX_set_min_proto_version(raw, oldest_version) != 1) {
    throw Error(Errc::internal, "OpenSSL has no TLS 1.3: " + openssl_reason());
  }
  // Each connection has its own proof; nothing is resumed.
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_mode(raw, SSL_MODE_RELEASE_BUFFERS);
  use_identity(raw, files);
  use_ca(raw, files.ca);
  return std::make_shared<TlsContext>(TlsContext{owned, messages});
}

}  // namespace

std::shared_ptr<const ServerSecurity> ServerSecurity::make(std::optional<Tokens> tokens,
                                                           const TlsFiles& files,
                                                           std::optional<std::string> only_job) {
  auto context = make_context(TLS_server_method(), files);
  constexpr long kMaxCertificates = 32 * 1024;  // a client's; OpenSSL would allow 100 KiB
  SSL_CTX_set_max_cert_list(context->context.get(), kMaxCertificates);
  if (files.certificate.empty()) {
    secure::use_own_certificate(context->context.get());
  }
  return std::make_shared<ServerSecurity>(
      ServerSecurity{std::move(tokens), std::move(only_job), std::move(context)});
}

std::shared_ptr<const ClientSecurity> ClientSecurity::make(Tokens tokens, const TlsFiles& files) {
  constexpr TlsMessages kMessages = {
      .no_tls = "the server does not use TLS: it has no token, or another program listens there",
      .no_certificate =
          "the server requires a client certificate (ACC_RENDEZVOUS_CLIENT_CERT, "
          "ACC_RENDEZVOUS_CLIENT_KEY)"};
  return std::make_shared<ClientSecurity>(
      ClientSecurity{std::move(tokens), make_context(TLS_client_method(), files, kMessages)});
}

std::shared_ptr<TlsContext> make_etcd_tls(const TlsFiles& files) {
  constexpr TlsMessages kMessages = {
      .no_tls = "it does not use TLS: use etcd:// instead of etcds://",
      .no_certificate = "it requires a client certificate (ETCDCTL_CERT, ETCDCTL_KEY)"};
  auto context = make_context(TLS_client_method(), files, kMessages, TLS1_2_VERSION);
  if (files.ca.empty()) {
    SSL_CTX_set_default_verify_paths(context->context.get());
    SSL_CTX_set_verify(context->context.get(), SSL_VERIFY_PEER, nullptr);
  }
  return context;
}

namespace secure {

bool has_client_hello(std::string_view bytes) {
  // RFC 8446, sections 5.1 and 4: type, version and length of the record, then type and length of
  // the message.
  constexpr std::size_t kRecordHead = 5;
  constexpr std::size_t kMessageHead = 4;
  const auto byte = [&](std::size_t at) {
    return std::size_t{static_cast<unsigned char>(bytes[at])};
  };
  if (bytes.size() < kRecordHead) {
    return false;
  }
  const std::size_t record = (byte(3) << 8U) + byte(4);
  if (byte(1) != 3 || record < kMessageHead || record > kMaxClientHello + kMessageHead) {
    throw Error(Errc::protocol, "not the first record of a TLS client");
  }
  if (bytes.size() < kRecordHead + kMessageHead) {
    return false;
  }
  const std::size_t message = (byte(6) << 16U) + (byte(7) << 8U) + byte(8);
  if (byte(5) != 1 || message > kMaxClientHello) {
    throw Error(Errc::protocol, "not the first message of a TLS client, or it is too long");
  }
  return bytes.size() >= kRecordHead + record;
}

TlsChannel::TlsChannel(const TlsContext& context)
    : ssl_(SSL_new(context.context.get())), messages_(context.messages) {
  BIO* const incoming = BIO_new(BIO_s_mem());
  BIO* const outgoing = BIO_new(BIO_s_mem());
  if (ssl_ == nullptr || incoming == nullptr || outgoing == nullptr) {
    throw Error(Errc::out_of_memory, "no memory for a TLS connection");
  }
  SSL_set_bio(ssl_, incoming, outgoing);  // owns both
}

std::unique_ptr<TlsChannel> TlsChannel::server(const TlsContext& context) {
  std::unique_ptr<TlsChannel> channel(new TlsChannel(context));
  SSL_set_accept_state(channel->ssl_);
  return channel;
}

std::unique_ptr<TlsChannel> TlsChannel::client(const TlsContext& context, const std::string& host) {
  std::unique_ptr<TlsChannel> channel(new TlsChannel(context));
  SSL_set_connect_state(channel->ssl_);
  X509_VERIFY_PARAM* const wanted = SSL_get0_param(channel->ssl_);
  if (is_ip(host)) {
    X509_VERIFY_PARAM_set1_ip_asc(wanted, host.c_str());
  } else {
    X509_VERIFY_PARAM_set1_host(wanted, host.c_str(), host.size());
    SSL_set_tlsext_host_name(channel->ssl_, host.c_str());
  }
  return channel;
}

TlsChannel::~TlsChannel() {
  SSL_free(ssl_);
}

void TlsChannel::drain(std::string& out) {
  BIO* const outgoing = SSL_get_wbio(ssl_);
  char* data = nullptr;
  const long size = BIO_get_mem_data(outgoing, &data);
  if (size > 0) {
    out.append(data, static_cast<std::size_t>(size));
    BIO_reset(outgoing);
  }
}

/// Reports the error of the last call. Appends the alert that OpenSSL made.
void TlsChannel::fail(std::string& out) {
  drain(out);
  const long verified = SSL_get_verify_result(ssl_);
  if (verified != X509_V_OK && (SSL_get_verify_mode(ssl_) & SSL_VERIFY_PEER) != 0) {
    ERR_clear_error();
    throw Error(Errc::disagreement, std::string("the certificate of the other side is refused: ") +
                                        X509_verify_cert_error_string(verified));
  }
  const int reason = ERR_GET_REASON(ERR_peek_last_error());
  const std::string text = openssl_reason();
  if (SSL_is_server(ssl_) == 0 &&
      (reason == SSL_R_SSLV3_ALERT_HANDSHAKE_FAILURE || reason == SSL_R_WRONG_VERSION_NUMBER)) {
    throw Error(Errc::disagreement, std::string(messages_.no_tls));
  }
  if (SSL_is_server(ssl_) == 0 && reason == SSL_R_TLSV1_ALERT_ACCESS_DENIED) {
    throw Error(Errc::connection,
                "the server accepts no connection of this address for up to a minute: too many "
                "wrong proofs of the token came from it (max_failed_proofs)");
  }
  // Go's servers send bad_certificate if there is none.
  if (reason == SSL_R_TLSV13_ALERT_CERTIFICATE_REQUIRED ||
      (reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE && SSL_get_certificate(ssl_) == nullptr)) {
    throw Error(Errc::disagreement, std::string(messages_.no_certificate));
  }
  if (reason == SSL_R_SSLV3_ALERT_BAD_CERTIFICATE || reason == SSL_R_TLSV1_ALERT_UNKNOWN_CA) {
    throw Error(Errc::disagreement, "the other side refuses this side's certificate: " + text);
  }
  throw Error(Errc::disagreement, "TLS failed: " + text);
}

void TlsChannel::start(std::string& out) {
  ERR_clear_error();
  SSL_do_handshake(ssl_);
  drain(out);
}

void TlsChannel::receive(std::string_view bytes, std::string& plain, std::string& out) {
  ERR_clear_error();
  if (BIO_write(SSL_get_rbio(ssl_), bytes.data(), static_cast<int>(bytes.size())) !=
      static_cast<int>(bytes.size())) {
    throw Error(Errc::out_of_memory, "no memory for a TLS record");
  }
  if (!is_established()) {
    const int result = SSL_do_handshake(ssl_);
    if (result != 1 && SSL_get_error(ssl_, result) != SSL_ERROR_WANT_READ) {
      fail(out);
    }
  }
  std::array<char, 16 * 1024> buffer;  // one TLS record
  while (is_established()) {
    const int count = SSL_read(ssl_, buffer.data(), static_cast<int>(buffer.size()));
    if (count > 0) {
      plain.append(buffer.data(), static_cast<std::size_t>(count));
      continue;
    }
    const int error = SSL_get_error(ssl_, count);
    if (error == SSL_ERROR_ZERO_RETURN) {
      is_finished_ = true;
    } else if (error != SSL_ERROR_WANT_READ) {
      fail(out);
    }
    break;
  }
  drain(out);
}

void TlsChannel::send(std::string_view plain, std::string& out) {
  ERR_clear_error();
  while (!plain.empty()) {
    const std::size_t size = std::min<std::size_t>(plain.size(), INT_MAX);
    // The memory BIO takes everything.
    if (SSL_write(ssl_, plain.data(), static_cast<int>(size)) != static_cast<int>(size)) {
      fail(out);
    }
    plain.remove_prefix(size);
  }
  drain(out);
}

void TlsChannel::finish(std::string& out) {
  ERR_clear_error();
  if (is_established() && (SSL_get_shutdown(ssl_) & SSL_SENT_SHUTDOWN) == 0) {
    SSL_shutdown(ssl_);
  }
  drain(out);
}

bool TlsChannel::is_established() const noexcept {
  return SSL_is_init_finished(ssl_) != 0;
}

std::string TlsChannel::binding() const {
  constexpr std::string_view kLabel = "EXPORTER-Channel-Binding";
  std::string bytes(kDigestBytes, '\0');
  if (SSL_export_keying_material(ssl_, reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(),
                                 kLabel.data(), kLabel.size(), nullptr, 0, 1) != 1) {
    throw Error(Errc::internal, "OpenSSL has no channel binding: " + openssl_reason());
  }
  return bytes;
}

}  // namespace secure
}  // namespace acc::rendezvous
