// SPDX-License-Identifier: Apache-2.0
// Parser of hostfiles and of the --include and --exclude filters. Every bad line is reported, with
// its line number. Host and user names are restricted to a safe set of characters, because they
// become arguments of ssh.
#include "cluster/hostfile.hpp"

#include "acc/settings/faults.hpp"
#include "acc/settings/settings.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <set>
#include <sstream>

namespace acc::launcher::cluster {
namespace {

using settings::Faults;

constexpr int kMostSlots = 100'000;

std::vector<int> first_slots(int count) {
  std::vector<int> slots(static_cast<std::size_t>(count));
  std::iota(slots.begin(), slots.end(), 0);
  return slots;
}

/// True if the text is usable as a host or user name: no characters that are special to a shell,
/// and no leading `-`, which ssh would parse as an option.
bool is_name(std::string_view name) {
  constexpr std::string_view kOthers = ".-_:%";
  return !name.empty() && name.front() != '-' && std::ranges::all_of(name, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           kOthers.find(c) != std::string_view::npos;
  });
}

std::optional<int> read_slot_count(std::string_view text) {
  const auto count = read_number(text);
  return count && *count >= 1 && *count <= kMostSlots ? count : std::nullopt;
}

/// Splits `USER@NAME` into `host.user` and `name`. False if USER is present but invalid.
bool split_login(std::string_view text, Host& host, std::string_view& name) {
  const auto at = text.find('@');
  name = text.substr(at == std::string_view::npos ? 0 : at + 1);
  host.user = at == std::string_view::npos ? "" : text.substr(0, at);
  return at == std::string_view::npos || is_name(host.user);
}

/// Parses a line of DeepSpeed's form, `NAME slots=N`.
Host read_strict_line(const std::string& line, const std::string& where) {
  std::istringstream words(line);
  std::string login;
  std::string slots;
  words >> login >> slots;
  constexpr std::string_view kKey = "slots=";
  const auto count =
      slots.starts_with(kKey) ? read_slot_count(slots.substr(kKey.size())) : std::nullopt;
  Host host{"", {}, where};
  std::string_view name;
  if (!count || !split_login(login, host, name) || !is_name(name)) {
    throw Error(Errc::config,
                where + ": expected NAME slots=N with N of at least 1, got \"" + line + "\"");
  }
  host.name = name;
  host.slots = first_slots(*count);
  return host;
}

/// Parses `NAME`, `NAME:N`, `[ADDRESS]:N` or a bare IPv6 address into name and slots. False if the
/// text is none of these.
bool read_name(std::string_view text, Host& host) {
  const bool bracketed = text.starts_with('[');
  const auto end = bracketed                            ? text.find(']')
                   : std::ranges::count(text, ':') == 1 ? text.find(':')
                                                        : text.size();
  if (end == std::string_view::npos) {
    return false;
  }
  host.name = text.substr(bracketed ? 1 : 0, bracketed ? end - 1 : end);
  const std::string_view rest = text.substr(std::min(text.size(), bracketed ? end + 1 : end));
  const auto count = rest.starts_with(':') ? read_slot_count(rest.substr(1)) : std::nullopt;
  if (count) {
    host.slots = first_slots(*count);
  }
  return is_name(host.name) && (count || rest.empty());
}

/// Parses a `KEY=VALUE` after the name; keys other than slots and user are ignored. False if the
/// word has another form, or its slots or user are invalid.
bool read_key(std::string_view word, Host& host) {
  const auto equals = word.find('=');
  if (equals == std::string_view::npos || equals == 0 || equals + 1 == word.size()) {
    return false;
  }
  const std::string_view key = word.substr(0, equals);
  if (key == "user") {
    host.user = word.substr(equals + 1);
    return is_name(host.user);
  }
  if (key != "slots") {
    return true;
  }
  const auto count = read_slot_count(word.substr(equals + 1));
  if (count) {
    host.slots = first_slots(*count);
  }
  return count.has_value();
}

/// Parses a line of any form that DeepSpeed, mpirun, MPICH and pdsh use.
Host read_any_line(const std::string& line, const std::string& where) {
  std::istringstream words(line.substr(0, line.find('#')));
  Host host{"", {}, where};
  std::string login;
  words >> login;
  std::string_view name;
  bool good = split_login(login, host, name) && read_name(name, host);
  for (std::string word; good && words >> word;) {
    good = read_key(word, host);
  }
  if (!good) {
    throw Error(Errc::config, where +
                                  ": expected [USER@]NAME, NAME:N or NAME slots=N with N of at "
                                  "least 1, got \"" +
                                  line + "\"");
  }
  return host;
}

/// Selected slots by host; an empty set means all slots of the host.
using Filter = std::map<std::string, std::set<int>>;

/// Parses `SLOT,SLOT`. `filter` is the whole value, for the message.
std::set<int> read_slots(std::string_view list, const Sourced<std::string>& filter) {
  std::set<int> slots;
  for (const std::string_view word : entries_of(list)) {
    const auto slot = parse_integer(word);
    if (!slot || *slot < 0 || *slot > kMostSlots) {
      throw Error(Errc::config, filter.where +
                                    " must be HOST or HOST:SLOT,SLOT, joined by @, got \"" +
                                    filter.value + "\"");
    }
    slots.insert(static_cast<int>(*slot));
  }
  return slots;
}

/// Parses `HOST[:SLOT,...]` joined by `@`. As in DeepSpeed, a host whose slots are named anywhere
/// is selected by them alone.
Filter read_filter(const Sourced<std::string>& given) {
  Filter filter;
  for (const std::string_view part : entries_of(given.value, '@')) {
    const auto colon = part.find(':');
    std::set<int>& slots = filter[std::string(part.substr(0, colon))];
    if (colon != std::string_view::npos) {
      slots.merge(read_slots(part.substr(colon + 1), given));
    }
  }
  return filter;
}

/// Throws Error(config) for hosts and slots that do not exist.
void check_filter(const Filter& filter, const std::vector<Host>& hosts,
                  const Sourced<std::string>& given) {
  Faults faults;
  std::vector<std::string_view> names;
  for (const Host& host : hosts) {
    names.push_back(host.name);
  }
  for (const auto& [name, slots] : filter) {
    const auto host = std::ranges::find(hosts, name, &Host::name);
    if (host == hosts.end()) {
      faults.add(given.where + " names host \"" + name + "\", which is not in the hostfile" +
                 settings::did_you_mean(name, names));
      continue;
    }
    for (const int slot : slots) {
      if (std::ranges::find(host->slots, slot) == host->slots.end()) {
        faults.add(given.where + " names slot " + std::to_string(slot) + " of " + name +
                   ", which has " + std::to_string(host->slots.size()) +
                   (host->slots.size() == 1 ? " slot" : " slots") + ", numbered from 0");
      }
    }
  }
  faults.raise();
}

bool is_named(const Filter& filter, const Host& host, int slot) {
  const auto found = filter.find(host.name);
  return found != filter.end() && (found->second.empty() || found->second.contains(slot));
}

std::vector<Host> filtered(const std::vector<Host>& hosts, const Sourced<std::string>& given,
                           bool keep_named) {
  if (given.value.empty()) {
    return hosts;
  }
  const Filter filter = read_filter(given);
  check_filter(filter, hosts, given);
  std::vector<Host> left;
  for (Host host : hosts) {
    std::erase_if(host.slots, [&](int slot) { return is_named(filter, host, slot) != keep_named; });
    if (!host.slots.empty()) {
      left.push_back(std::move(host));
    }
  }
  if (left.empty()) {
    throw Error(Errc::config, given.where + " " + given.value + " leaves no slot on any host");
  }
  return left;
}

}  // namespace

