// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

/// Descriptors of the stand-in cuDNN. All numbers are those of cudnn_graph.h of cuDNN 9, written
/// down here a second time, so that a wrong number in the program under test is refused.
namespace standin::cudnn {

enum Status { success = 0, bad_param = 2000, not_supported = 3000, execution_failed = 5000 };
enum DataType { float32 = 0, float16 = 2, int32 = 4, bfloat16 = 9, boolean = 11 };

struct Record;

/// An attribute that was set.
struct Value {
  std::int64_t count;
  std::vector<std::byte> bytes;
  std::vector<std::shared_ptr<const Record>> records;  ///< of attributes that are descriptors
};

/// One descriptor. Others hold it while they use it, also after the program has destroyed it.
struct Record {
  int kind;
  bool finalized = false;
  std::map<int, Value> values{};

  [[nodiscard]] bool has(int attribute) const { return values.contains(attribute); }
  template <class T>
  [[nodiscard]] std::vector<T> all(int attribute) const {
    const Value& value = values.at(attribute);
    std::vector<T> elements(static_cast<std::size_t>(value.count));
    std::memcpy(elements.data(), value.bytes.data(), value.bytes.size());
    return elements;
  }
  template <class T>
  [[nodiscard]] T one(int attribute, T otherwise = {}) const {
    if (has(attribute)) {
      std::memcpy(&otherwise, values.at(attribute).bytes.data(), sizeof otherwise);
    }
    return otherwise;
  }
  [[nodiscard]] const Record& record(int attribute) const {
    return *values.at(attribute).records[0];
  }
};

/// Refuses a call: keeps `reason` for cudnnGetLastErrorString and returns `status`.
Status refuse(Status status, const std::string& reason);
/// Returns the reason of this thread's last refused call.
const std::string& last_reason();

// The functions of the same meaning, with cuDNN's status.
Status create(int kind, void** handle);
Status destroy(void* handle);
Status set_attribute(void* handle, int attribute, int type, std::int64_t count,
                     const void* elements);
/// Checks that every required attribute is set, and the values as far as they concern one
/// descriptor.
Status finalize(void* handle);
/// Returns the descriptor of a handle, or null.
std::shared_ptr<Record> find(void* handle);

}  // namespace standin::cudnn
