// SPDX-License-Identifier: Apache-2.0
#include "torch/tensor_value.hpp"

#include "acc/checkpoint/files/errors.hpp"

#include <algorithm>
#include <limits>

// Understands the forms in which torch pickles a tensor:
//   _rebuild_tensor_v2(storage, offset, shape, strides, requires_grad, hooks[, metadata])
//   _rebuild_tensor_v3(… the same …, dtype[, metadata]), for dtypes without a storage class
//   _rebuild_parameter(tensor, …) and _rebuild_from_type_v2(callable, type, arguments, state),
//   which wrap one of these.
// A storage is a persistent id: the tuple ("storage", class, key, location, numel).
namespace acc::checkpoint::torch {
namespace {

using pickle::Value;
using Kind = Value::Kind;

/// Largest number of elements of a tensor that repeats elements of its storage.
constexpr std::int64_t kMaxRepeated = std::int64_t{1} << 28;

/// A call that a pickle records: the callable and its arguments.
struct Call {
  const Value* callable = nullptr;
  Value::Items arguments = {};
};

/// Returns the call inside of a wrapper; without a callable if the call is not a wrapper.
Call unwrapped(const Call& call) {
  const auto is = [&](std::string_view name) {
    return call.callable->is_global("torch._utils", name);
  };
  const bool parameter = is("_rebuild_parameter") || is("_rebuild_parameter_with_state");
  if (parameter && !call.arguments.empty() && call.arguments[0]->is(Kind::object)) {
    const Value::Items inner = call.arguments[0]->items;
    return {inner[0], inner[1]->items};
  }
  // _rebuild_from_type_v2(callable, type, arguments, state)
  if (call.callable->is_global("torch._tensor", "_rebuild_from_type_v2") &&
      call.arguments.size() == 4 && call.arguments[0]->is(Kind::global) &&
      call.arguments[2]->is(Kind::tuple)) {
    return {call.arguments[0], call.arguments[2]->items};
  }
  return {};
}

/// Returns the _rebuild_tensor call that the value is or wraps; without a callable if there is
/// none.
Call tensor_call(const Value& value) {
  if (!value.is(Kind::object)) {
    return {};
  }
  Call call{value.items[0], value.items[1]->items};
  while (call.callable != nullptr) {
    const auto is = [&](std::string_view name) {
      return call.callable->is_global("torch._utils", name);
    };
    if (is("_rebuild_tensor") || is("_rebuild_tensor_v2") || is("_rebuild_tensor_v3")) {
      return call;
    }
    call = unwrapped(call);
  }
  return {};
}

class Decoder {
 public:
  explicit Decoder(const std::string& where) : where_(where) {}

  TensorValue decode(const Value& value) const {
    const Call call = tensor_call(value);
    if (call.callable == nullptr) {
      fail("expected a tensor, found " + value.describe());
    }
    // storage, offset, shape, strides, …
    if (call.arguments.size() < 4 || !call.arguments[0]->is(Kind::persistent) ||
        !call.arguments[1]->is(Kind::integer)) {
      fail("a tensor without its storage, offset, shape and strides");
    }
    refuse_views(call);
    // "storage", class, key, location, numel
    const Value& id = *call.arguments[0]->items[0];
    if (!id.is(Kind::tuple) || id.items.size() < 5 || !id.items[0]->is(Kind::text) ||
        id.items[0]->text != "storage" || !id.items[2]->is(Kind::text)) {
      fail("a tensor with an unsupported storage: " + id.describe());
    }
    TensorValue found{.dtype = dtype(call, *id.items[1]),
                      .shape = integers(*call.arguments[2], "shape"),
                      .storage = id.items[2]->text};
    check_shape(found.shape, where_ + ": a tensor");
    found.strides = strides(found.shape, *call.arguments[3]);
    const std::uint64_t size = size_of(found.dtype);
    const std::int64_t first = call.arguments[1]->integer;
    constexpr std::uint64_t kLimit = std::numeric_limits<std::uint64_t>::max() / 2;
    const auto numel = stored_numel(found.shape, found.strides);
    if (first < 0 || static_cast<std::uint64_t>(first) > kLimit / size || !numel ||
        static_cast<std::uint64_t>(*numel) > kLimit / size) {
      fail("a tensor of shape " + to_string(found.shape) + " at element " + std::to_string(first));
    }
    // A stride of 0 repeats elements: a small file could ask for any number of them.
    if (numel_of(found.shape) > std::max(*numel, kMaxRepeated)) {
      throw Unreadable(
          where_ + ": a tensor of shape " + to_string(found.shape) +
          " that repeats its elements is too large (torch: .contiguous() before saving)");
    }
    found.offset = static_cast<std::uint64_t>(first) * size;
    found.nbytes = static_cast<std::uint64_t>(*numel) * size;
    return found;
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw Error(Errc::config, where_ + ": " + what);
  }

