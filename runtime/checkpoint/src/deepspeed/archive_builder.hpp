// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/pickle/writer.hpp"
#include "acc/checkpoint/torch/torch_file.hpp"
#include "deepspeed/export_plan.hpp"

#include <filesystem>
#include <vector>

namespace acc::checkpoint::deepspeed {

/// Builds a torch.save archive of a nested value. The caller pushes values and tensors. The
/// elements of the tensors are read only when the archive is written, in bounded memory.
class ArchiveBuilder {
 public:
  explicit ArchiveBuilder(TensorReader& reader) : reader_(reader) {}

  [[nodiscard]] pickle::Writer& pickle() noexcept { return writer_; }
  /// Pushes a tensor that consists of these parts, end to end. Returns the number of its storage.
  int push(const FlatParts& parts, Dtype dtype, const Shape& shape);
  /// Pushes another tensor that uses an existing storage.
  void push_again(int storage, Dtype dtype, const Shape& shape);
  /// Pushes a tensor with one number.
  void push_scalar(float value);

  void write(const std::filesystem::path& path);

 private:
  struct Storage {
    FlatParts parts;
    Dtype dtype = Dtype::f32;
    std::vector<std::byte> bytes;  ///< content, if there are no parts
  };
  void fill(const Storage& storage, const torch::Sink& sink);

  TensorReader& reader_;
  pickle::Writer writer_;
  std::vector<Storage> storages_;
};

}  // namespace acc::checkpoint::deepspeed
