// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/buffers.hpp"
#include "state_dict/saved_arrays.hpp"

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

/// Whole tensors of a sharded model, with one flat parameter in memory at a time.
namespace acc::state_dict {

/// A tensor and its place: elements [offset, offset + numel) of an array, or a buffer.
struct FullItem {
  std::string name;
  std::string kind;
  Shape shape;
  DType dtype = DType::float32;
  std::size_t array = 0;
  std::int64_t offset = 0;
  const acc::model::BufferRecord* buffer = nullptr;  ///< null: the item is in `array`
};

/// Returns an item per parameter and name, then one per buffer and name. `arrays`: as
/// weight_arrays returns them.
std::vector<FullItem> weight_items(detail::ModelState& model, const std::vector<FlatArray>& arrays);
std::vector<FullItem> moment_items(const std::vector<FlatArray>& arrays);

/// Gathers tensors one after the other. All functions but `items` are collective: every rank must
/// call `bring` with the same items, or `finish`, in the same order.
class GatheredTensors {
 public:
  struct Where {
    bool every_rank = false;         ///< false: only rank 0 gets the values
    bool on_host = true;             ///< false: they are in the memory of the compute device
    ProgressMeter* meter = nullptr;  ///< counts gathered bytes
  };
  /// `items`: the tensors, in the order in which all ranks visit them.
  GatheredTensors(detail::ModelState& model, std::vector<FlatArray> arrays,
                  std::vector<FullItem> items, Where where);

  [[nodiscard]] const std::vector<FullItem>& items() const noexcept { return items_; }
  /// Returns the values of an item, valid until the next call; null on a rank that gets none. Takes
  /// part in the gathers of all items before it.
  const std::byte* bring(std::size_t item);
  /// Takes part in the remaining gathers. A rank that has failed calls it too.
  void finish();

 private:
  void gather(std::size_t array);
  void keep(const device::MemoryPtr& full, std::size_t nbytes);
  const std::byte* bring_buffer(const acc::model::BufferRecord& buffer);
  [[nodiscard]] bool wants() const;

  detail::ModelState& model_;
  std::vector<FlatArray> arrays_;
  std::vector<FullItem> items_;
  Where where_;
  std::size_t next_ = 0;  ///< first item whose array may not be gathered yet
  std::optional<std::size_t> at_hand_;
  device::MemoryPtr device_memory_;
  std::vector<std::byte> host_memory_;
  std::vector<std::byte> buffer_;
  device::MemoryPtr buffer_on_device_;
  const std::byte* values_ = nullptr;  ///< of the array in memory
};

}  // namespace acc::state_dict
