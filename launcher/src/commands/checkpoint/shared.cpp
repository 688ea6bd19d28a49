// SPDX-License-Identifier: Apache-2.0
#include "commands/checkpoint/shared.hpp"

#include "acc/base/error.hpp"
#include "acc/checkpoint/convert/parallel.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>

namespace acc::launcher::commands {

using checkpoint::Dtype;
using checkpoint::conversion::Options;
using checkpoint::conversion::Result;

namespace {

struct Unit {
  std::string_view name;
  double nbytes;
};

/// Compares ignoring case.
bool equal_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char left, char right) {
    return std::toupper(static_cast<unsigned char>(left)) ==
           std::toupper(static_cast<unsigned char>(right));
  });
}

/// Returns the bytes per unit for the text after a number; 0 if it is not a unit. Like Accelerate,
/// "Gb" with a small b means gigabits.
double unit_of(std::string_view text) {
  static constexpr std::array kUnits = {
      Unit{"", 1.0},       Unit{"KB", 1e3},        Unit{"MB", 1e6},          Unit{"GB", 1e9},
      Unit{"KiB", 1024.0}, Unit{"MiB", 1048576.0}, Unit{"GiB", 1073741824.0}};
  for (const Unit& unit : kUnits) {
    if (equal_letters(unit.name, text)) {
      const bool bits = text.size() == 2 && text.back() == 'b';
      return bits ? unit.nbytes / 8 : unit.nbytes;
    }
  }
  return 0.0;
}

}  // namespace

std::uint64_t parse_size(const std::string& text, std::string_view flag) {
  double number = 0.0;
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number);
  const std::string_view unit(rest, static_cast<std::size_t>(end - rest));
  const double nbytes = error == std::errc() ? number * unit_of(unit) : 0.0;
  if (!(nbytes >= 1.0 && nbytes < 9e18)) {
    throw Error(Errc::invalid_argument, std::string(flag) +
                                            ": expected a number of bytes, or a size such as "
                                            "5GB or 500MiB, got '" +
                                            text + "'");
  }
  return static_cast<std::uint64_t>(nbytes);
}

std::string count_of(std::uint64_t count, std::string_view word) {
  return fmt::format("{} {}{}", count, word, count == 1 ? "" : "s");
}

void WorkFlags::add_threads(OptionParser& parser) {
  parser
      .add_option("--num_threads", num_threads_,
                  "number of threads; default: one per core, at most 16")
      .check_range(1, 1024);
  parser.add_flag("--quiet", quiet_, "print only errors");
}

void WorkFlags::add_dtype(OptionParser& parser) {
  parser.add_option("--dtype", dtype_, "dtype of floating-point weights; default: as stored")
      .check_member({"float32", "float16", "bfloat16", "fp32", "fp16", "bf16"});
}

void WorkFlags::add_max_shard_size(OptionParser& parser) {
  parser.add_option(
      "--max_shard_size", max_shard_size_,
      "largest size of a safetensors file, such as 5GB or 500MiB; writes several files "
      "and an index; default: one file");
}

void WorkFlags::add_num_processes(OptionParser& parser, bool required) {
  parser.add_option("--num_processes", num_processes_, "number of ranks to shard the output for")
      .check_range(1, 1'000'000)
      .required(required);
}

void WorkFlags::add_overwrite(OptionParser& parser) {
  parser.add_flag("--overwrite", overwrite_, "replace an existing checkpoint in OUT");
}

Options WorkFlags::options() const {
  Options options;
  options.num_threads = num_threads_ > 0 ? num_threads_ : checkpoint::conversion::default_threads();
  options.num_processes = num_processes_;
  options.overwrite = overwrite_;
  options.writer = "acclaunch " ACC_VERSION;
  options.progress = quiet_ ? ShowProgress::no : ShowProgress::yes;
  if (!dtype_.empty()) {
    options.dtype = dtype_.ends_with("32")                     ? Dtype::f32
                    : dtype_ == "bf16" || dtype_ == "bfloat16" ? Dtype::bf16
                                                               : Dtype::f16;
  }
  if (!max_shard_size_.empty()) {
    options.max_shard_nbytes = parse_size(max_shard_size_, "--max_shard_size");
  }
  return options;
}

void print_result(std::string_view what, const Result& result, bool quiet) {
  if (quiet) {
    return;
  }
  std::string text =
      fmt::format("{} {}, {}, read back and checked:\n", what, count_of(result.tensors, "tensor"),
                  in_decimal_units(result.nbytes));
  for (const auto& file : result.files) {
    text += "  " + file.string() + "\n";
  }
  for (const std::string& left : result.left_out) {
    text += "left out: " + left + "\n";
  }
  std::fputs(text.c_str(), stdout);
}

}  // namespace acc::launcher::commands
