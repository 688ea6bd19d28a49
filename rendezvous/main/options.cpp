// SPDX-License-Identifier: Apache-2.0
#include "options.hpp"

#include "acc/base/text.hpp"
#include "acc/base/variables.hpp"
#include "acc/documents/document.hpp"
#include "acc/rendezvous/unix_address.hpp"
#include "settings.hpp"

#include <boost/asio/ip/address_v6.hpp>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <utility>

namespace acc::rendezvous {
namespace {

using documents::Node;
using settings::Environment;
using settings::Faults;
using settings::ParsedFlags;
using settings::SettingRow;
using settings::Settings;
using settings::Source;
using settings::Type;

/// Variables of acclaunch and of the subcommands, which have the same prefix.
const std::set<std::string, std::less<>> kClientVariables = {
    kCaFileVariable, kClientCertificateVariable, kClientKeyVariable};

/// Returns the value of a file's entry as text; the items of a list joined by commas, like a flag.
/// Throws Error(config) with file and line for a node that cannot be a value of the setting.
std::string text_of(const Node& node, const SettingRow& row) {
  if (node.is_scalar()) {
    return node.text;
  }
  if (node.kind == Node::Kind::map || row.type != Type::list) {
    throw Error(Errc::config, node.where + ": " + std::string(row.key) + " must be " +
                                  settings::expected_value(row) + ", got " +
                                  (node.kind == Node::Kind::map ? "a block" : "a list"));
  }
  std::string text;
  for (const Node& item : node.items) {
    if (!item.is_scalar()) {
      throw Error(Errc::config, item.where + ": " + std::string(row.key) +
                                    " must be a list of words, got a list or block inside it");
    }
    text += (text.empty() ? "" : ",") + item.text;
  }
  return text;
}

/// Reads the YAML file. `collect` continues after an error, so that all are reported at once.
void read_file(const std::string& path, Settings& settings, Faults& faults) {
  faults.collect([&] {
    const documents::Document document = documents::load_document(path);
    for (const auto& [key, node] : document.root.entries) {
      faults.collect([&] {
        const SettingRow* row = settings::find_setting(key, settings.table());
        if (row != nullptr && !row->in_file) {
          throw Error(Errc::config, node.where + ": " + key + " is not allowed in a file");
        }
        if (row == nullptr || !node.is_empty()) {
          settings.set_named(key, row == nullptr ? "" : text_of(node, *row),
                             {Source::Kind::file, node.where});
        }
      });
    }
  });
}

void read_environment(const Environment& environment, Settings& settings, Faults& faults) {
  for (const SettingRow& row : settings.table()) {
    const std::string name = variable_of(row);
    if (const auto value = settings::variable(environment, name); !value.empty()) {
      faults.collect([&] { settings.set(row, value, {Source::Kind::environment, name}); });
    }
  }
}

void read_flags(const ParsedFlags& flags, Settings& settings, Faults& faults) {
  for (const ParsedFlags::Value& value : flags.values) {
    if (settings::find_setting(value.key, settings.table()) == nullptr) {
      continue;  // one of kPrintingFlags
    }
    const Source source{Source::Kind::flag, value.written};
    // --host may be repeated: further ones are added to the list.
    const bool is_more =
        value.key == "host"_key.name() && settings.source("host"_key).kind == source.kind;
    faults.collect([&] {
      if (value.text.empty()) {
        throw Error(Errc::config, value.written + " needs a value");
      }
      settings.set_named(
          value.key, is_more ? settings.text("host"_key) + "," + value.text : value.text, source);
    });
  }
}

/// Checks the form of an entry of `host`, without a name look-up. Returns the problem, or "".
std::string fault_of(const std::string& host) {
  if (is_unix(host)) {
    return unix_fault(host);
  }
  boost::system::error_code error;
  boost::asio::ip::make_address_v6(host, error);
  return host.find(':') == std::string::npos || !error
             ? ""
             : "expected a name, an address, unix:/path or *; use `port` for the port";
}

std::vector<std::string> hosts_of(const Settings& settings) {
  std::vector<std::string> hosts = settings.list("host"_key);
  std::ranges::transform(hosts, hosts.begin(), without_brackets);
  return hosts;
}

void check_hosts(const Settings& settings, Faults& faults) {
  const std::string where = settings.source("host"_key).where;
  const std::vector<std::string> hosts = hosts_of(settings);
  for (const std::string& host : hosts) {
    if (const std::string fault = fault_of(host); !fault.empty()) {
      faults.add(where + ": host \"" + host + "\": " + fault);
    }
  }
  const bool all = std::ranges::find(hosts, "*") != hosts.end();
  if (hosts.empty()) {
    faults.add(where + ": host must name at least one; * stands for all interfaces");
  } else if (all && std::ranges::count_if(
                        hosts, [](const std::string& host) { return !is_unix(host); }) > 1) {
    faults.add(where + ": host \"*\" is every interface already; leave out the other addresses");
  }
}

/// Returns the folder of the log; empty: none.
std::filesystem::path state_dir(const Settings& settings, const Environment& environment) {
  const std::string given = settings.text("state_dir"_key);
  if (!given.empty() && given != "auto") {
    return given == "none" ? "" : given;
  }
  // systemd.exec(5): absolute paths, separated by colons.
  const std::string managed = settings::variable(environment, "STATE_DIRECTORY");
  if (!managed.empty() || given.empty()) {
    return managed.substr(0, managed.find(':'));
  }
  // XDG Base Directory Specification: a relative path counts as not set.
  constexpr const char* kFolder = "acc-rendezvous";
  const std::filesystem::path state = settings::variable(environment, "XDG_STATE_HOME");
  if (state.is_absolute()) {
    return state / kFolder;
  }
  const std::filesystem::path home = settings::variable(environment, "HOME");
  if (!home.is_absolute()) {
    throw Error(Errc::config,
                settings.source("state_dir"_key).where +
                    ": state_dir \"auto\" needs one of the variables STATE_DIRECTORY, "
                    "XDG_STATE_HOME and HOME; give a folder");
  }
  return home / ".local" / "state" / kFolder;
}

/// Returns the etcd that keeps the log; none: it is in a folder, or there is none.
std::optional<EtcdAddress> etcd_of(const Settings& settings, const Environment& environment) {
  for (const settings::SettingKey key : {"etcd_cacert"_key, "etcd_cert"_key, "etcd_key"_key}) {
    if (settings.given(key) && !settings.text("state"_key).starts_with("etcds://")) {
      throw Error(Errc::config, fmt::format("{}: {} needs state etcds://HOST[:PORT],...",
                                            settings.source(key).where, key.name()));
    }
  }
  if (!settings.has("state"_key)) {
    return std::nullopt;
  }
  const std::string where = settings.source("state"_key).where;
  if (settings.given("state_dir"_key) && settings.text("state_dir"_key) != "none") {
    throw Error(Errc::config, where + ": state cannot be used with state_dir (" +
                                  settings.source("state_dir"_key).where + ")");
  }
  try {
    const TlsFiles files = complete_etcd_files(
        {.certificate = settings.text("etcd_cert"_key),
         .key = settings.text("etcd_key"_key),
         .ca = settings.text("etcd_cacert"_key)},
        [&](const auto& name) { return settings::variable(environment, name); });
    EtcdAddress address = parse_etcd_address(settings.text("state"_key), files);
    if (address.tls) {
      make_etcd_tls(*address.tls);  // finds out mistakes before the daemon serves
    }
    address.lease = settings.duration("lease"_key);
    return address;
  } catch (const Error& error) {
    throw Error(Errc::config, where + ": state: " + error.what());
  }
}

/// Flags, variables and the file of the daemon override ACC_LOG_FORMAT, ACC_LOG_LEVEL and ACC_LOG.
LogSettings log_settings(const Settings& settings) {
  LogWords words = log_words_from_environment();
  if (settings.given("log_format"_key)) {
    words.format = {settings.text("log_format"_key), settings.source("log_format"_key).where};
  }
  if (settings.given("log_level"_key)) {
    words.level = {settings.text("log_level"_key), settings.source("log_level"_key).where};
    words.components = {};
  }
  return read_log_settings(words);
}

/// Returns null if neither a token nor a certificate is given.
std::shared_ptr<const ServerSecurity> security_of(const Options& options) {
  std::optional<Tokens> tokens;
  if (!options.token_file.empty()) {
    tokens = Tokens::read(options.token_file);
    if (tokens->is_for_one_job() || tokens->is_for_readers()) {
      throw Error(Errc::config, fmt::format("{}: the token is for {}; a daemon needs the one from "
                                            "which it was made",
                                            options.token_file.string(),
                                            tokens->is_for_one_job() ? "one job (job-...)"
                                                                     : "readers (reader-...)"));
    }
  }
  if (!tokens && options.tls.certificate.empty() && options.tls.key.empty()) {
    if (!options.tls.ca.empty()) {
      throw Error(Errc::config, "tls_client_ca needs token_file, or tls_cert and tls_key");
    }
    return nullptr;
  }
  return ServerSecurity::make(std::move(tokens), options.tls);
}

}  // namespace

Settings read_settings(const ParsedFlags& flags, const Environment& environment) {
  Settings settings(kDaemonSettings);
  Faults faults = flags.faults;
  const ParsedFlags::Value* named = flags.find("config_file"_key);
  const std::string file = named != nullptr
                               ? named->text
                               : settings::variable(environment, "ACC_RENDEZVOUS_CONFIG_FILE");
  if (!file.empty()) {
    read_file(file, settings, faults);
  }
  read_environment(environment, settings, faults);
  read_flags(flags, settings, faults);
  check_hosts(settings, faults);
  faults.raise();
  return settings;
}

std::vector<std::string> unknown_variables(const Environment& environment) {
  std::vector<std::string> names;
  for (const auto& [name, value] : environment) {
    const auto is_name = [&](const SettingRow& row) { return variable_of(row) == name; };
    if (name.starts_with(kVariablePrefix) && !kClientVariables.contains(name) &&
        std::ranges::none_of(kDaemonSettings, is_name)) {
      names.push_back(name);
    }
  }
  return names;
}

Options to_options(const Settings& settings, const Environment& environment) {
  const auto size = [&](settings::SettingKey key) {
    return static_cast<std::size_t>(settings.size(key));
  };
  const auto count = [&](settings::SettingKey key) {
    return static_cast<std::size_t>(settings.integer(key));
  };
  Options options;
  options.hosts = hosts_of(settings);
  options.port = static_cast<std::uint16_t>(settings.integer("port"_key));
  options.port_file = settings.text("port_file"_key);
  options.log = log_settings(settings);
  options.token_file = settings.text("token_file"_key);
  options.tls = {.certificate = settings.text("tls_cert"_key),
                 .key = settings.text("tls_key"_key),
                 .ca = settings.text("tls_client_ca"_key)};
  options.is_insecure = settings.boolean("insecure"_key);
  options.chose_max_connections = settings.given("max_connections"_key);
  ServerOptions& server = options.server;
  server.max_connections = count("max_connections"_key);
  server.max_keys = count("max_keys"_key);
  server.max_bytes = size("max_bytes"_key);
  server.max_frame_bytes = size("max_frame_bytes"_key);
  server.max_buffered_bytes = size("max_buffered_bytes"_key);
  server.max_unread_bytes = size("max_unread_bytes"_key);
  server.max_peer_percent = static_cast<int>(settings.integer("max_peer_percent"_key));
  server.max_failed_proofs = static_cast<int>(settings.integer("max_failed_proofs"_key));
  server.security = security_of(options);
  server.handshake_timeout = settings.duration("handshake_timeout"_key);
  server.idle_timeout = settings.duration("idle_timeout"_key);
  server.stop_timeout = settings.duration("stop_timeout"_key);
  server.logs_jobs = true;
  server.etcd = etcd_of(settings, environment);
  server.address = settings.text("advertised_address"_key);
  server.state_dir = server.etcd ? "" : state_dir(settings, environment);
  server.syncs = settings.text("durability"_key) == "disk";
  return options;
}

}  // namespace acc::rendezvous
