// SPDX-License-Identifier: Apache-2.0
// Rendezvous options in torchrun's notation: --rdzv-conf, --rdzv-endpoint, --nnodes. The keys are
// those of torch.distributed.elastic.rendezvous in PyTorch 2.13. Keys that have no counterpart
// here, such as read_timeout, are accepted after a check of their value.
#include "plan/rendezvous_values.hpp"

#include "acc/base/text.hpp"
#include "acc/rendezvous/etcd_address.hpp"
#include "acc/settings/faults.hpp"
#include "acc/settings/settings.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <random>

namespace acc::launcher::plan {
namespace {

using settings::Faults;

constexpr std::chrono::seconds kStaticJoinTimeout{900};
constexpr std::chrono::seconds kElasticJoinTimeout{600};

// The back ends. A machine that is alone is planned like static.
constexpr unsigned kStatic = 1;
constexpr unsigned kC10d = 2;
constexpr unsigned kEtcd = 4;
constexpr unsigned kElastic = kC10d | kEtcd;
constexpr unsigned kAll = kStatic | kElastic;

/// A key of --rdzv-conf, the type of its value, and the back ends that read it. Others ignore it
/// with any value, as in torch.
struct ConfKey {
  std::string_view name;
  enum Kind { seconds, fraction, count, boolean, store, protocol, file, any } kind;
  unsigned readers;
};

constexpr std::array kConfKeys = {
    ConfKey{"timeout", ConfKey::seconds, kStatic | kEtcd},
    ConfKey{"join_timeout", ConfKey::seconds, kElastic},
    ConfKey{"last_call_timeout", ConfKey::seconds, kElastic},
    ConfKey{"close_timeout", ConfKey::seconds, kElastic},
    ConfKey{"heartbeat_timeout", ConfKey::fraction, kAll},
    ConfKey{"keep_alive_interval", ConfKey::seconds, kAll},
    ConfKey{"read_timeout", ConfKey::seconds, kElastic},
    ConfKey{"keep_alive_max_attempt", ConfKey::count, kAll},
    ConfKey{"is_host", ConfKey::boolean, kC10d},
    ConfKey{"compare_arguments", ConfKey::boolean, kAll},
    ConfKey{"store_type", ConfKey::store, kC10d},
    // Keys of etcd, then the names that torch's etcd-v2 gives them.
    ConfKey{"protocol", ConfKey::protocol, kEtcd},
    ConfKey{"cacert", ConfKey::file, kEtcd},
    ConfKey{"cert", ConfKey::file, kEtcd},
    ConfKey{"key", ConfKey::file, kEtcd},
    ConfKey{"ca_cert", ConfKey::file, kEtcd},
    ConfKey{"ssl_cert", ConfKey::file, kEtcd},
    ConfKey{"ssl_cert_key", ConfKey::file, kEtcd},
    // Keys of torch for what a daemon of acc-rendezvous decides, and that torchrun sets itself.
    ConfKey{"etcd_prefix", ConfKey::any, 0},
    ConfKey{"rank", ConfKey::any, 0},
};

unsigned back_end_of(const RendezvousPlan& plan) {
  if (plan.backend != RendezvousPlan::Backend::c10d) {
    return kStatic;
  }
  return rendezvous::is_etcd_address(plan.address) ? kEtcd : kC10d;
}

/// Returns the notice about a key that the back end does not read; "" for one of a script that
/// serves several back ends.
std::string unread_key(const std::string& where, const ConfKey& key, unsigned back_end) {
  std::string notice = where + ": " + std::string(key.name) + " has no effect ";
  if ((key.readers & ~kEtcd) == 0 && key.readers != 0) {
    return notice + "without etcd and protocol=https";
  }
  notice += back_end == kStatic ? "with static" : back_end == kC10d ? "with c10d" : "with etcd";
  if (key.name == "timeout") {
    return notice + ", which reads join_timeout";
  }
  if (key.name == "join_timeout") {
    return notice + ", which reads timeout";
  }
  return key.readers == 0 ? notice : "";
}

/// Parses seconds, possibly with a fraction, from 0.1 to 1e6.
std::optional<std::chrono::milliseconds> read_fraction(const std::string& text) {
  const auto value = settings::parse_real(text);
  if (!value || *value < 0.1 || *value > 1e6) {
    return std::nullopt;
  }
  return std::chrono::round<std::chrono::milliseconds>(std::chrono::duration<double>(*value));
}

/// Returns a description of the expected value if `value` is invalid; else "".
std::string expected_conf_value(const ConfKey& key, const std::string& value) {
  const std::string name(key.name);
  const auto number = read_number(value);
  switch (key.kind) {
    case ConfKey::seconds: return number && *number > 0 ? "" : name + "=SECONDS, at least 1";
    case ConfKey::fraction: return read_fraction(value) ? "" : name + "=SECONDS, at least 0.1";
    case ConfKey::count: return number && *number > 0 ? "" : name + "=NUMBER, at least 1";
    case ConfKey::boolean: return settings::parse_boolean(value) ? "" : name + "=true or false";
    case ConfKey::store:
      return lower(value) == "tcp" ? "" : name + "=tcp: machines meet over the network";
    case ConfKey::protocol:
      return lower(value) == "http" || lower(value) == "https" ? "" : name + "=http or https";
    case ConfKey::file:
    case ConfKey::any: return "";
  }
  return {};
}

/// True if `host` is an IPv6 address, with or without a zone as in fe80::1%eth0.
bool is_ipv6(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) == 1;
}

std::string unknown_conf_key(const std::string& where, std::string_view key) {
  std::vector<std::string_view> known;
  known.reserve(std::size(kConfKeys));
  for (const ConfKey& each : kConfKeys) {
    known.push_back(each.name);
  }
  return where + ": unknown key " + std::string(key) + " has no effect" +
         settings::did_you_mean(key, known);
}

/// The valid entries.
using Conf = std::map<std::string_view, std::string>;

std::optional<std::chrono::seconds> seconds_of(const Conf& conf, std::string_view key) {
  const auto found = conf.find(key);
  return found == conf.end() ? std::nullopt
                             : std::optional(std::chrono::seconds(*read_number(found->second)));
}

/// Returns the time after which a silent machine is lost. In torch that is keep_alive_interval
/// times keep_alive_max_attempt (5 s * 3), and heartbeat_timeout limits a single heartbeat; here
/// heartbeat_timeout sets the time directly and takes precedence.
std::chrono::milliseconds heartbeat_timeout(const Conf& conf, std::chrono::milliseconds usual) {
  if (const auto found = conf.find("heartbeat_timeout"); found != conf.end()) {
    return *read_fraction(found->second);
  }
  const auto attempts = conf.find("keep_alive_max_attempt");
  const auto interval = seconds_of(conf, "keep_alive_interval");
  if (!interval && attempts == conf.end()) {
    return usual;
  }
  return interval.value_or(std::chrono::seconds(5)) *
         (attempts == conf.end() ? 3 : *read_number(attempts->second));
}

void set_times(const Conf& conf, RendezvousPlan& plan) {
  const bool elastic = plan.backend == RendezvousPlan::Backend::c10d;
  plan.join_timeout = seconds_of(conf, "join_timeout")
                          .value_or(seconds_of(conf, "timeout").value_or(plan.join_timeout));
  plan.heartbeat_timeout = heartbeat_timeout(conf, plan.heartbeat_timeout);
  if (const auto found = conf.find("compare_arguments"); found != conf.end()) {
    plan.compares_arguments = settings::parse_boolean(found->second).value_or(true);
  }
  if (elastic) {
    plan.last_call_timeout = seconds_of(conf, "last_call_timeout").value_or(plan.last_call_timeout);
    plan.close_timeout = seconds_of(conf, "close_timeout").value_or(plan.close_timeout);
    if (const auto found = conf.find("is_host"); found != conf.end()) {
      plan.is_host = settings::parse_boolean(found->second);
    }
  }
}

/// Sets how the plan connects to etcd. Returns the keys that have no effect.
std::vector<std::string_view> set_etcd(const Conf& conf, RendezvousPlan& plan) {
  const auto file = [&](std::string_view key, std::string_view other) {
    const auto found = conf.contains(key) ? conf.find(key) : conf.find(other);
    return found == conf.end() ? "" : found->second;
  };
  const auto protocol = conf.find("protocol");
  if (protocol != conf.end() && lower(protocol->second) == "https") {
    plan.address = "etcds" + plan.address.substr(plan.address.find(':'));
    plan.etcd_files = {.certificate = file("cert", "ssl_cert"),
                       .key = file("key", "ssl_cert_key"),
                       .ca = file("cacert", "ca_cert")};
    return {};
  }
  std::vector<std::string_view> unused;
  for (const auto& [key, value] : conf) {
    const auto kind = std::ranges::find(kConfKeys, key, &ConfKey::name)->kind;
    if (kind == ConfKey::file) {
      unused.push_back(key);
    }
  }
  return unused;
}

}  // namespace

