// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "model/buffer.hpp"
#include "model/gemm.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace train_gpt {

/// A weight matrix [rows, cols] in the model's compute dtype, as an operand of a matrix product.
struct Weight {
  const void* data;
  std::int64_t rows;
  std::int64_t cols;
  bool transposed = false;

  /// Returns a view of the transpose; the memory is the same.
  [[nodiscard]] Weight t() const { return {data, cols, rows, !transposed}; }
};

template <class Use>
Weight weight(const Use& use, acc::Parameter parameter, std::int64_t rows, std::int64_t cols) {
  return {use.raw(parameter), rows, cols};
}

/// Destination of a gradient that is computed in float32.
class FloatGradient {
 public:
  FloatGradient(float* data, std::int64_t count, float beta)
      : data_(data), count_(count), beta_(beta) {}

  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// Returns beta for the next write, data = beta * data + gradient. Later writes always add.
  float next_beta() { return std::exchange(beta_, 1.0f); }
  /// Returns the destination for code that adds to it; fills it with zeros if nothing is there yet.
  float* to_add();

 private:
  float* data_;
  std::int64_t count_;
  float beta_;
};

/// A unit's parameters and gradients for code that computes in float32. If the model's compute
/// dtype is float32, these are the runtime's own buffers. Otherwise parameters are copied to
/// float32, and `finish` converts the gradients back.
class UnitValues {
 public:
  explicit UnitValues(acc::DType dtype) : is_float_(dtype == acc::DType::float32) {}

  /// Call at the beginning of a scope. Buffers returned before may be reused.
  void begin();
  template <class Use>
  const float* operator()(const Use& use, acc::Parameter parameter, std::int64_t count) {
    return is_float_ ? use[parameter] : widened(use.raw(parameter), count);
  }
  /// Adds one row of a table [rows, columns] to `out`.
  void add_row(float* out, const Weight& table, std::int64_t row) const;
  /// Returns the gradient of a parameter. Call once per parameter and scope.
  FloatGradient gradient(acc::BackwardUse& use, acc::Parameter parameter, std::int64_t count);
  /// Call before the scope ends. Writes converted gradients to the runtime.
  void finish(acc::BackwardUse& use);

 private:
  struct Slot {
    Buffer buffer;
    std::int64_t count = 0;
  };
  float* next_slot(std::int64_t count);
  const float* widened(const void* values, std::int64_t count);

  bool is_float_;
  std::size_t used_ = 0;
  std::vector<Slot> slots_;
  std::vector<std::pair<acc::Parameter, FloatGradient>> gradients_;
};

}  // namespace train_gpt
