// SPDX-License-Identifier: Apache-2.0
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/output_file.hpp"
#include "acc/base/written_file.hpp"
#include "acc/rendezvous/security.hpp"
#include "secure/crypto.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>

#include <array>
#include <cstring>
#include <memory>

namespace acc::rendezvous {
namespace {

namespace fs = std::filesystem;

template <auto kFree>
struct Freed {
  template <typename T>
  void operator()(T* pointer) const {
    kFree(pointer);
  }
};
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY_free>>;
using Certificate = std::unique_ptr<X509, Freed<X509_free>>;

// Clocks of machines may differ by this.
constexpr long kSkewSeconds = 300;

void check(bool done) {
  if (!done) {
    throw Error(Errc::internal, "OpenSSL cannot make a certificate");
  }
}

struct Issued {
  Key key;
  Certificate certificate;
};

void add_extension(X509* certificate, X509* issuer, int nid, const std::string& value) {
  X509V3_CTX context;
  X509V3_set_ctx_nodb(&context);
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  const std::unique_ptr<X509_EXTENSION, Freed<X509_EXTENSION_free>> extension(
      X509V3_EXT_conf_nid(nullptr, &context, nid, value.c_str()));
  check(extension != nullptr && X509_add_ext(certificate, extension.get(), -1) == 1);
}

/// What a certificate is for.
struct Purpose {
  std::string name;                 ///< common name
  std::string usage;                ///< extended key usage; empty: it is a certificate authority
  std::string alternative_names{};  ///< subjectAltName
};

/// Makes a P-256 key and a certificate for it, signed by `issuer` or by itself.
Issued issue(const Purpose& purpose, std::chrono::seconds valid_for, const Issued* issuer) {
  Issued made{Key(EVP_EC_gen("P-256")), Certificate(X509_new())};
  X509* const x = made.certificate.get();
  check(made.key != nullptr && x != nullptr);
  X509* const issuer_x = issuer != nullptr ? issuer->certificate.get() : x;
  std::string serial = secure::random_bytes(16);
  serial.front() = static_cast<char>(serial.front() & 0x7f);  // a serial number is positive
  const std::unique_ptr<BIGNUM, Freed<BN_free>> number(
      BN_bin2bn(reinterpret_cast<const unsigned char*>(serial.data()),
                static_cast<int>(serial.size()), nullptr));
  check(X509_set_version(x, X509_VERSION_3) == 1 &&
        BN_to_ASN1_INTEGER(number.get(), X509_get_serialNumber(x)) != nullptr &&
        X509_gmtime_adj(X509_getm_notBefore(x), -kSkewSeconds) != nullptr &&
        X509_gmtime_adj(X509_getm_notAfter(x), static_cast<long>(valid_for.count())) != nullptr &&
        X509_set_pubkey(x, made.key.get()) == 1);
  const auto* name = reinterpret_cast<const unsigned char*>(purpose.name.c_str());
  check(X509_NAME_add_entry_by_txt(X509_get_subject_name(x), "CN", MBSTRING_UTF8, name, -1, -1,
                                   0) == 1 &&
        X509_set_issuer_name(x, X509_get_subject_name(issuer_x)) == 1);
  const bool is_authority = purpose.usage.empty();
  add_extension(x, issuer_x, NID_basic_constraints,
                is_authority ? "critical,CA:TRUE,pathlen:0" : "critical,CA:FALSE");
  add_extension(x, issuer_x, NID_key_usage,
                is_authority ? "critical,keyCertSign,cRLSign" : "critical,digitalSignature");
  add_extension(x, issuer_x, NID_subject_key_identifier, "hash");
  if (!is_authority) {
    add_extension(x, issuer_x, NID_ext_key_usage, purpose.usage);
  }
  if (!purpose.alternative_names.empty()) {
    add_extension(x, issuer_x, NID_subject_alt_name, purpose.alternative_names);
  }
  EVP_PKEY* const signer = issuer != nullptr ? issuer->key.get() : made.key.get();
  check(X509_sign(x, signer, EVP_sha256()) > 0);
  return made;
}

/// Writes a new file. A folder without it was checked before.
void write_new(const fs::path& path, std::string_view text, mode_t mode) {
  OutputFile file(path, create_file(path, O_WRONLY, mode));
  file.write(text);
  file.close();
}

template <typename Write>
std::string pem(Write write) {
  const std::unique_ptr<BIO, Freed<BIO_free_all>> bio(BIO_new(BIO_s_mem()));
  check(bio != nullptr && write(bio.get()) == 1);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<std::size_t>(size)};
}

void write_files(const fs::path& folder, const std::string& name, const Issued& issued) {
  write_new(folder / (name + ".key"), pem([&](BIO* bio) {
              return PEM_write_bio_PrivateKey(bio, issued.key.get(), nullptr, nullptr, 0, nullptr,
                                              nullptr);
            }),
            S_IRUSR | S_IWUSR);
  write_new(folder / (name + ".pem"),
            pem([&](BIO* bio) { return PEM_write_bio_X509(bio, issued.certificate.get()); }),
            S_IRUSR | S_IWUSR | S_IRGRP | S_IROTH);
}

std::string alternative_names(const std::vector<std::string>& hosts) {
  std::string names = "DNS:localhost,IP:127.0.0.1,IP:::1";
  for (const std::string& host : hosts) {
    if (host.empty() || host.find_first_of(", \t\r\n:") != std::string::npos) {
      if (!secure::is_ip(host)) {
        throw Error(Errc::config, fmt::format("\"{}\": expected a host name or an address", host));
      }
    }
    names += (secure::is_ip(host) ? ",IP:" : ",DNS:") + host;
  }
  return names;
}

}  // namespace

namespace secure {

bool is_ip(const std::string& host) {
  std::array<unsigned char, sizeof(in6_addr)> ignored{};
  return ::inet_pton(AF_INET, host.c_str(), ignored.data()) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), ignored.data()) == 1;
}

void use_own_certificate(SSL_CTX* context) {
  // Nobody checks its dates: the proof of the token stands for the certificate.
  const Issued own =
      issue({"acc-rendezvous", "serverAuth"}, std::chrono::hours(24 * 3650), nullptr);
  check(SSL_CTX_use_certificate(context, own.certificate.get()) == 1 &&
        SSL_CTX_use_PrivateKey(context, own.key.get()) == 1);
}

}  // namespace secure

void make_tls_folder(const fs::path& folder, const std::vector<std::string>& hosts,
                     std::chrono::seconds valid_for) {
  const std::string names = alternative_names(hosts);
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) {
    throw file_error("create", folder, error.value());
  }
  for (const char* name :
       {"ca.key", "ca.pem", "server.key", "server.pem", "client.key", "client.pem", "token"}) {
    if (fs::exists(fs::symlink_status(folder / name))) {
      throw Error(Errc::config, fmt::format("{} exists already; choose an empty folder",
                                            (folder / name).string()));
    }
  }
  const Issued ca = issue({"acc-rendezvous CA", ""}, valid_for, nullptr);
  write_files(folder, "ca", ca);
  // etcd's HTTP interface is a client of its own member, with the certificate of the server.
  write_files(folder, "server",
              issue({"acc-rendezvous", "serverAuth,clientAuth", names}, valid_for, &ca));
  write_files(folder, "client", issue({"acclaunch", "clientAuth"}, valid_for, &ca));
  write_new(folder / "token", make_token() + "\n", S_IRUSR | S_IWUSR);
}

}  // namespace acc::rendezvous
