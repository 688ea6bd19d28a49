// SPDX-License-Identifier: Apache-2.0
#include "commands/estimate_memory/model_size.hpp"

#include "acc/base/error.hpp"
#include "acc/settings/settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace acc::launcher::commands {

namespace fs = std::filesystem;

std::int64_t ModelSize::numel() const {
  std::int64_t sum = 0;
  for (const ModelPart& part : parts) {
    sum = counted_sum(sum, counted_product(part.numel, part.count));
  }
  return sum;
}

std::int64_t ModelSize::largest_part() const {
  return std::ranges::max(parts, {}, &ModelPart::numel).numel;
}

std::int64_t ModelSize::largest_unit() const {
  std::int64_t largest = 0;
  for (const ModelPart& part : parts) {
    largest = std::max(largest, part.unit ? part.numel : 0);
  }
  return largest;
}

std::int64_t ModelSize::root() const {
  std::int64_t sum = 0;
  for (const ModelPart& part : parts) {
    sum += part.unit ? 0 : part.numel * part.count;
  }
  return sum;
}

std::optional<ModelSize> size_from_count(const std::string& text, int layers) {
  static constexpr std::string_view kSuffixes = "KMBT";  // thousands, millions, …
  std::string digits = text;
  double scale = 1.0;
  const auto suffix = digits.empty() ? std::string_view::npos
                                     : kSuffixes.find(upper(digits.substr(digits.size() - 1)));
  if (suffix != std::string_view::npos) {
    scale = std::pow(1000.0, static_cast<double>(suffix) + 1.0);
    digits.pop_back();
  }
  const auto number = settings::parse_real(digits);
  if (!number || !(*number * scale >= 1.0) || *number * scale > static_cast<double>(kMostNumel)) {
    return std::nullopt;
  }
  const std::int64_t numel = std::llround(*number * scale);
  ModelSize size{.name = text + " parameters", .parts = {}, .knows_matrices = false};
  // Without knowledge of the model, all parameters are taken to be in equal layers.
  size.parts.push_back({"layer", numel / layers, layers, true});
  size.parts.push_back({"rest", numel % layers, 1, false});
  return size;
}

namespace {

/// Refuses sizes whose bytes could not be counted.
ModelSize checked(ModelSize size) {
  for (const ModelPart& part : size.parts) {
    for (const MatrixCount& each : part.matrices) {
      if (std::max(each.rows, each.columns) > kLongestSide) {
        throw Error(Errc::config,
                    fmt::format("{}: '{}' has a matrix of {} x {} parameters, at most {} on a side "
                                "can be counted",
                                size.name, part.name, each.rows, each.columns, kLongestSide));
      }
    }
  }
  if (size.numel() > kMostNumel) {
    const ModelPart& largest = *std::ranges::max_element(size.parts, {}, [](const auto& part) {
      return static_cast<double>(part.numel) * static_cast<double>(part.count);
    });
    throw Error(Errc::config, fmt::format("{}: more than {} parameters, most of them in {} x '{}'",
                                          size.name, kMostNumel, largest.count, largest.name));
  }
  return size;
}

}  // namespace

ModelSize size_of_source(const std::string& source, int layers) {
  const fs::path path = source;
  std::error_code none;
  if (!fs::exists(path, none)) {
    if (auto size = size_from_count(source, layers)) {
      return *size;
    }
    throw Error(Errc::not_found,
                source +
                    " does not exist; expected a safetensors file or its index, a model's "
                    "config.json, a folder with one of these, or a number of parameters such as "
                    "7B");
  }
  if (!fs::is_directory(path, none)) {
    const bool is_config = path.extension() == ".json" && !path.string().ends_with(".index.json");
    return checked(is_config ? size_from_config(documents::load_document(path))
                             : size_from_safetensors(path));
  }
  for (const char* name : {"model.safetensors.index.json", "model.safetensors", "config.json"}) {
    if (fs::exists(path / name, none)) {
      return size_of_source((path / name).string(), layers);
    }
  }
  throw Error(Errc::not_found, source +
                                   " contains neither model.safetensors.index.json nor "
                                   "model.safetensors nor config.json");
}

}  // namespace acc::launcher::commands
