#pragma once

#include "buffer.hpp"
#include "gemm.hpp"

#include <acc/runtime.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace train_gpt {

/// A weight as products take it: [rows, cols] in the model's compute dtype.
struct Weight {
  const void* data;
  std::int64_t rows;
  std::int64_t cols;
  bool transposed = false;

  /// The same memory read as the transpose.
  [[nodiscard]] Weight t() const { return {data, cols, rows, !transposed}; }
};

template <class Use>
Weight weight(const Use& use, acc::Parameter parameter, std::int64_t rows, std::int64_t cols) {
  return {use.raw(parameter), rows, cols};
}

/// Where float32 code puts a gradient.
class FloatGradient {
 public:
  FloatGradient(float* data, std::int64_t count, float beta)
      : data_(data), count_(count), beta_(beta) {}

  [[nodiscard]] float* data() const { return data_; }
  [[nodiscard]] std::int64_t count() const { return count_; }
  /// For the write that follows: data = beta * data + gradient.
  float next_beta() { return std::exchange(beta_, 1.0f); }
  /// To be added to.
  float* to_add();

 private:
  float* data_;
  std::int64_t count_;
  float beta_;
};

/// A unit's parameters and gradients for code that computes in float32, whatever the model's
/// compute dtype is: themselves, or widened copies and gradients that `finish` narrows.
class UnitValues {
 public:
  explicit UnitValues(acc::DType dtype) : is_float_(dtype == acc::DType::float32) {}

  /// A scope begins: what was handed out before may be reused.
  void begin();
  template <class Use>
  const float* operator()(const Use& use, acc::Parameter parameter, std::int64_t count) {
    return is_float_ ? use[parameter] : widened(use.raw(parameter), count);
  }
  /// One row of a table [rows, columns].
  void add_row(float* out, const Weight& table, std::int64_t row) const;
  /// Once a parameter and scope.
  FloatGradient gradient(acc::BackwardUse& use, acc::Parameter parameter, std::int64_t count);
  /// Before the scope ends.
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
