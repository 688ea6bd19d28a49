// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/etcd_address.hpp"

#include "acc/base/error.hpp"
#include "acc/base/text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace acc::rendezvous {
namespace {

constexpr std::string_view kScheme = "etcd://";
constexpr std::string_view kTlsScheme = "etcds://";
constexpr std::size_t kMostMembers = 16;
constexpr std::size_t kLongestPrefix = 256;

EtcdAddress::Member parse_member(std::string_view text) {
  EtcdAddress::Member member;
  const bool is_bracketed = text.starts_with('[') && text.ends_with(']');
  const auto colon = is_bracketed ? std::string_view::npos : text.rfind(':');
  member.host = without_brackets(std::string(text.substr(0, colon)));
  if (colon != std::string_view::npos) {
    const auto port = parse_integer(text.substr(colon + 1));
    if (!port || *port < 1 || *port > 65535) {
      throw Error(Errc::config,
                  fmt::format("\"{}\": expected a port of 1..65535 after the last colon", text));
    }
    member.port = static_cast<std::uint16_t>(*port);
  }
  if (member.host.empty() || member.host.find_first_of(" \t@?#[]") != std::string::npos) {
    throw Error(Errc::config, fmt::format("\"{}\": expected HOST or HOST:PORT", text));
  }
  return member;
}

}  // namespace

bool is_etcd_address(std::string_view text) noexcept {
  return text.starts_with(kScheme) || text.starts_with(kTlsScheme);
}

EtcdAddress parse_etcd_address(std::string_view text, const TlsFiles& files) {
  if (!is_etcd_address(text)) {
    throw Error(Errc::config,
                fmt::format("expected etcd://HOST[:PORT],...[/PREFIX] or etcds://..., "
                            "got \"{}\"",
                            text));
  }
  if (text.find('@') != std::string_view::npos) {
    throw Error(Errc::not_supported, "user names and passwords of etcd are not supported");
  }
  EtcdAddress address;
  if (text.starts_with(kTlsScheme)) {
    address.tls = files;
  }
  text.remove_prefix(address.tls ? kTlsScheme.size() : kScheme.size());
  if (const auto slash = text.find('/'); slash != std::string_view::npos) {
    std::string_view prefix = text.substr(slash + 1);
    while (prefix.ends_with('/')) {
      prefix.remove_suffix(1);
    }
    address.prefix = prefix.empty() ? address.prefix : std::string(prefix);
    text = text.substr(0, slash);
  }
  if (address.prefix.size() > kLongestPrefix) {
    throw Error(Errc::config, fmt::format("the prefix has {} bytes, expected at most {}",
                                          address.prefix.size(), kLongestPrefix));
  }
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    address.members.push_back(parse_member(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  if (address.members.size() > kMostMembers) {
    throw Error(Errc::config, fmt::format("{} members, expected at most {}", address.members.size(),
                                          kMostMembers));
  }
  return address;
}

TlsFiles complete_etcd_files(TlsFiles files,
                             const std::function<std::string(const std::string& name)>& variable) {
  if (files.ca.empty()) {
    files.ca = variable("ETCDCTL_CACERT");
  }
  if (files.certificate.empty() && files.key.empty()) {
    files.certificate = variable("ETCDCTL_CERT");
    files.key = variable("ETCDCTL_KEY");
  }
  return files;
}

}  // namespace acc::rendezvous
