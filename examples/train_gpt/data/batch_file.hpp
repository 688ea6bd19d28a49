// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "data/data_source.hpp"
#include "data/mapped_file.hpp"

#include <cstdint>
#include <string>

namespace train_gpt {

/// Shape of a --batches file.
struct BatchFileShape {
  std::int64_t steps;
  std::int64_t rows;     ///< sequences of the global batch, over all ranks and micro-steps
  std::int64_t columns;  ///< seq_len + 1
};

/// Reads the header of a .npy file, version 1: little-endian int32, row-major, three dimensions.
/// Format: NumPy's documentation of numpy.lib.format. Throws Error(config) with the file and the
/// header that was found.
BatchFileShape read_batch_file_shape(const std::string& path);

/// Global batches from a file (--batches). Each row is one sequence.
class BatchFile final : public DataSource {
 public:
  BatchFile(const std::string& path, std::int64_t vocab);

  void read(const BatchPosition& position, Batch& batch) const override;
  [[nodiscard]] std::int64_t tokens() const override {
    return shape_.steps * shape_.rows * shape_.columns;
  }

 private:
  [[nodiscard]] std::int32_t id(std::int64_t index) const;
  void check_vocabulary(std::int64_t vocab) const;

  MappedFile file_;
  BatchFileShape shape_{};
  const std::uint8_t* ids_ = nullptr;  // [steps, rows, columns], int32, unaligned
};

}  // namespace train_gpt
