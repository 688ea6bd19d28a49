// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "sharding/context.hpp"
#include "sharding/pools.hpp"
#include "sharding/shard_layout.hpp"

#include <cstddef>
#include <vector>

namespace acc::sharding {

/// The memory into which the program writes the gradient of one flat parameter, [padded_numel] in
/// the view dtype, and which parameters it has written. Closed, it has no memory.
class WrittenGradient {
 public:
  /// All arguments outlive this object.
  WrittenGradient(const Context& context, ScratchPool& scratch, const FlatLayout& layout)
      : context_(context), scratch_(scratch), layout_(layout), is_written_(layout.numels.size()) {}

  void open(std::byte* memory) noexcept { data_ = memory; }
  /// Opens scratch memory, which `close` gives back.
  void open_scratch();
  void close();
  [[nodiscard]] bool is_open() const noexcept { return data_ != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  struct Target {
    void* data;
    bool written;
  };
  /// Returns the memory of parameter `index`, [numel], and whether it was written before. Marks it
  /// as written. Must be open.
  Target target(std::size_t index);
  /// The gradient of parameter `index`, [numel]; null if the program has not written it.
  [[nodiscard]] const std::byte* values(std::size_t index) const;
  /// Fills with zeros what the program did not write: unwritten parameters and the gaps between
  /// parameters. Pooled memory still contains the gradients of another unit there. Then everything
  /// counts as not written. Must be open.
  void zero_unwritten();
  /// Everything counts as not written.
  void forget();

 private:
  [[nodiscard]] std::byte* at(std::int64_t offset) const;

  const Context& context_;
  ScratchPool& scratch_;
  const FlatLayout& layout_;
  std::byte* data_ = nullptr;
  device::MemoryPtr own_;         ///< null unless `data_` is scratch memory
  std::vector<bool> is_written_;  ///< by parameter
};

}  // namespace acc::sharding
