// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/error.hpp"
#include "acc/checkpoint/catalog/tensor_reader.hpp"
#include "acc/checkpoint/open/open.hpp"
#include "state_dict/attempt.hpp"
#include "state_dict/saved_arrays.hpp"

#include <span>
#include <string>

namespace acc::state_dict {

enum class BuffersMay { be_missing, not_be_missing };

/// A checkpoint of any format, from which parameters and buffers of a model are read. Faults throw
/// Error(config) with the path, the tensor, what was expected and what was found.
class StoredModel {
 public:
  /// `index`: number of the model in a save folder.
  StoredModel(const InputPath& path, Want want, int index);

  [[nodiscard]] const Stored& stored() const noexcept { return stored_; }
  /// Names the states of an optimizer that have only numbers, as torch's load_state_dict does: the
  /// numbers count the parameters of the groups in the order in which the program declares them,
  /// with or without frozen ones. Several groups are matched by the shapes of their states, then by
  /// weight decay and learning rate. Throws if groups, numbers of parameters or shapes do not fit
  /// the program, or if two groups could be exchanged.
  void name_by(const detail::OptimizerState& optimizer);
  /// Checks that all parameters exist with their shapes, and all buffers unless they may be
  /// missing. Rank 0 warns of tensors that the model does not have, if another program wrote them.
  void check(detail::ModelState& model, BuffersMay buffers) const;
  /// The same for one kind of the optimizer's state.
  void check(const FlatArray& array) const;

  /// Counts the bytes of later reads in a meter, which must outlive them.
  void count_into(ProgressMeter& meter) noexcept { reader_.count_into(&meter); }

  /// Reads elements [offset, offset + numel) of a parameter, which may be stored under any of its
  /// names. Throws if another program stored different weights under two of them.
  void read(const sharding::ParameterRecord& record, const std::string& kind, std::int64_t offset,
            std::int64_t numel, Dtype dtype, void* out);
  /// Reads this rank's shard of an array directly to its place in memory.
  void read(device::Device& device, const FlatArray& array);
  /// Reads a buffer, in its own dtype if another one is stored; leaves it unchanged if none is
  /// stored under one of its names.
  void read_buffer(detail::ModelState& model, acc::model::BufferRecord& buffer);

 private:
  template <typename Record>
  [[nodiscard]] const StoredTensor* find(const Record& record, const std::string& kind) const;
  [[nodiscard]] Error buffer_error(const StoredTensor& tensor,
                                   const acc::model::BufferRecord& buffer,
                                   const std::string& what) const;
  [[nodiscard]] const StoredTensor& at(const sharding::ParameterRecord& record,
                                       const std::string& kind) const;
  void warn_of_others(detail::ModelState& model) const;
  void check_tied(const sharding::ParameterRecord& record, const StoredTensor& first,
                  std::int64_t offset, std::span<const std::byte> values, Dtype dtype);
  void check_shape(const StoredTensor& tensor, const Shape& expected) const;
  /// Also checks that the values are real numbers.
  void check_values(const StoredTensor& tensor, const Shape& expected) const;

  Stored stored_;
  TensorReader reader_;
};

/// Collective, after every rank's last read of the checkpoint that `path` named when it was opened:
/// fails the attempt unless the checkpoint has not changed, so that all ranks have read the same.
void prove_unchanged(Attempt& attempt, const sharding::Groups& groups, const InputPath& opened,
                     const std::string& path);

/// Waits until this rank's weights may be overwritten in place. Gathers of the old weights may
/// still be running, a GPU may still read host memory, and copies for a save may be under way.
/// Peers may read this rank's memory until a barrier that the caller adds.
void await_readers(detail::ModelState& model);
/// Updates what depends on the master weights, after they have changed: the rounded copy and the
/// copies that other ranks see. Collective.
void renew_weights(detail::ModelState& model);

}  // namespace acc::state_dict
