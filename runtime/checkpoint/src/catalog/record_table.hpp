// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace acc::checkpoint {

/// Adds tensors of torch.save archives to a catalog, together with the records whose checksums
/// cover them. Each record is added once. The catalog must outlive this object.
class RecordTable {
 public:
  explicit RecordTable(Catalog& catalog) : catalog_(catalog) {}

  /// Returns the index in Catalog::records of the record with these bytes of file number `file`; -1
  /// if the writer stored no checksums. `name`: name of a new record, for messages.
  std::int32_t record(std::uint32_t file, const torch::StoredBytes& bytes, const std::string& name);
  /// Returns a tensor that lies whole in one file.
  StoredTensor tensor(std::uint32_t file, const torch::TensorRef& ref, const std::string& name,
                      const std::string& kind, const std::string& stored_name);

 private:
  Catalog& catalog_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::int32_t> records_;
};

}  // namespace acc::checkpoint
