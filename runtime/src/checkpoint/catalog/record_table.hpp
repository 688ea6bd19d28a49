#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/torch/torch_file.hpp"

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace acc::checkpoint {

/// Enters tensors of torch.save archives into a catalog, whose lifetime contains its own, and the
/// records that they are checked by, each once.
class RecordTable {
 public:
  explicit RecordTable(Catalog& catalog) : catalog_(catalog) {}

  /// The record of these bytes of file number `file`, as Catalog::records counts; `name` is for
  /// messages where it is new; -1 where the writer left no checksums.
  std::int32_t record(std::uint32_t file, const torch::StoredBytes& bytes, const std::string& name);
  /// A tensor that is whole in one file.
  StoredTensor tensor(std::uint32_t file, const torch::TensorRef& ref, const std::string& name,
                      const std::string& kind, const std::string& stored_name);

 private:
  Catalog& catalog_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::int32_t> records_;
};

}  // namespace acc::checkpoint
