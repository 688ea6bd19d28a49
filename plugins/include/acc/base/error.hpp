// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/export.hpp"

#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

namespace acc {

/// Category of an error, as fine as a caller can act on it. `to_string` returns the enumerator's
/// name.
enum class Errc {
  invalid_argument,  ///< a call with wrong arguments or in the wrong order
  config,            ///< settings and files that are wrong in themselves
  disagreement,      ///< settings, models or files that differ between ranks or machines
  not_supported,     ///< right in itself, but not built or not possible here
  not_found,
  timeout,
  connection,
  protocol,
  process,
  collective,
  peer_lost,  ///< a rank of the job has ended or given up; with spares the others can rejoin
  device,
  out_of_memory,
  no_program,      ///< the program to start does not exist
  not_executable,  ///< the program to start exists but cannot be executed
  internal,
};

ACC_API std::string_view to_string(Errc code) noexcept;

/// The only exception type of acclaunch. `what()` is a complete sentence for the user: what was
/// tried, the value that was found, what was expected. `rank()` is the rank that caused the error,
/// if one did.
class ACC_API Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& message, std::optional<int> rank = std::nullopt)
      : std::runtime_error(message), code_(code), rank_(rank) {}

  [[nodiscard]] Errc code() const noexcept { return code_; }  ///< what a caller can act on
  [[nodiscard]] std::optional<int> rank() const noexcept { return rank_; }

 private:
  Errc code_;
  std::optional<int> rank_;
};

/// Returns the exit status for an error that ends a program: 2 for bad input (usage, configuration,
/// files) or a missing device, 124 for a timeout, 127 and 126 for a program that cannot be started
/// (the numbers of `timeout` and of POSIX shells), else 1.
ACC_API int exit_status(const Error& error) noexcept;

}  // namespace acc
