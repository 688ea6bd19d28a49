// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/settings/environment.hpp"
#include "cluster/job_environment.hpp"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher::cluster {

/// Typed access to the variables that a job manager sets. An empty variable counts as unset, and an
/// unset one gives an empty result. Each reader throws Error(config) that names the variable, its
/// value and the expected form. Keeps a reference to `environment`.
class JobVariables {
 public:
  explicit JobVariables(const settings::Environment& environment) : environment_(environment) {}

  [[nodiscard]] bool has(const std::string& name) const;
  [[nodiscard]] std::optional<Sourced<std::string>> text(const std::string& name) const;
  [[nodiscard]] std::optional<Sourced<int>> number(const std::string& name) const;  ///< at least 0
  [[nodiscard]] std::optional<Sourced<std::uint64_t>> big_number(const std::string& name) const;
  [[nodiscard]] std::optional<Sourced<std::uint16_t>> port(const std::string& name) const;
  /// Reads `4` or `2:4`. A range with different bounds gives an empty result.
  [[nodiscard]] std::optional<Sourced<int>> number_or_range(const std::string& name) const;
  [[nodiscard]] std::optional<Sourced<std::vector<int>>> numbers(const std::string& name) const;
  /// Read Slurm's compressed lists (hostlist.hpp).
  [[nodiscard]] std::optional<Sourced<std::vector<std::string>>> hosts(
      const std::string& name) const;
  [[nodiscard]] std::optional<Sourced<std::vector<int>>> counts(const std::string& name) const;

 private:
  const settings::Environment& environment_;
};

/// Returns the first value that is not empty.
template <typename T>
std::optional<T> first_of(std::optional<T> one, std::optional<T> other) {
  return one ? std::move(one) : std::move(other);
}

/// Derives a port from the number or name of a job, so that all its machines agree on one without
/// communication. The port is between 15000 and 30000, below the kernel's ephemeral ports. The
/// ports of 14983 consecutive numbers differ, and nearby numbers get distant ports.
std::uint16_t port_of(std::uint64_t number);
std::uint16_t port_of(std::string_view job);

/// Returns the id with every character other than letters, digits, `.` and `_` replaced by `-`, for
/// use in file names.
std::string plain_id(std::string_view id);

/// True if two names mean the same host: they are equal, or one is the other without its domain.
bool is_same_host(std::string_view one, std::string_view other);

/// Returns the index of a host in a list, or empty.
std::optional<int> index_of_host(std::span<const std::string> hosts, std::string_view name);

/// Returns the text `KEY is 3, but OTHER is 2`; `other_value` includes the verb.
std::string contradiction(const std::string& where, const std::string& value,
                          const std::string& other_where, const std::string& other_value);

}  // namespace acc::launcher::cluster
