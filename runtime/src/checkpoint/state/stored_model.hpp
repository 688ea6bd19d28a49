#pragma once

#include "checkpoint/catalog/open.hpp"
#include "checkpoint/catalog/tensor_reader.hpp"
#include "checkpoint/state/saved_arrays.hpp"

#include <filesystem>
#include <string>

namespace acc::checkpoint {

enum class BuffersMay { be_missing, not_be_missing };

/// A checkpoint of any format, asked for the parameters and buffers of a model. Faults throw
/// Error(config) that names the path, the tensor, what was expected and found.
class StoredModel {
 public:
  /// index: of the model, in a save folder.
  StoredModel(const std::filesystem::path& path, Want want, int index);

  [[nodiscard]] const Stored& stored() const noexcept { return stored_; }
  /// Whether all parameters are there in their shapes. Buffers may be missing, or not.
  void check(detail::ModelState& model, BuffersMay buffers) const;
  /// The same for a kind of the optimizer's.
  void check(const FlatArray& array) const;

  /// Elements [offset, offset + numel) of a parameter, by any of its names.
  void read(const sharding::ParameterRecord& record, const std::string& kind, std::int64_t offset,
            std::int64_t numel, Dtype dtype, void* out);
  /// What this rank keeps of an array, straight to where it is kept.
  void read(device::Device& device, const FlatArray& array);
  /// Leaves a buffer as it is where there is none of its name.
  void read_buffer(detail::ModelState& model, acc::model::BufferRecord& buffer);

 private:
  [[nodiscard]] const StoredTensor& at(const sharding::ParameterRecord& record,
                                       const std::string& kind) const;
  void check_shape(const StoredTensor& tensor, const Shape& expected) const;

  Stored stored_;
  TensorReader reader_;
};

/// Weights are about to be overwritten where they lie: gathers of the old ones may still be under
/// way here, and a GPU may be behind with reading what lies in host memory. Peers may read until a
/// barrier that follows.
void await_readers(detail::ModelState& model);

}  // namespace acc::checkpoint