std::string login_of(const Host& host) {
  return host.user.empty() ? host.name : host.user + "@" + host.name;
}

std::vector<Host> parse_hostfile(std::string_view text, const std::string& path,
                                 HostfileForm form) {
  std::istringstream lines{std::string(text)};
  std::vector<Host> hosts;
  Faults faults;
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    const auto start = line.find_first_not_of(" \t\r");
    if (start == std::string::npos || line[start] == '#') {
      continue;
    }
    const std::string where = path + ":" + std::to_string(number);
    faults.collect([&] {
      Host host =
          form == HostfileForm::any ? read_any_line(line, where) : read_strict_line(line, where);
      const auto same = std::ranges::find(hosts, host.name, &Host::name);
      if (same != hosts.end()) {
        throw Error(Errc::config,
                    where + ": " + host.name + " is already listed in " + same->where);
      }
      hosts.push_back(std::move(host));
    });
  }
  faults.raise();
  if (hosts.empty()) {
    throw Error(Errc::config, path + ": the file lists no host; expected lines NAME slots=N");
  }
  return hosts;
}

std::vector<Host> only_included(const std::vector<Host>& hosts,
                                const Sourced<std::string>& filter) {
  return filtered(hosts, filter, true);
}

std::vector<Host> without_excluded(const std::vector<Host>& hosts,
                                   const Sourced<std::string>& filter) {
  return filtered(hosts, filter, false);
}

}  // namespace acc::launcher::cluster
