#pragma once

#include "acc/plugins/environment.hpp"
#include "cluster/place.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// What a process is told by the manager that started it. A variable that is set to nothing counts
/// as one that is not set. What is read throws Error(config) that names the variable, its value and
/// what was expected.
class JobVariables {
 public:
  explicit JobVariables(const plugins::Environment& environment) : environment_(environment) {}

  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] std::optional<Said<std::string>> text(const std::string& name) const;
  [[nodiscard]] std::optional<Said<int>> number(const std::string& name) const;  ///< from 0 on
  [[nodiscard]] std::optional<Said<std::uint64_t>> big_number(const std::string& name) const;
  [[nodiscard]] std::optional<Said<std::uint16_t>> port(const std::string& name) const;
  /// `4` or `2:4`; nothing where it is a range.
  [[nodiscard]] std::optional<Said<int>> number_or_range(const std::string& name) const;
  [[nodiscard]] std::optional<Said<std::vector<int>>> numbers(const std::string& name) const;
  /// Slurm's lists: hostlist.hpp
  [[nodiscard]] std::optional<Said<std::vector<std::string>>> hosts(const std::string& name) const;
  [[nodiscard]] std::optional<Said<std::vector<int>>> counts(const std::string& name) const;

 private:
  const plugins::Environment& environment_;
};

/// The first that says something.
template <typename T>
std::optional<T> first_of(std::optional<T> one, std::optional<T> other) {
  return one ? std::move(one) : std::move(other);
}

/// Between 15000 and 30000, below the ports that a kernel hands out. Numbers near to each other get
/// ports far from each other; those of 14983 jobs in a row differ.
std::uint16_t port_of(std::uint64_t number);
std::uint16_t port_of(std::string_view job);

/// Of letters, digits, `.`, `_` and `-`, so that it can be part of a file's name.
std::string plain_id(std::string_view id);

/// Whether two names mean one host: only one of them may have a domain.
bool is_same_host(std::string_view one, std::string_view other);

/// The place of a host in a list.
std::optional<int> index_of_host(std::span<const std::string> hosts, std::string_view name);

/// `KEY is 3, but OTHER is 2`
std::string contradiction(const std::string& where, const std::string& value,
                          const std::string& other_where, const std::string& other_value);

}  // namespace acc::launcher
