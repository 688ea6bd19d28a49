#pragma once

#include "checkpoint/convert/convert.hpp"

#include <CLI/CLI.hpp>

#include <cstdint>
#include <string>
#include <string_view>

/// What the commands on checkpoints have in common.
namespace acc::launcher {

/// "1048576", "10GB" (decimal), "10GiB", "5Gb" (bits), as Accelerate reads them. Throws
/// Error(invalid_argument) that begins with `flag`.
std::uint64_t parse_size(const std::string& text, std::string_view flag);
/// "537 MB", "1.23 GB": decimal, as disks and Accelerate count.
std::string in_decimal_units(std::uint64_t nbytes);

/// "1 tensor", "3 tensors".
std::string count_of(std::uint64_t count, std::string_view word);

/// Flags of whatever works through a whole checkpoint.
class WorkFlags {
 public:
  void add_threads(CLI::App& app);
  void add_dtype(CLI::App& app);
  void add_max_shard_size(CLI::App& app);
  void add_num_processes(CLI::App& app, bool required);
  void add_overwrite(CLI::App& app);

  /// After parsing.
  [[nodiscard]] checkpoint::conversion::Options options() const;
  [[nodiscard]] bool quiet() const noexcept { return quiet_; }

 private:
  int num_threads_ = 0;
  int num_processes_ = 1;
  bool quiet_ = false;
  bool overwrite_ = false;
  std::string dtype_, max_shard_size_;
};

/// A line on the terminal that is renewed and taken away at the end; nothing elsewhere.
checkpoint::conversion::Progress progress_line(bool quiet);

/// What was written and what was left out, for the user.
void print_result(std::string_view what, const checkpoint::conversion::Result& result, bool quiet);

}  // namespace acc::launcher