  /// Refuses tensors whose elements differ from those of their storage.
  void refuse_views(const Call& call) const {
    for (std::size_t i = 6; i < call.arguments.size(); ++i) {  // metadata is the last argument
      for (const char* const key : {"conj", "neg"}) {
        const Value* const mark = call.arguments[i]->find(key);
        if (mark != nullptr && mark->integer != 0) {
          throw Unreadable(where_ + ": a tensor with a view of kind \"" + key +
                           "\" (torch: .resolve_" + key + "() before saving)");
        }
      }
    }
  }

  Shape integers(const Value& value, const char* what) const {
    // torch.Size((…)) is treated as the tuple in it.
    const bool sized = value.is_object_of("torch", "Size") && value.items[1]->items.size() == 1;
    const Value& tuple = sized ? *value.items[1]->items[0] : value;
    if (!tuple.is(Kind::tuple)) {
      fail(std::string("a tensor's ") + what + " is " + value.describe());
    }
    Shape found;
    for (const Value* item : tuple.items) {
      if (!item->is(Kind::integer)) {
        fail(std::string("a tensor's ") + what + " has " + item->describe());
      }
      found.push_back(item->integer);
    }
    return found;
  }

  // v2 derives the dtype from the storage class, v3 has it as its seventh argument.
  Dtype dtype(const Call& call, const Value& storage_class) const {
    const bool v3 = call.callable->is_global("torch._utils", "_rebuild_tensor_v3");
    if (!v3) {
      const auto known = storage_class.is(Kind::global) && storage_class.text == "torch"
                             ? dtype_of_torch_storage(storage_class.name)
                             : std::nullopt;
      if (!known) {
        throw Unreadable(where_ + ": a tensor in a storage of class " + storage_class.describe() +
                         " is not supported");
      }
      return *known;
    }
    const Value* named = call.arguments.size() > 6 ? call.arguments[6] : nullptr;
    const auto known = named != nullptr && named->is(Kind::global) && named->text == "torch"
                           ? dtype_of_torch(named->name)
                           : std::nullopt;
    if (!known) {
      throw Unreadable(where_ + ": a tensor of unsupported dtype: " +
                       (named != nullptr ? named->describe() : "none"));
    }
    return *known;
  }

  // Returns none for a tensor in row-major order. Strides of dimensions with one index do not
  // matter, and a tensor without elements has none that do.
  Shape strides(const Shape& shape, const Value& value) const {
    Shape strides = integers(value, "strides");
    if (strides.size() != shape.size()) {
      fail("a tensor of shape " + to_string(shape) + " has strides " + to_string(strides));
    }
    bool row_major = true;
    std::int64_t expected = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      if (strides[d] < 0) {
        fail("a tensor of shape " + to_string(shape) + " has strides " + to_string(strides));
      }
      row_major = row_major && (shape[d] == 1 || strides[d] == expected);
      expected *= shape[d];
    }
    return row_major || numel_of(shape) == 0 ? Shape{} : strides;
  }

  const std::string& where_;
};

}  // namespace

bool is_tensor_value(const Value& value) noexcept {
  return tensor_call(value).callable != nullptr;
}

TensorValue tensor_value(const Value& value, const std::string& where) {
  return Decoder(where).decode(value);
}

}  // namespace acc::checkpoint::torch
