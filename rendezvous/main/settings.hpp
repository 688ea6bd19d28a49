// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/log.hpp"
#include "acc/settings/flags.hpp"
#include "acc/settings/setting_rows.hpp"

#include <algorithm>
#include <array>
#include <string>

namespace acc::rendezvous {

// The daemon's settings. Flags, keys of the file, environment variables, --help, --print_config and
// the table in docs/rendezvous.md are made from its rows, in this order; a test compares the page
// with `acc-rendezvous --print_settings_table`.
// clang-format off
inline constexpr auto kDaemonSettings = [] {
using settings::SettingRow;
using settings::Type;
std::array rows = {
    SettingRow{.key = "config_file", .alias = "c", .in_file = false,
               .help = "YAML file with the settings below"},
    SettingRow{.key = "host", .type = Type::list, .fallback = "127.0.0.1",
               .help = "where to listen: host names, IPv4 and IPv6 addresses, unix:/path, * for all interfaces"},
    SettingRow{.key = "port", .type = Type::integer, .fallback = "29500", .allowed = "0..65535",
               .help = "TCP port, the same on every host; 0: a free port, which is printed"},
    SettingRow{.key = "port_file",
               .help = "file with one line HOST:PORT per host; it exists while the daemon serves"},
    SettingRow{.key = "state_dir",
               .help = "folder of the log from which a restarted daemon recovers keys, queues and jobs; none; auto: $STATE_DIRECTORY (systemd), else $XDG_STATE_HOME/acc-rendezvous, else ~/.local/state/acc-rendezvous. Not given: $STATE_DIRECTORY, else none"},
    SettingRow{.key = "state",
               .help = "instead of state_dir: etcd://HOST[:PORT],...[/PREFIX], or etcds://... with TLS, the members of an etcd (version 3) that keeps the log of several daemons, of which one leads and the others stand by"},
    SettingRow{.key = "etcd_cacert",
               .help = "with etcds://: file with the certificate authority of etcd, in PEM format. Not given: $ETCDCTL_CACERT, else the authorities of the system"},
    SettingRow{.key = "etcd_cert",
               .help = "with etcds://: file with the certificate that the daemon shows to etcd. Not given: $ETCDCTL_CERT, else none"},
    SettingRow{.key = "etcd_key",
               .help = "private key of etcd_cert. Not given: $ETCDCTL_KEY"},
    SettingRow{.key = "lease", .type = Type::duration, .fallback = "5s", .allowed = "1s..1h",
               .help = "with state: another daemon leads if the leader has not renewed its lease in etcd for this time"},
    SettingRow{.key = "advertised_address",
               .help = "with state: HOST:PORT of this daemon, for messages about the leader. Not given: the first address on which it listens"},
    SettingRow{.key = "durability", .type = Type::choice, .fallback = "disk", .allowed = "disk|memory",
               .help = "what a reply waits for, with a state_dir. disk: its changes are on the disk; memory: the kernel has them, so that they survive the daemon but not the machine"},
    SettingRow{.key = "token_file",
               .help = "file with the token that clients must prove, one per line: the first is the current one, the others are still accepted. Connections then need TLS"},
    SettingRow{.key = "tls_cert",
               .help = "certificate of the server, in PEM format; default with a token: one made at the start, which clients check by the token"},
    SettingRow{.key = "tls_key",
               .help = "private key of tls_cert"},
    SettingRow{.key = "tls_client_ca",
               .help = "certificate authority that must have signed the certificate of each client; default: clients need none"},
    SettingRow{.key = "insecure", .type = Type::boolean, .fallback = "false",
               .help = "allow addresses that other machines can reach without a token"},
    SettingRow{.key = "max_connections", .type = Type::integer, .fallback = "65536", .allowed = "1..10000000",
               .help = "limit of concurrent connections; further ones are closed at once"},
    SettingRow{.key = "max_keys", .type = Type::integer, .fallback = "10000000", .allowed = "1..",
               .help = "limit of keys; a client that would exceed it is disconnected, as with the limits below"},
    SettingRow{.key = "max_bytes", .type = Type::size, .fallback = "4GiB", .allowed = "1MiB..",
               .help = "memory limit of all keys, values, jobs and reports together, including their overhead"},
    SettingRow{.key = "max_frame_bytes", .type = Type::size, .fallback = "512MiB", .allowed = "16KiB..",
               .help = "size limit of one request or one reply"},
    SettingRow{.key = "max_buffered_bytes", .type = Type::size, .fallback = "1GiB", .allowed = "1MiB..",
               .help = "limit of incomplete requests and unread replies of all clients together"},
    SettingRow{.key = "max_unread_bytes", .type = Type::size, .fallback = "4MiB", .allowed = "16KiB..",
               .help = "unread replies of one client beyond which its requests wait (it stays connected)"},
    SettingRow{.key = "max_peer_percent", .type = Type::integer, .fallback = "50", .allowed = "1..100",
               .help = "part of max_connections, max_keys and max_bytes that the clients of one address, or of another user of this machine, may use, in percent"},
    SettingRow{.key = "max_failed_proofs", .type = Type::integer, .fallback = "20", .allowed = "1..1000000",
               .help = "wrong proofs of the token from one address, or one user of this machine, within a minute after which its connections are closed for the rest of the minute, unless a right proof came from it within an hour"},
    SettingRow{.key = "handshake_timeout", .type = Type::duration, .fallback = "30s", .allowed = "1ms..1d",
               .help = "a connection that has not completed the handshake of its protocol by then is closed"},
    SettingRow{.key = "idle_timeout", .type = Type::duration, .fallback = "1h", .allowed = "0..",
               .help = "keys are deleted after this time without any connection; 0: never"},
    SettingRow{.key = "stop_timeout", .type = Type::duration, .fallback = "2s", .allowed = "0..1h",
               .help = "time for clients to read the replies already queued for them when the daemon stops"},
    SettingRow{.key = "log_level", .type = Type::choice, .fallback = "info", .allowed = kLogLevels,
               .help = "lowest level of log lines on standard error"},
    SettingRow{.key = "log_format", .type = Type::choice, .fallback = "text", .allowed = kLogFormats,
               .help = "form of lines on standard error; json: one object per line"},
};
for (SettingRow& row : rows) {
  row.flag = row.type == Type::boolean ? settings::Flag::toggle : settings::Flag::value;
}
return rows;
}();

/// Rows of the flags that print something instead of serving.
inline constexpr std::array kPrintingFlags = {
    settings::SettingRow{.key = "print_config", .flag = settings::Flag::toggle, .in_file = false, .type = settings::Type::boolean,
                        .help = "print every setting with its value and its source"},
    settings::SettingRow{.key = "print_settings_table", .flag = settings::Flag::toggle, .in_file = false, .type = settings::Type::boolean,
                        .help = "print the table of docs/rendezvous.md"},
    settings::SettingRow{.key = "print_completion", .flag = settings::Flag::value, .in_file = false, .type = settings::Type::choice, .allowed = "bash|zsh|fish",
                        .help = "print the completion script of a shell"},
    settings::SettingRow{.key = "print_manual_page", .flag = settings::Flag::toggle, .in_file = false, .type = settings::Type::boolean,
                        .help = "print the manual page"}};
// clang-format on

inline constexpr auto kDaemonFlagRows = [] {
  std::array<settings::SettingRow, kDaemonSettings.size() + kPrintingFlags.size()> rows{};
  std::ranges::copy(kPrintingFlags, std::ranges::copy(kDaemonSettings, rows.begin()).out);
  return rows;
}();

/// The daemon's command line.
inline constexpr settings::FlagTable kDaemonFlags{.table = kDaemonFlagRows, .takes_program = false};

/// Key of a setting or flag of the daemon.
consteval settings::SettingKey operator""_key(const char* text, std::size_t size) {
  const std::string_view name(text, size);
  return {name, settings::names_row(kDaemonFlagRows, name)};
}

inline constexpr const char* kVariablePrefix = "ACC_RENDEZVOUS_";

/// Returns the name of a setting's environment variable: `ACC_RENDEZVOUS_<KEY>`.
inline std::string variable_of(const settings::SettingRow& row) {
  return kVariablePrefix + upper(row.key);
}

}  // namespace acc::rendezvous
