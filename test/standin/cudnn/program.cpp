// SPDX-License-Identifier: Apache-2.0
#include "standin/cudnn/program.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <string>

namespace standin::cudnn {
namespace {

// Operations: M matrix product, T reshape, X maximum, S sum; the others are element-wise: e exp,
// l log, i index, > greater or equal, ? select, = conversion.
constexpr const char* kForward = "M*ii>?X-eSl+/M";
constexpr const char* kBackward = "*S*M*-ii>?eTMM-**TMTM=";
constexpr const char* kDeterministicBackward = "*S*M*-ii>?eTMM-**TMTM";

std::optional<char> pointwise_sign(int mode) {
  switch (mode) {
    case 0: return '+';
    case 1: return '*';
    case 6: return '/';
    case 9: return '-';
    case 13: return 'e';
    case 15: return 'l';
    case 21: return '=';
    case 303: return '>';
    case 501: return 'i';
    case 601: return '?';
    default: return std::nullopt;
  }
}

bool is_narrow(int type) {
  return type == bfloat16 || type == float16;
}

float load(const void* data, int type, std::int64_t at) {
  switch (type) {
    case bfloat16: return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
    case float16: return __half2float(static_cast<const __half*>(data)[at]);
    default: return static_cast<const float*>(data)[at];
  }
}

void store(void* data, int type, std::int64_t at, float value) {
  switch (type) {
    case bfloat16: static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(value); break;
    case float16: static_cast<__half*>(data)[at] = __float2half_rn(value); break;
    default: static_cast<float*>(data)[at] = value;
  }
}

float converted(int type, float value) {
  switch (type) {
    case bfloat16: return __bfloat162float(__float2bfloat16_rn(value));
    case float16: return __half2float(__float2half_rn(value));
    default: return value;
  }
}

/// The elements of a tensor in memory order. Those of tensors in memory may have gaps.
struct Numbers {
  Tensor tensor;
  std::vector<float> values;

  /// Position of an element; dimensions of size 1 are broadcast.
  [[nodiscard]] std::size_t at(const Dims& index) const {
    std::int64_t position = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      position += (tensor.dims[i] == 1 ? 0 : index[i]) * tensor.strides[i];
    }
    return static_cast<std::size_t>(position);
  }
};

template <class Function>
void for_each(const Dims& dims, const Function& function) {
  for (std::int64_t b = 0; b < dims[0]; ++b) {
    for (std::int64_t h = 0; h < dims[1]; ++h) {
      for (std::int64_t m = 0; m < dims[2]; ++m) {
        for (std::int64_t n = 0; n < dims[3]; ++n) {
          function(Dims{b, h, m, n});
        }
      }
    }
  }
}

float element(char sign, float x, float b, float t) {
  switch (sign) {
    case '+': return x + b;
    case '*': return x * b;
    case '/': return x / b;
    case '-': return x - b;
    case 'e': return std::exp(x);
    case 'l': return std::log(x);
    case '>': return x >= b ? 1.0f : 0.0f;
    case '?': return t != 0.0f ? x : b;
    default: return x;
  }
}

/// The rows (or columns) of one matrix, each as contiguous numbers.
std::vector<float> gather(const Numbers& matrix, std::int64_t batch, std::int64_t head,
                          bool columns) {
  const Dims& dims = matrix.tensor.dims;
  std::vector<float> lines;
  lines.reserve(static_cast<std::size_t>(dims[2] * dims[3]));
  for (std::int64_t line = 0; line < dims[columns ? 3 : 2]; ++line) {
    for (std::int64_t i = 0; i < dims[columns ? 2 : 3]; ++i) {
      lines.push_back(matrix.values[matrix.at(columns ? Dims{batch, head, i, line}
                                                      : Dims{batch, head, line, i})]);
    }
  }
  return lines;
}

void multiply(const Numbers& a, const Numbers& b, Numbers& c) {
  const auto inner = static_cast<std::size_t>(a.tensor.dims[3]);
  for (std::int64_t batch = 0; batch < a.tensor.dims[0]; ++batch) {
    for (std::int64_t head = 0; head < a.tensor.dims[1]; ++head) {
      const auto rows = gather(a, batch, head, false);
      const auto columns = gather(b, batch, head, true);
      for (std::int64_t m = 0; m < c.tensor.dims[2]; ++m) {
        for (std::int64_t n = 0; n < c.tensor.dims[3]; ++n) {
          const float* const row = rows.data() + static_cast<std::size_t>(m) * inner;
          const float* const column = columns.data() + static_cast<std::size_t>(n) * inner;
          c.values[c.at({batch, head, m, n})] = std::inner_product(row, row + inner, column, 0.0f);
        }
      }
    }
  }
}

}  // namespace

std::int64_t Tensor::extent() const {
  std::int64_t last = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    last += (dims[i] - 1) * strides[i];
  }
  return last + 1;
}

