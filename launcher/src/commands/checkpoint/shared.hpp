// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/convert/convert.hpp"
#include "commands/options.hpp"

#include <cstdint>
#include <string>
#include <string_view>

/// Functions shared by the checkpoint commands.
namespace acc::launcher::commands {

/// Parses a size like Accelerate: "1048576", "10GB" (decimal), "10GiB", "5Gb" (bits). Returns
/// bytes. Throws Error(invalid_argument) with a message that begins with `flag`.
std::uint64_t parse_size(const std::string& text, std::string_view flag);

/// Returns a count with its noun: "1 tensor", "3 tensors".
std::string count_of(std::uint64_t count, std::string_view word);

/// Flags of commands that read a whole checkpoint. A command adds the flags that it supports.
class WorkFlags {
 public:
  void add_threads(OptionParser& parser);
  void add_dtype(OptionParser& parser);
  void add_max_shard_size(OptionParser& parser);
  void add_num_processes(OptionParser& parser, bool required);
  void add_overwrite(OptionParser& parser);

  /// Returns the options. Call it after parsing.
  [[nodiscard]] checkpoint::conversion::Options options() const;
  [[nodiscard]] bool quiet() const noexcept { return quiet_; }

 private:
  int num_threads_ = 0;
  int num_processes_ = 1;
  bool quiet_ = false;
  bool overwrite_ = false;
  std::string dtype_, max_shard_size_;
};

/// Prints the files that were written, and the parts of the checkpoint that were left out.
void print_result(std::string_view what, const checkpoint::conversion::Result& result, bool quiet);

}  // namespace acc::launcher::commands
