// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/base/object_store.hpp"

#include <cstddef>
#include <cstdint>
#include <list>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace acc::checkpoint {

/// Reads an object. Small reads, of which the parsers of headers make many, are served from the
/// last blocks, because each request costs a round trip. Thread-safe.
class ObjectReader {
 public:
  ObjectReader(std::string name, ObjectStore::Found object)
      : name_(std::move(name)), object_(std::move(object)) {}

  /// Reads [offset, offset + out.size()), which lies in the object.
  void read(std::uint64_t offset, std::span<std::byte> out);

 private:
  struct Block {
    std::uint64_t number = 0;
    std::vector<std::byte> bytes;
  };
  const Block& block(std::uint64_t number);

  std::string name_;
  ObjectStore::Found object_;
  std::mutex mutex_;
  std::list<Block> blocks_;  ///< guarded by mutex_; the last one used is the first
};

}  // namespace acc::checkpoint
