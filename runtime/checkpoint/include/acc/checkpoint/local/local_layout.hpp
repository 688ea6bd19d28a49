// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

/// How the flat parameters of LOCAL_STATE_DICT are cut. The manifest stores it, so that any other
/// world can read the ranks' files.
namespace acc::checkpoint {

struct LocalFlat {
  struct Member {
    std::string name;
    std::vector<std::string> aliases = {};
    Shape shape;
    std::int64_t offset = 0;  ///< of its first element in the flat parameter

    bool operator==(const Member&) const = default;
  };
  std::string key;  ///< in each rank's file: "transformer.h.0._flat_param"
  std::int64_t padded_numel = 0;
  int shards = 1;  ///< rank r < shards holds elements [r, r + 1) * padded_numel / shards
  std::vector<Member> members;

  bool operator==(const LocalFlat&) const = default;
};

struct LocalModel {
  std::vector<LocalFlat> flats;
  std::vector<std::string> buffers;  ///< keys of rank 0's file that are whole tensors

  bool operator==(const LocalModel&) const = default;
};

/// Returns JSON for Manifest::local_layout. One element per model, in their order.
std::string format_local_layout(const std::vector<LocalModel>& models);
/// Throws Error(config) that begins with `path`.
std::vector<LocalModel> parse_local_layout(const std::string& text,
                                           const std::filesystem::path& path);

/// Adds the parameters and buffers of model number `index` to `catalog`. Throws Error(config) with
/// the file if a tensor is missing or has another length.
void read_local_model(const InputPath& folder, int index, const LocalModel& model,
                      Catalog& catalog);

}  // namespace acc::checkpoint
