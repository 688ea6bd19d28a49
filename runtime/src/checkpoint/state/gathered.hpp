#pragma once

#include "checkpoint/state/saved_arrays.hpp"
#include "model/buffers.hpp"

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

/// Full tensors of a sharded model, one flat parameter in memory at a time.
namespace acc::checkpoint {

/// A tensor, and where it lies: elements [offset, offset + numel of the shape) of an array, or a
/// buffer.
struct FullItem {
  std::string name;
  std::string kind;
  Shape shape;
  DType dtype = DType::float32;
  std::size_t array = 0;
  std::int64_t offset = 0;
  const acc::model::BufferRecord* buffer = nullptr;  ///< or null
};

/// Parameters, each under all of its names, then buffers (as float32), as `arrays` have them.
std::vector<FullItem> weight_items(detail::ModelState& model, const std::vector<FlatArray>& arrays);
std::vector<FullItem> moment_items(const std::vector<FlatArray>& arrays);

class GatheredTensors {
 public:
  struct Where {
    bool every_rank = false;  ///< else rank 0 alone gets the values
    bool on_host = true;      ///< else they lie in the memory of the compute device
  };
  /// items: those that all ranks go through, in this order.
  GatheredTensors(detail::ModelState& model, std::vector<FlatArray> arrays,
                  std::vector<FullItem> items, Where where);

  [[nodiscard]] const std::vector<FullItem>& items() const noexcept { return items_; }
  /// Values of an item, until the next call; null on a rank that gets none. Takes part in the
  /// gathers of those before. Collective.
  const std::byte* bring(std::size_t item);
  /// Takes part in the gathers that are left. Collective: a rank that has given up calls it too.
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
  std::size_t next_ = 0;  ///< item that no gather was made for yet
  std::optional<std::size_t> at_hand_;
  device::MemoryPtr device_memory_;
  std::vector<std::byte> host_memory_;
  std::vector<float> buffer_;
  device::MemoryPtr buffer_on_device_;
  const std::byte* values_ = nullptr;  ///< of the array at hand
};

}  // namespace acc::checkpoint
