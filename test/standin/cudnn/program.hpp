// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "standin/cudnn/descriptors.hpp"

#include <array>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace standin::cudnn {

using Dims = std::array<std::int64_t, 4>;

struct Tensor {
  std::int64_t id;
  Dims dims;
  Dims strides;
  int type;
  bool is_virtual;
  bool is_by_value;

  /// Number of elements from the first to the last one in memory.
  [[nodiscard]] std::int64_t extent() const;
};

/// One operation. Inputs and output are ids of tensors; 0 is none.
struct Step {
  char sign;  ///< as in kForward and kBackward of program.cpp
  std::int64_t x, b, t, y;
  std::int64_t axis;
};

/// A graph of operations that the library has accepted.
class Program {
 public:
  /// Checks each operation, and that the operations in their order are those of attention or of its
  /// gradient, as cuDNN's engines do. Otherwise refuses it (last_reason) and returns null.
  static std::shared_ptr<const Program> compile(const Record& graph);

  [[nodiscard]] const std::map<std::int64_t, Tensor>& tensors() const { return tensors_; }
  /// Computes the steps in fp32. memory: of all tensors that are not virtual.
  void run(const std::map<std::int64_t, void*>& memory) const;

 private:
  Status add(const Record& operation);
  Status check(const Step& step);
  Status check_attention() const;
  std::int64_t use(const Record& operation, int attribute);

  std::map<std::int64_t, Tensor> tensors_;
  std::map<std::int64_t, const Record*> records_;
  std::map<std::int64_t, bool> written_;
  std::vector<Step> steps_;
};

}  // namespace standin::cudnn
