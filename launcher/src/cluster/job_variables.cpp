// SPDX-License-Identifier: Apache-2.0
#include "cluster/job_variables.hpp"

#include "acc/base/hash.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "cluster/hostlist.hpp"

#include <algorithm>
#include <cctype>
#include <limits>

namespace acc::launcher::cluster {
namespace {

// Ports 15000 to 29982. Linux's default range of ephemeral ports begins at 32768.
constexpr std::uint16_t kFirstPort = 15'000;
constexpr std::uint16_t kPorts = 14'983;  // a prime, so that the stride below reaches every port

/// Parses a variable's value with `read`, which returns empty for an invalid one. Throws
/// Error(config) with `expected` then.
template <typename T, typename Read>
std::optional<Sourced<T>> read_as(const std::optional<Sourced<std::string>>& text,
                                  const char* expected, Read read) {
  if (!text) {
    return std::nullopt;
  }
  const std::optional<T> value = read(text->value);
  if (!value) {
    throw bad_value({text->value, text->where}, expected);
  }
  return Sourced<T>{*value, text->where};
}

std::optional<std::uint64_t> read_big_number(std::string_view text) {
  const bool digits = text.find_first_not_of("0123456789") == std::string_view::npos;
  const auto value = digits ? parse_integer(text) : std::nullopt;
  return value ? std::optional(static_cast<std::uint64_t>(*value)) : std::nullopt;
}

std::optional<std::vector<int>> read_numbers(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string_view entry : entries_of(text)) {
    const auto number = read_number(entry);
    if (!number) {
      return std::nullopt;
    }
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

bool JobVariables::has(const std::string& name) const {
  return !settings::variable(environment_, name).empty();
}

std::optional<Sourced<std::string>> JobVariables::text(const std::string& name) const {
  std::string value = settings::variable(environment_, name);
  return value.empty() ? std::nullopt : std::optional(Sourced<std::string>{std::move(value), name});
}

std::optional<Sourced<int>> JobVariables::number(const std::string& name) const {
  return read_as<int>(text(name), "a number of at least 0", read_number);
}

std::optional<Sourced<std::uint64_t>> JobVariables::big_number(const std::string& name) const {
  return read_as<std::uint64_t>(text(name), "a number of at least 0", read_big_number);
}

std::optional<Sourced<std::uint16_t>> JobVariables::port(const std::string& name) const {
  return read_as<std::uint16_t>(
      text(name), "a port from 1 to 65535",
      [](std::string_view value) -> std::optional<std::uint16_t> {
        const auto port = read_number(value);
        const bool fits = port && *port > 0 && *port <= std::numeric_limits<std::uint16_t>::max();
        return fits ? std::optional(static_cast<std::uint16_t>(*port)) : std::nullopt;
      });
}

std::optional<Sourced<int>> JobVariables::number_or_range(const std::string& name) const {
  const auto given = text(name);
  const auto colon = given ? given->value.find(':') : std::string::npos;
  if (colon == std::string::npos) {
    return number(name);
  }
  const auto least = read_number(given->value.substr(0, colon));
  const auto most = read_number(given->value.substr(colon + 1));
  if (!least || !most || *least > *most) {
    throw bad_value({given->value, name}, "N or MIN:MAX");
  }
  return *least == *most ? std::optional(Sourced<int>{*least, name}) : std::nullopt;
}

std::optional<Sourced<std::vector<int>>> JobVariables::numbers(const std::string& name) const {
  return read_as<std::vector<int>>(text(name), "numbers joined by commas", read_numbers);
}

std::optional<Sourced<std::vector<std::string>>> JobVariables::hosts(
    const std::string& name) const {
  return read_as<std::vector<std::string>>(text(name), "", [&](const std::string& list) {
    return std::optional(expand_hosts({list, name}));
  });
}

std::optional<Sourced<std::vector<int>>> JobVariables::counts(const std::string& name) const {
  return read_as<std::vector<int>>(text(name), "", [&](const std::string& list) {
    return std::optional(expand_counts({list, name}));
  });
}

std::uint16_t port_of(std::uint64_t number) {
  // Jobs with consecutive numbers get distant ports: the port after a job's may be in use by it
  // too.
  constexpr std::uint64_t kStride = 7'919;
  return static_cast<std::uint16_t>(kFirstPort + number % kPorts * kStride % kPorts);
}

std::uint16_t port_of(std::string_view job) {
  return port_of(fnv1a(job));
}

std::string plain_id(std::string_view id) {
  std::string plain;
  for (const char c : id) {
    const bool fits = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_';
    plain += fits ? c : '-';
  }
  return plain;
}

bool is_same_host(std::string_view one, std::string_view other) {
  const auto is_in_domain = [](std::string_view whole, std::string_view name) {
    return whole.starts_with(name) && (whole.size() == name.size() || whole[name.size()] == '.');
  };
  return is_in_domain(one, other) || is_in_domain(other, one);
}

std::optional<int> index_of_host(std::span<const std::string> hosts, std::string_view name) {
  const auto found = std::ranges::find_if(
      hosts, [&](const std::string& host) { return is_same_host(host, name); });
  return found == hosts.end() || name.empty()
             ? std::nullopt
             : std::optional(static_cast<int>(found - hosts.begin()));
}

std::string contradiction(const std::string& where, const std::string& value,
                          const std::string& other_where, const std::string& other_value) {
  return where + " is " + value + ", but " + other_where + " " + other_value;
}

}  // namespace acc::launcher::cluster
