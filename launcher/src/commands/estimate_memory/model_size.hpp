// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/documents/document.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher::commands {

/// Largest number of parameters of a model, and of elements of an optimizer's states.
inline constexpr std::int64_t kMostNumel = 1'000'000'000'000'000;
/// Longest side of a matrix: the product of two fits into 64 bits.
inline constexpr std::int64_t kLongestSide = 1'000'000'000;

/// Product and sum of counts of at least 0; kMostNumel + 1 for any larger than kMostNumel.
inline std::int64_t counted_product(std::int64_t a, std::int64_t b) {
  std::int64_t product = 0;
  const bool overflows = __builtin_mul_overflow(a, b, &product);
  return overflows || product > kMostNumel ? kMostNumel + 1 : product;
}
inline std::int64_t counted_sum(std::int64_t a, std::int64_t b) {
  std::int64_t sum = 0;
  const bool overflows = __builtin_add_overflow(a, b, &sum);
  return overflows || sum > kMostNumel ? kMostNumel + 1 : sum;
}

struct MatrixCount {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t count = 1;
};

/// A part of a model that occurs `count` times. Repeated layers are units; the other parts
/// (embeddings, final norm, head) belong to the root unit.
struct ModelPart {
  std::string name;
  std::int64_t numel = 0;  ///< parameters of one occurrence
  std::int64_t count = 1;
  bool unit = false;
  std::vector<MatrixCount> matrices = {};  ///< parameters with two dimensions of one occurrence
};

/// The parts of a model. All sizes are numbers of parameters.
struct ModelSize {
  std::string name;
  std::vector<ModelPart> parts;

  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t largest_part() const;
  [[nodiscard]] std::int64_t largest_unit() const;  ///< 0 if the model has no units
  [[nodiscard]] std::int64_t root() const;
  bool knows_matrices = true;  ///< false: only numbers of parameters are known
};

/// Returns the size of a model of which only the number of parameters is known, as `7B`, `350M`,
/// `1.5e9` or `124439808`: `layers` equal units. Empty if the text is not such a number.
std::optional<ModelSize> size_from_count(const std::string& text, int layers);

/// Returns the size from a Hugging Face config.json. Throws Error(config) for missing keys, and
/// Error(not_supported) for a model_type without a formula; the message then lists the supported
/// types.
ModelSize size_from_config(const documents::Document& config);

/// Returns the size from the header of a safetensors file, or from those of all files of an index.
/// Does not read weights. Throws Error(config) or Error(not_found).
ModelSize size_from_safetensors(const std::filesystem::path& path);

/// Returns the size from a source of any of these kinds, or from a folder that contains such a
/// file. Throws Error(config) for more than kMostNumel parameters.
ModelSize size_of_source(const std::string& source, int layers);

}  // namespace acc::launcher::commands
