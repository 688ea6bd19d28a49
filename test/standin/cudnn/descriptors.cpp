// SPDX-License-Identifier: Apache-2.0
#include "standin/cudnn/descriptors.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <mutex>

namespace standin::cudnn {
namespace {

// CUDNN_TYPE_*
enum Type {
  handle = 0,
  data_type = 1,
  boolean_value = 2,
  int64 = 3,
  pointer = 6,
  heuristics_mode = 8,
  pointwise_mode = 14,
  descriptor = 15,
  reduction_operator = 18
};

/// One attribute that a kind of descriptor has.
struct Rule {
  int kind;
  int attribute;
  Type type;
  std::int64_t most;  ///< number of elements; the least is 1
  bool required;
  int of_kind = -1;  ///< kind of the descriptors that it takes
};

constexpr std::int64_t kAny = 1 << 16;
constexpr int kTensor = 17;
constexpr Rule kRules[] = {
    {0, 0, pointwise_mode, 1, true},
    {0, 1, data_type, 1, true},
    {0, 9, int64, 1, false},
    {4, 200, heuristics_mode, 1, true},
    {4, 201, descriptor, 1, true, 15},
    {5, 400, handle, 1, true},
    {5, 401, descriptor, 1, true, 3},
    {13, 750, descriptor, 1, true, 0},
    {13, 751, descriptor, 1, true, kTensor},
    {13, 752, descriptor, 1, false, kTensor},
    {13, 753, descriptor, 1, true, kTensor},
    {13, 758, descriptor, 1, false, kTensor},
    {15, 800, handle, 1, true},
    {15, 801, descriptor, kAny, true},
    {16, 1000, int64, kAny, true},
    {16, 1001, pointer, kAny, true},
    {16, 1003, pointer, 1, false},
    {17, 900, int64, 1, true},
    {17, 901, data_type, 1, true},
    {17, 902, int64, 8, true},
    {17, 903, int64, 8, true},
    {17, 906, int64, 1, true},
    {17, 907, boolean_value, 1, false},
    {17, 908, boolean_value, 1, false},
    {18, 1500, data_type, 1, true},
    {19, 1520, descriptor, 1, true, kTensor},
    {19, 1521, descriptor, 1, true, kTensor},
    {19, 1522, descriptor, 1, true, kTensor},
    {19, 1523, descriptor, 1, true, 18},
    {21, 1600, reduction_operator, 1, true},
    {21, 1601, data_type, 1, true},
    {22, 1610, descriptor, 1, true, kTensor},
    {22, 1611, descriptor, 1, true, kTensor},
    {22, 1612, descriptor, 1, true, 21},
    {31, 2200, descriptor, 1, true, kTensor},
    {31, 2201, descriptor, 1, true, kTensor},
};
constexpr std::array kKinds = {0, 3, 4, 5, 13, 15, 16, 17, 18, 19, 21, 22, 31};

std::size_t size_of(Type type) {
  switch (type) {
    case boolean_value: return sizeof(bool);
    case int64:
    case handle:
    case pointer:
    case descriptor: return 8;
    default: return sizeof(int);  // enumerations
  }
}

/// Changes the elements of an attribute as ACC_STANDIN_CUDNN_CHANGE asks: `902:3` adds one to the
/// last element of attribute 902 when it is set for the third time.
void change(int attribute, Type type, std::vector<std::byte>& bytes) {
  static std::mutex mutex;
  static std::string last;  // the variable's value for which `times` counts
  static int times = 0;
  const char* const variable = std::getenv("ACC_STANDIN_CUDNN_CHANGE");
  const std::lock_guard lock(mutex);
  if (last != (variable == nullptr ? "" : variable)) {
    last = variable == nullptr ? "" : variable;
    times = 0;
  }
  const std::string number = std::to_string(attribute) + ":";
  if (last.starts_with(number) && std::to_string(++times) == last.substr(number.size())) {
    std::byte& lowest = bytes[bytes.size() - size_of(type)];
    lowest = type == boolean_value ? lowest ^ std::byte{1}
                                   : std::byte(std::to_integer<unsigned>(lowest) + 1);
  }
}

std::mutex records_mutex;
std::map<void*, std::shared_ptr<Record>> records;

thread_local std::string reason_of_thread;

Status check_tensor(const Record& tensor) {
  const auto dims = tensor.all<std::int64_t>(902);
  const auto strides = tensor.all<std::int64_t>(903);
  const auto positive = [](std::int64_t value) { return value > 0; };
  if (dims.size() != strides.size() || !std::all_of(dims.begin(), dims.end(), positive) ||
      !std::all_of(strides.begin(), strides.end(), positive)) {
    return refuse(bad_param, "a tensor needs a positive size and stride for each dimension");
  }
  const auto alignment = tensor.one<std::int64_t>(900);
  if (alignment <= 0 || (alignment & (alignment - 1)) != 0) {
    return refuse(bad_param, "a tensor's alignment is not a power of two");
  }
  const bool by_value = tensor.one<bool>(908);
  if (by_value && (tensor.one<bool>(907) ||
                   std::any_of(dims.begin(), dims.end(), [](auto dim) { return dim != 1; }))) {
    return refuse(bad_param, "a tensor by value is one number and not virtual");
  }
  return success;
}

Status check_pack(const Record& pack) {
  const auto ids = pack.all<std::int64_t>(1000);
  if (ids.size() != pack.all<void*>(1001).size()) {
    return refuse(bad_param, "a variant pack needs one pointer for each id");
  }
  return success;
}

}  // namespace

Status refuse(Status status, const std::string& reason) {
  reason_of_thread = reason;
  return status;
}

const std::string& last_reason() {
  return reason_of_thread;
}

std::shared_ptr<Record> find(void* handle) {
  const std::lock_guard lock(records_mutex);
  const auto found = records.find(handle);
  return found == records.end() ? nullptr : found->second;
}

Status create(int kind, void** handle) {
  if (std::find(kKinds.begin(), kKinds.end(), kind) == kKinds.end()) {
    return refuse(not_supported, "no descriptor of kind " + std::to_string(kind));
  }
  auto made = std::make_shared<Record>(Record{.kind = kind});
  *handle = made.get();
  const std::lock_guard lock(records_mutex);
  records.emplace(*handle, std::move(made));
  return success;
}

Status destroy(void* handle) {
  const std::lock_guard lock(records_mutex);
  return records.erase(handle) == 1 ? success : bad_param;
}

Status set_attribute(void* handle, int attribute, int type, std::int64_t count,
                     const void* elements) {
  const auto record = find(handle);
  if (record == nullptr || record->finalized || elements == nullptr) {
    return refuse(bad_param, "no descriptor, a finalized one, or no elements");
  }
  const auto* const rule = std::find_if(std::begin(kRules), std::end(kRules), [&](const Rule& r) {
    return r.kind == record->kind && r.attribute == attribute;
  });
  const std::string what =
      "attribute " + std::to_string(attribute) + " of kind " + std::to_string(record->kind);
  if (rule == std::end(kRules)) {
    return refuse(not_supported, what + " does not exist");
  }
  if (type != rule->type || count < 1 || count > rule->most) {
    return refuse(bad_param, what + " has another type or number of elements");
  }
  Value value{.count = count, .bytes = {}, .records = {}};
  value.bytes.resize(static_cast<std::size_t>(count) * size_of(rule->type));
  std::memcpy(value.bytes.data(), elements, value.bytes.size());
  if (rule->type != descriptor) {
    change(attribute, rule->type, value.bytes);
  } else {
    for (std::int64_t i = 0; i < count; ++i) {
      auto other = find(static_cast<void* const*>(elements)[i]);
      if (other == nullptr || !other->finalized ||
          (rule->of_kind >= 0 && other->kind != rule->of_kind)) {
        return refuse(bad_param, what + " needs a finalized descriptor of another kind");
      }
      value.records.push_back(std::move(other));
    }
  }
  record->values.insert_or_assign(attribute, std::move(value));
  return success;
}

Status finalize(void* handle) {
  const auto record = find(handle);
  if (record == nullptr || record->finalized) {
    return refuse(bad_param, "no descriptor, or a finalized one");
  }
  for (const Rule& rule : kRules) {
    if (rule.kind == record->kind && rule.required && !record->has(rule.attribute)) {
      return refuse(bad_param, "attribute " + std::to_string(rule.attribute) + " is missing");
    }
  }
  const Status status = record->kind == kTensor ? check_tensor(*record)
                        : record->kind == 16    ? check_pack(*record)
                                                : success;
  record->finalized = status == success;
  return status;
}

}  // namespace standin::cudnn