std::string not_connected(const std::string& where, const std::string& elastic) {
  return where + " is not connected to, because one machine needs no rendezvous; " + elastic +
         " lets the job join a daemon there, --status_port shows it without one";
}

std::vector<std::string> read_rendezvous_conf(const Sourced<std::string>& given,
                                              RendezvousPlan& plan) {
  plan.join_timeout =
      plan.backend == RendezvousPlan::Backend::c10d ? kElasticJoinTimeout : kStaticJoinTimeout;
  if (trimmed(given.value).empty()) {
    return {};
  }
  const unsigned back_end = back_end_of(plan);
  Conf conf;
  std::vector<std::string> notices;
  Faults faults;
  for (const std::string_view entry : entries_of(given.value)) {
    const auto equals = std::min(entry.find('='), entry.size());
    const std::string_view key = trimmed(entry.substr(0, equals));
    const std::string value(trimmed(entry.substr(std::min(entry.size(), equals + 1))));
    const auto known = std::ranges::find(kConfKeys, key, &ConfKey::name);
    if (key.empty() || value.empty()) {
      faults.add(bad_value(given, "KEY=VALUE joined by commas, as in timeout=60").what());
    } else if (known == kConfKeys.end()) {
      notices.push_back(unknown_conf_key(given.where, key));
    } else if ((known->readers & back_end) == 0) {
      if (std::string notice = unread_key(given.where, *known, back_end); !notice.empty()) {
        notices.push_back(std::move(notice));
      }
    } else if (const auto expected = expected_conf_value(*known, value); !expected.empty()) {
      faults.add(bad_value({std::string(entry), given.where}, expected).what());
    } else {
      conf[known->name] = value;
    }
  }
  faults.raise();
  set_times(conf, plan);
  for (const std::string_view key : set_etcd(conf, plan)) {
    notices.push_back(
        fmt::format("{}: {} has no effect without etcd and protocol=https", given.where, key));
  }
  return notices;
}

