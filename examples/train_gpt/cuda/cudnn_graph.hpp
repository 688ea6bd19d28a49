// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cuda/cudnn.hpp"

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

namespace train_gpt::cuda::cudnn {

/// Owns a descriptor of cuDNN. Its functions throw Error(device).
class OwnedDescriptor {
 public:
  OwnedDescriptor(const Library& api, Kind kind);
  OwnedDescriptor(OwnedDescriptor&& other) noexcept
      : api_(other.api_), handle_(std::exchange(other.handle_, nullptr)) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept {
    std::swap(api_, other.api_);
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~OwnedDescriptor();

  [[nodiscard]] Descriptor get() const { return handle_; }

  template <class Value>
  void set(Attribute attribute, ValueType type, std::span<const Value> values) {
    set(attribute, type, static_cast<std::int64_t>(values.size()), values.data());
  }
  template <class Value>
  void set(Attribute attribute, ValueType type, const Value& value) {
    set(attribute, type, 1, &value);
  }
  void set(Attribute attribute, const OwnedDescriptor& value) {
    set(attribute, ValueType::descriptor, value.handle_);
  }
  void finalize(const char* what);

 private:
  void set(Attribute attribute, ValueType type, std::int64_t count, const void* values);

  const Library* api_;
  Descriptor handle_ = nullptr;
};

using Dims = std::array<std::int64_t, 4>;

/// Sizes of a tensor and the number of elements between neighbours in each dimension.
struct Layout {
  Dims dims;
  Dims strides;

  /// The same memory with the last two dimensions exchanged.
  [[nodiscard]] Layout transposed() const;
  /// Row-major, without gaps.
  static Layout packed(const Dims& dims);
};

/// A tensor of a Graph.
struct Tensor {
  std::size_t index;
};

/// For what a plan is made: a GPU of this process, or a described one, which needs no GPU.
struct Target {
  Handle handle = nullptr;
  Descriptor properties = nullptr;  ///< of kind device_properties
};

/// A graph that cuDNN has compiled for one target.
struct Plan {
  std::vector<OwnedDescriptor> parts;  ///< what the plan was made from
  OwnedDescriptor descriptor;
  std::int64_t workspace_nbytes;
};

/// A graph of operations on tensors of four dimensions, computed in fp32. Describes the operations
/// in the order of the calls. Throws Error(device).
class Graph {
 public:
  explicit Graph(const Library& api) : api_(api) {}

  /// A tensor in GPU memory, aligned to 16 bytes. id: positive, names its memory when the plan is
  /// executed.
  Tensor memory(std::int64_t id, const Layout& layout, DataType type);
  /// One fp32 number in host memory.
  Tensor scalar(std::int64_t id);
  /// A tensor that is never stored. cuDNN converts what an operation writes to `type`.
  Tensor temporary(const Layout& layout, DataType type = DataType::float32);

  /// c = a b for the matrices in the last two dimensions.
  void matmul(Tensor a, Tensor b, Tensor c);
  /// y = mode(x), or mode(x, b) with b broadcast to x.
  void pointwise(PointwiseMode mode, Tensor x, Tensor y);
  void pointwise(PointwiseMode mode, Tensor x, Tensor b, Tensor y);
  /// y (boolean) = x >= b
  void greater_equal(Tensor x, Tensor b, Tensor y);
  /// y (int32) = the position in dimension `axis` of each element of x
  void index(Tensor x, std::int64_t axis, Tensor y);
  /// y = x where t, b elsewhere
  void select(Tensor x, Tensor b, Tensor t, Tensor y);
  /// Reduces x along the dimensions in which y has size 1.
  void reduce(ReductionOperator mode, Tensor x, Tensor y);
  /// y = the memory of x in the layout of y
  void reshape(Tensor x, Tensor y);

  /// Compiles the graph with the first engine that can run it, in the order that cuDNN prefers.
  [[nodiscard]] Plan plan(const Target& target) &&;

 private:
  OwnedDescriptor& tensor(std::int64_t id, const Layout& layout, DataType type);
  OwnedDescriptor& operation(Kind kind);
  void add_pointwise(PointwiseMode mode, DataType math, std::int64_t axis,
                     std::initializer_list<std::pair<Attribute, Tensor>> tensors);
  [[nodiscard]] const OwnedDescriptor& of(Tensor tensor) const { return tensors_[tensor.index]; }

  const Library& api_;
  std::vector<OwnedDescriptor> tensors_;
  std::vector<OwnedDescriptor> modes_;
  std::vector<OwnedDescriptor> operations_;
  std::int64_t next_temporary_ = 1000;  // ids of temporaries begin here
};

/// Memory of a tensor when a plan is executed.
struct Binding {
  std::int64_t id;
  const void* data;
};

/// Queues a plan on the handle's stream. Throws Error(device).
void execute(const Library& api, Handle handle, const Plan& plan, std::span<const Binding> bindings,
             void* workspace);

}  // namespace train_gpt::cuda::cudnn
