#pragma once

#include "checkpoint/catalog/catalog.hpp"
#include "checkpoint/files/input_file.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace acc::checkpoint {

/// Reads stored tensors, whatever the format: only the bytes asked for (and the rest of the blocks
/// that they are checked by), straight to where they are wanted where nothing is converted. Bytes
/// that have checksums of blocks are checked; those with a checksum of the whole record where all
/// of the record is read. Any thread may read; opened files and archives are remembered. Throws
/// Error(config): file, tensor, elements, what was expected and found; "damaged" for a checksum.
class TensorReader {
 public:
  /// `catalog` outlives the reader.
  explicit TensorReader(const Catalog& catalog);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  /// Elements [begin, begin + numel) of a tensor, row-major, as `dtype`; out: [numel].
  void read(const StoredTensor& tensor, std::int64_t begin, std::int64_t numel, Dtype dtype,
            void* out);
  /// The same for a box of it, row-major; out: [box.numel()].
  void read(const StoredTensor& tensor, const Box& box, Dtype dtype, void* out);
  /// Whether reading a part of the tensor checks that part, or there is nothing to check it by.
  /// False for records of others than us that have one checksum and are longer than a block: only
  /// `verify` and reading all of it at once check those.
  bool checks_parts(const StoredTensor& tensor);
  /// Reads and checks all that is stored of the tensor, as far as there is anything to check it by;
  /// nothing is kept. True where all of it could be checked.
  bool verify(const StoredTensor& tensor);
  /// The same of one of its pieces.
  bool verify(const StoredTensor& tensor, const StoredPiece& piece);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace acc::checkpoint
