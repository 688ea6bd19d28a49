// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/progress.hpp"
#include "acc/checkpoint/catalog/catalog.hpp"
#include "acc/checkpoint/files/input_file.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace acc::checkpoint {

/// Reads stored tensors of any format. Reads only the bytes asked for, and the rest of the checksum
/// blocks in which they lie. Bytes go straight to the destination if they need no conversion. Bytes
/// with block checksums are always checked; bytes with one checksum for the whole record are
/// checked only if all of the record is read. Thread-safe; opened files and archives are cached.
/// Throws Error(config) with the file, the tensor, the elements, and what was expected and found; a
/// wrong checksum is reported as "damaged".
class TensorReader {
 public:
  /// The catalog must outlive the reader.
  explicit TensorReader(const Catalog& catalog);
  ~TensorReader();
  TensorReader(const TensorReader&) = delete;
  TensorReader& operator=(const TensorReader&) = delete;

  /// Counts the bytes of later reads in a meter, which must outlive them; null counts nothing.
  /// `verify` does not count.
  void count_into(ProgressMeter* meter) noexcept;

  /// Reads elements [begin, begin + numel) of a tensor, row-major, converted to `dtype`. out:
  /// [numel].
  void read(const StoredTensor& tensor, std::int64_t begin, std::int64_t numel, Dtype dtype,
            void* out);
  /// Reads a box of a tensor, row-major. out: [box.numel()].
  void read(const StoredTensor& tensor, const Box& box, Dtype dtype, void* out);
  /// True if reading a part of the tensor checks that part, or if there are no checksums. False for
  /// long records of other writers, which have one checksum: only `verify` and a read of the whole
  /// record check those.
  bool checks_parts(const StoredTensor& tensor);
  /// Reads and checks all that is stored of the tensor. Keeps nothing. Returns true if all of it
  /// has checksums.
  bool verify(const StoredTensor& tensor);
  /// The same for one of its pieces.
  bool verify(const StoredTensor& tensor, const StoredPiece& piece);

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace acc::checkpoint