std::int64_t Program::use(const Record& operation, int attribute) {
  if (!operation.has(attribute)) {
    return 0;
  }
  const Record& record = operation.record(attribute);
  const auto dims = record.all<std::int64_t>(902);
  const auto strides = record.all<std::int64_t>(903);
  Tensor tensor{record.one<std::int64_t>(906), {}, {}, record.one<int>(901), record.one<bool>(907),
                record.one<bool>(908)};
  if (dims.size() != 4) {
    return -1;
  }
  std::copy_n(dims.begin(), 4, tensor.dims.begin());
  std::copy_n(strides.begin(), 4, tensor.strides.begin());
  const auto [found, added] = records_.try_emplace(tensor.id, &record);
  if (found->second != &record) {
    return -1;  // another tensor with the same id
  }
  tensors_.emplace(tensor.id, tensor);
  return tensor.id;
}

Status Program::check(const Step& step) {
  for (const std::int64_t id : {step.x, step.b, step.t}) {
    if (id < 0 || (id > 0 && tensors_.at(id).is_virtual && !written_[id])) {
      return refuse(bad_param, "an input has no value, four dimensions or an id of its own");
    }
  }
  if (step.y <= 0 || tensors_.at(step.y).is_by_value || written_[step.y]) {
    return refuse(bad_param, "an output is written twice, or is no tensor");
  }
  written_[step.y] = true;
  const Tensor& x = tensors_.at(step.x);
  const Tensor& y = tensors_.at(step.y);
  const auto broadcasts = [&](std::int64_t id) {
    const Dims& dims = tensors_.at(id).dims;
    return std::equal(dims.begin(), dims.end(), x.dims.begin(),
                      [](auto one, auto other) { return one == 1 || one == other; });
  };
  bool fits = true;
  switch (step.sign) {
    case 'M': {
      const Tensor& b = tensors_.at(step.b);
      fits = x.dims[0] == b.dims[0] && x.dims[1] == b.dims[1] && x.dims[3] == b.dims[2] &&
             y.dims == Dims{x.dims[0], x.dims[1], x.dims[2], b.dims[3]};
      break;
    }
    case 'T':
      fits = x.extent() == y.extent() && y.dims == Dims{x.dims[0], x.dims[1], x.dims[3], x.dims[2]};
      break;
    case 'X':
    case 'S': fits = y.dims == Dims{x.dims[0], x.dims[1], x.dims[2], 1} && y.type == float32; break;
    case 'i':
      fits = y.dims == x.dims && y.type == int32 && (step.axis == 2 || step.axis == 3);
      break;
    case '?': fits = step.b > 0 && step.t > 0 && tensors_.at(step.t).type == boolean; break;
    case 'e':
    case 'l':
    case '=': fits = step.b == 0 && step.t == 0; break;
    default: fits = step.b > 0 && step.t == 0; break;
  }
  const bool element_wise = std::string("MTXSi").find(step.sign) == std::string::npos;
  fits = fits && (!element_wise || (y.dims == x.dims && (step.b == 0 || broadcasts(step.b)) &&
                                    (step.t == 0 || broadcasts(step.t))));
  fits =
      fits && (step.sign == '>') == (y.type == boolean) && (step.sign == 'i') == (y.type == int32);
  return fits ? success
              : refuse(bad_param, std::string("shapes or types do not fit operation ") + step.sign);
}

Status Program::add(const Record& operation) {
  Step step{};
  int math = float32;
  switch (operation.kind) {
    case 13: {
      const Record& mode = operation.record(750);
      const auto sign = pointwise_sign(mode.one<int>(0));
      if (!sign) {
        return refuse(not_supported, "an unknown element-wise operation");
      }
      math = mode.one<int>(1);
      if (math != (*sign == '>' ? boolean : float32)) {
        return refuse(not_supported, "an element-wise operation computes in another type");
      }
      step = {*sign,
              use(operation, 751),
              use(operation, 752),
              use(operation, 758),
              use(operation, 753),
              mode.one<std::int64_t>(9, -1)};
      break;
    }
    case 19:
      math = operation.record(1523).one<int>(1500);
      step = {'M', use(operation, 1520), use(operation, 1521), 0, use(operation, 1522), 0};
      break;
    case 22: {
      const int mode = operation.record(1612).one<int>(1600);
      math = operation.record(1612).one<int>(1601);
      if (mode != 0 && mode != 3) {
        return refuse(not_supported, "an unknown reduction");
      }
      step = {mode == 0 ? 'S' : 'X', use(operation, 1610), 0, 0, use(operation, 1611), 0};
      break;
    }
    case 31: step = {'T', use(operation, 2200), 0, 0, use(operation, 2201), 0}; break;
    default: return refuse(bad_param, "an operation of a graph is none");
  }
  if (step.sign != '>' && math != float32) {
    return refuse(not_supported, "an operation does not compute in fp32");
  }
  steps_.push_back(step);
  return check(step);
}

