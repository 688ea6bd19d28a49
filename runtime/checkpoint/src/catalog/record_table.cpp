// SPDX-License-Identifier: Apache-2.0
#include "catalog/record_table.hpp"

namespace acc::checkpoint {

std::int32_t RecordTable::record(std::uint32_t file, const torch::StoredBytes& bytes,
                                 const std::string& name) {
  // Without any checksum a record is of no use to a reader.
  if (bytes.record_crc32 == 0 && bytes.blocks.empty()) {
    return -1;
  }
  const auto [entry, is_new] = records_.try_emplace(
      {file, bytes.record_offset}, static_cast<std::int32_t>(catalog_.records.size()));
  if (is_new) {
    catalog_.records.push_back({.name = name,
                                .file = file,
                                .offset = bytes.record_offset,
                                .nbytes = bytes.record_nbytes,
                                .crc32 = bytes.record_crc32,
                                .blocks = bytes.blocks});
  }
  return entry->second;
}

// A tensor without elements has no piece, so readers never open its file.
StoredTensor RecordTable::tensor(std::uint32_t file, const torch::TensorRef& ref,
                                 const std::string& name, const std::string& kind,
                                 const std::string& stored_name) {
  StoredTensor result{.name = name,
                      .kind = kind,
                      .stored_name = stored_name,
                      .dtype = ref.dtype,
                      .shape = ref.shape,
                      .pieces = {},
                      .strides = ref.strides};
  if (ref.bytes.nbytes > 0) {
    result.pieces.push_back({.box = whole(ref.shape),
                             .file = file,
                             .offset = ref.bytes.offset,
                             .nbytes = ref.bytes.nbytes,
                             .packing = Packing::raw,
                             .record = record(file, ref.bytes, stored_name)});
  }
  return result;
}

}  // namespace acc::checkpoint
