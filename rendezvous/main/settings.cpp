#include "settings.hpp"

#include "acc/plugins/settings.hpp"

#include <array>

namespace acc::rendezvous {
namespace {

using plugins::SettingRow;
using plugins::Type;

// clang-format off
constexpr std::array kSettings = {
    SettingRow{.key = "config_file", .alias = "c", .in_file = false,
               .help = "YAML file of the settings below"},
    SettingRow{.key = "host", .type = Type::list, .fallback = "127.0.0.1",
               .help = "where to listen: names, IPv4 and IPv6 addresses, unix:/path, * for all interfaces"},
    SettingRow{.key = "port", .type = Type::integer, .fallback = "29500", .allowed = "0..65535",
               .help = "TCP port, the same on every host; 0: a free one, which is printed"},
    SettingRow{.key = "port_file",
               .help = "file that holds a line HOST:PORT for each host while the daemon serves"},
    SettingRow{.key = "max_connections", .type = Type::integer, .fallback = "65536", .allowed = "1..10000000",
               .help = "clients at a time; more are closed at once"},
    SettingRow{.key = "max_keys", .type = Type::integer, .fallback = "10000000", .allowed = "1..",
               .help = "keys and queued values; the client that would pass it loses its connection, as with all below"},
    SettingRow{.key = "max_bytes", .type = Type::size, .fallback = "4GiB", .allowed = "1MiB..",
               .help = "of all keys and values, jobs and reports together, with what it takes to keep them"},
    SettingRow{.key = "max_frame_bytes", .type = Type::size, .fallback = "512MiB", .allowed = "16KiB..",
               .help = "of one request, or one reply"},
    SettingRow{.key = "max_buffered_bytes", .type = Type::size, .fallback = "1GiB", .allowed = "1MiB..",
               .help = "of all clients together: requests that are not complete, replies that are not read"},
    SettingRow{.key = "max_unread_bytes", .type = Type::size, .fallback = "4MiB", .allowed = "16KiB..",
               .help = "replies that one client has not read, beyond which its requests wait (and it stays connected)"},
    SettingRow{.key = "handshake_timeout", .type = Type::duration, .fallback = "30s", .allowed = "1ms..1d",
               .help = "a connection that has not said by then what it speaks is closed"},
    SettingRow{.key = "idle_timeout", .type = Type::duration, .fallback = "1h", .allowed = "0..",
               .help = "keys are forgotten when no client of the store was connected that long; 0: never"},
    SettingRow{.key = "stop_timeout", .type = Type::duration, .fallback = "2s", .allowed = "0..1h",
               .help = "how long a stop lets clients read what they were already answered"},
    SettingRow{.key = "log_level", .type = Type::choice, .fallback = "info",
               .allowed = "trace|debug|info|warn|error|off", .help = "what is said on standard error"},
};
// clang-format on

}  // namespace

std::span<const SettingRow> daemon_settings() noexcept {
  return kSettings;
}

std::string variable_of(const SettingRow& row) {
  return "ACC_RENDEZVOUS_" + plugins::upper(row.key);
}

}  // namespace acc::rendezvous