// Conditions of cuDNN's attention on the tensors in memory.
Status Program::check_attention() const {
  std::string signs;
  for (const Step& step : steps_) {
    signs.push_back(step.sign);
  }
  if (signs != kForward && signs != kBackward && signs != kDeterministicBackward) {
    return refuse(not_supported, "no engine for the operations " + signs);
  }
  const auto first_product =
      std::find_if(steps_.begin(), steps_.end(), [](const Step& step) { return step.sign == 'M'; });
  const int inputs = tensors_.at(first_product->x).type;  // type of q
  if (!is_narrow(inputs)) {
    return refuse(not_supported, "q has not 16 bits");
  }
  for (const auto& [id, tensor] : tensors_) {
    if (tensor.is_by_value && tensor.type != float32) {
      return refuse(not_supported, "a number is not in fp32");
    }
    if (tensor.is_virtual || tensor.is_by_value) {
      continue;
    }
    const bool is_sum = tensor.dims[3] == 1 || (steps_.back().sign == '=' && id == steps_.back().x);
    const auto inner = std::min(tensor.strides[2], tensor.strides[3]);
    if (inner != 1 || records_.at(id)->one<std::int64_t>(900) != 16 ||
        tensor.type != (is_sum ? float32 : inputs)) {
      return refuse(not_supported,
                    "a tensor in memory has another type, alignment or inner stride than needed");
    }
    const std::int64_t head_dim = tensor.strides[3] == 1 ? tensor.dims[3] : tensor.dims[2];
    if (!is_sum && head_dim % 8 != 0) {
      return refuse(not_supported, "the channels of a head are not a multiple of 8");
    }
  }
  // Tensor cores read the weights, and the gradient of the scores for k, in the inputs' type.
  for (const Step& step : steps_) {
    const Tensor& x = tensors_.at(step.x);
    const bool weights = step.sign == 'M' && x.is_virtual && signs == kForward;
    const bool transposed = step.sign == 'T';
    if ((weights || transposed) && (weights ? x : tensors_.at(step.y)).type != inputs) {
      return refuse(not_supported, "the weights are not in the type of q");
    }
  }
  return success;
}

std::shared_ptr<const Program> Program::compile(const Record& graph) {
  auto program = std::make_shared<Program>();
  for (const auto& operation : graph.values.at(801).records) {
    if (program->add(*operation) != success) {
      return nullptr;
    }
  }
  return program->check_attention() == success ? program : nullptr;
}

void Program::run(const std::map<std::int64_t, void*>& memory) const {
  std::map<std::int64_t, Numbers> all;
  for (const auto& [id, tensor] : tensors_) {
    Numbers& numbers = all[id];
    numbers = {tensor, std::vector<float>(static_cast<std::size_t>(tensor.extent()),
                                          std::numeric_limits<float>::quiet_NaN())};
  }
  const auto read = [&](std::int64_t id) -> const Numbers& {
    Numbers& numbers = all.at(id);
    if (!numbers.tensor.is_virtual) {
      for (std::size_t i = 0; i < numbers.values.size(); ++i) {
        numbers.values[i] = load(memory.at(id), numbers.tensor.type, static_cast<std::int64_t>(i));
      }
    }
    return numbers;
  };
  for (const Step& step : steps_) {
    const Numbers& x = read(step.x);
    Numbers& y = all.at(step.y);
    switch (step.sign) {
      case 'M': multiply(x, read(step.b), y); break;
      case 'T': y.values = x.values; break;
      case 'X':
      case 'S':
        std::fill(y.values.begin(), y.values.end(),
                  step.sign == 'S' ? 0.0f : -std::numeric_limits<float>::infinity());
        for_each(x.tensor.dims, [&](const Dims& index) {
          float& to = y.values[y.at(index)];
          const float value = x.values[x.at(index)];
          to = step.sign == 'S' ? to + value : std::max(to, value);
        });
        break;
      case 'i':
        for_each(x.tensor.dims, [&](const Dims& index) {
          y.values[y.at(index)] = static_cast<float>(index[static_cast<std::size_t>(step.axis)]);
        });
        break;
      default: {
        const Numbers* const b = step.b == 0 ? nullptr : &read(step.b);
        const Numbers* const t = step.t == 0 ? nullptr : &read(step.t);
        for_each(x.tensor.dims, [&](const Dims& index) {
          y.values[y.at(index)] = element(step.sign, x.values[x.at(index)],
                                          b == nullptr ? 0.0f : b->values[b->at(index)],
                                          t == nullptr ? 0.0f : t->values[t->at(index)]);
        });
      }
    }
    for (float& value : y.values) {
      value = converted(y.tensor.type, value);
    }
    if (!y.tensor.is_virtual) {
      for_each(y.tensor.dims, [&](const Dims& index) {
        const std::size_t at = y.at(index);
        store(memory.at(step.y), y.tensor.type, static_cast<std::int64_t>(at), y.values[at]);
      });
    }
  }
}

}  // namespace standin::cudnn
