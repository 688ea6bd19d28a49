#pragma once

#include "acc/plugins/document.hpp"

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace acc::launcher {

/// A piece of a model that occurs `count` times. Units are its repeated layers; the rest is what a
/// program would leave to the root unit (embeddings, final norm, head).
struct ModelPart {
  std::string name;
  std::int64_t numel = 0;
  std::int64_t count = 1;
  bool unit = false;
};

struct ModelSize {
  std::string name;
  std::vector<ModelPart> parts;

  [[nodiscard]] std::int64_t numel() const;
  [[nodiscard]] std::int64_t largest_part() const;
  [[nodiscard]] std::int64_t largest_unit() const;  ///< 0: the model has none
  [[nodiscard]] std::int64_t root() const;
};

/// `7B`, `350M`, `1.5e9` or `124439808` parameters, of which nothing more is known: taken for
/// `layers` equal units. Nothing where the text is no such number.
std::optional<ModelSize> size_from_count(const std::string& text, int layers);

/// From a Hugging Face config.json. Throws Error(config) for a model_type without a formula, naming
/// those that have one, and for keys that are missing.
ModelSize size_from_config(const plugins::Document& config);

/// From the header of a safetensors file, or of all files of an index. Reads no weights. Throws
/// Error(config) or Error(not_found).
ModelSize size_from_safetensors(const std::filesystem::path& path);

/// Whatever `source` is: one of these, or a folder that holds one of these files.
ModelSize size_of_source(const std::string& source, int layers);

}  // namespace acc::launcher