Endpoint read_endpoint(const Sourced<std::string>& given) {
  const auto bad = [&] { return bad_value(given, "HOST, HOST:PORT or [IPv6 address]:PORT"); };
  const std::string text(trimmed(given.value));
  const bool is_bracketed_host = text.starts_with('[') && text.ends_with(']');
  const auto colon = is_bracketed_host ? std::string::npos : text.rfind(':');
  Endpoint endpoint;
  endpoint.host = without_brackets(text.substr(0, colon));
  if (colon != std::string::npos) {
    const auto port = read_number(std::string_view(text).substr(colon + 1));
    if (!port || *port > std::numeric_limits<std::uint16_t>::max()) {
      throw bad();
    }
    endpoint.port = static_cast<std::uint16_t>(*port);
  }
  const bool has_colon = endpoint.host.find(':') != std::string::npos;
  if (endpoint.host.empty() || (has_colon && !is_ipv6(endpoint.host)) ||
      endpoint.host.find_first_of(" \t/[]") != std::string::npos) {
    throw bad();
  }
  return endpoint;
}

std::vector<Endpoint> read_endpoints(const Sourced<std::string>& given) {
  std::vector<Endpoint> endpoints;
  for (std::size_t begin = 0; begin <= given.value.size();) {
    const std::size_t end = std::min(given.value.find(',', begin), given.value.size());
    endpoints.push_back(read_endpoint({given.value.substr(begin, end - begin), given.where}));
    begin = end + 1;
  }
  return endpoints;
}

std::string endpoints_text(const std::vector<Endpoint>& endpoints, std::uint16_t port) {
  std::string text;
  for (const Endpoint& each : endpoints) {
    const bool has_colon = each.host.find(':') != std::string::npos;
    text += (text.empty() ? "" : ",") + (has_colon ? "[" + each.host + "]" : each.host) + ":" +
            std::to_string(each.port.value_or(port));
  }
  return text;
}

MachineRange read_machine_range(const Sourced<std::string>& given) {
  const auto colon = given.value.find(':');
  const auto least = read_number(std::string_view(given.value).substr(0, colon));
  const auto most = colon == std::string::npos
                        ? least
                        : read_number(std::string_view(given.value).substr(colon + 1));
  if (!least || !most || *least < 1 || *most < *least) {
    throw bad_value(given, "N or MIN:MAX machines with 1 <= MIN <= MAX");
  }
  return {*least, *most};
}

std::string random_run_id() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::uniform_int_distribution<std::size_t> digit(0, kDigits.size() - 1);
  std::string id = "xxxxxxxx-xxxx-4xxx-8xxx-xxxxxxxxxxxx";  // version 4, variant 1
  for (char& c : id) {
    c = c == 'x' ? kDigits[digit(random)] : c;
  }
  return id;
}

}  // namespace acc::launcher::plan
