// SPDX-License-Identifier: Apache-2.0
#include "model/attention.hpp"

#include "../random_values.hpp"
#include "cuda/attention.hpp"
#include "cuda/kernels.hpp"
#include "device_array.hpp"

#include <acc/base/error.hpp>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

using namespace train_gpt;
using namespace train_gpt::cuda;

namespace {

using Numbers = std::vector<double>;

/// Returns one head of one sequence of a (B, T, parts, H, D) array, as rows of D.
struct HeadIndex {
  const AttentionShape& shape;
  std::int64_t sequence;
  std::int64_t head;

  [[nodiscard]] std::size_t at(std::int64_t parts, std::int64_t part, std::int64_t t,
                               std::int64_t d) const {
    const std::int64_t row = (sequence * shape.time + t) * parts + part;
    return static_cast<std::size_t>((row * shape.heads + head) * shape.head_dim + d);
  }
};

struct Reference {
  Numbers out, log_sum, dqkv;
};

/// Computes causal attention and its gradient by their definitions.
void add_head(const HeadIndex& head, const std::vector<float>& qkv, const std::vector<float>& d_out,
              Reference& result) {
  const AttentionShape& s = head.shape;
  const double scale = 1.0 / std::sqrt(static_cast<double>(s.head_dim));
  const auto dot = [&](std::int64_t query, std::int64_t key) {
    double sum = 0.0;
    for (std::int64_t d = 0; d < s.head_dim; ++d) {
      sum += static_cast<double>(qkv[head.at(3, 0, query, d)]) * qkv[head.at(3, 1, key, d)];
    }
    return sum * scale;
  };
  for (std::int64_t query = 0; query < s.time; ++query) {
    Numbers p;
    double sum = 0.0;
    for (std::int64_t key = 0; key <= query; ++key) {
      p.push_back(std::exp(dot(query, key)));
      sum += p.back();
    }
    result
        .log_sum[static_cast<std::size_t>((head.sequence * s.heads + head.head) * s.time + query)] =
        std::log(sum);
    Numbers dp;
    double delta = 0.0;
    for (std::int64_t key = 0; key <= query; ++key) {
      double& weight = p[static_cast<std::size_t>(key)];
      weight /= sum;
      double d_weight = 0.0;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        const double v = qkv[head.at(3, 2, key, d)];
        const double gradient = d_out[head.at(1, 0, query, d)];
        result.out[head.at(1, 0, query, d)] += weight * v;
        result.dqkv[head.at(3, 2, key, d)] += weight * gradient;
        d_weight += gradient * v;
      }
      dp.push_back(d_weight);
      delta += weight * d_weight;
    }
    for (std::int64_t key = 0; key <= query; ++key) {
      const auto k = static_cast<std::size_t>(key);
      const double d_score = p[k] * (dp[k] - delta) * scale;
      for (std::int64_t d = 0; d < s.head_dim; ++d) {
        result.dqkv[head.at(3, 0, query, d)] += d_score * qkv[head.at(3, 1, key, d)];
        result.dqkv[head.at(3, 1, key, d)] += d_score * qkv[head.at(3, 0, query, d)];
      }
    }
  }
}

/// The reference of one head on its own.
Reference reference(const AttentionShape& s, const std::vector<float>& qkv,
                    const std::vector<float>& d_out) {
  Reference result{Numbers(d_out.size()), Numbers(static_cast<std::size_t>(s.time)),
                   Numbers(qkv.size())};
  add_head({s, 0, 0}, qkv, d_out, result);
  return result;
}

/// One head's part of a (B, T, parts, H, D) array, as (T, parts, D).
std::vector<float> part_of(const HeadIndex& head, std::int64_t parts,
                           const std::vector<float>& values) {
  std::vector<float> part;
  for (std::int64_t t = 0; t < head.shape.time; ++t) {
    for (std::int64_t p = 0; p < parts; ++p) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(head.at(parts, p, t, 0));
      part.insert(part.end(), first, first + head.shape.head_dim);
    }
  }
  return part;
}

/// Arrays of one attention on the GPU. Those that are computed are filled with NaN.
template <class T>
struct Arrays {
  Arrays(const AttentionShape& its_shape, const std::vector<float>& its_qkv,
         const std::vector<float>& its_d_out)
      : shape(its_shape), qkv(its_qkv), d_out(its_d_out) {}

  AttentionShape shape;
  TestStream stream;
  DeviceArray<T> qkv, d_out;
  std::size_t statistics = static_cast<std::size_t>(shape.batch * shape.time * shape.heads);
  DeviceArray<T> out{d_out.size()}, dqkv{qkv.size()};
  DeviceArray<float> log_sum{statistics}, delta{statistics};
};

template <class T>
void by_kernels(const Arrays<T>& a) {
  cuda::attention_forward(a.stream, a.shape, a.qkv.data(), a.out.data(), a.log_sum.data());
  cuda::attention_backward(a.stream, a.shape, a.qkv.data(), a.out.data(), a.log_sum.data(),
                           a.d_out.data(), a.delta.data(), a.dqkv.data());
}

/// Runs attention over the whole shape, and compares at most `heads` heads, among them the first
/// and the last one, with their definition.
template <class T, class Compute = void (*)(const Arrays<T>&)>
void check_attention(const AttentionShape& shape, double tolerance, std::int64_t heads = 4,
                     const Compute& compute = by_kernels<T>) {
  CAPTURE(shape.batch);
  CAPTURE(shape.time);
  CAPTURE(shape.head_dim);
  const std::int64_t rows = shape.batch * shape.time;
  const auto qkv = rounded<T>(random_values(rows * 3 * shape.channels(), 11, 1.5));
  const auto d_out = rounded<T>(random_values(rows * shape.channels(), 12));
  const Arrays<T> arrays(shape, qkv, d_out);
  compute(arrays);
  const auto seen_out = arrays.out.read();
  const auto seen_dqkv = arrays.dqkv.read();
  const auto seen_log_sum = arrays.log_sum.read();
  const std::int64_t all = shape.batch * shape.heads;
  const std::int64_t compared = std::min(all, heads);
  for (std::int64_t i = 0; i < compared; ++i) {
    const std::int64_t at = compared == 1 ? 0 : i * (all - 1) / (compared - 1);
    CAPTURE(at);
    const HeadIndex head{shape, at / shape.heads, at % shape.heads};
    const AttentionShape alone{
        .batch = 1, .time = shape.time, .heads = 1, .head_dim = shape.head_dim};
    const Reference expected = reference(alone, part_of(head, 3, qkv), part_of(head, 1, d_out));
    const auto first = seen_log_sum.begin() + at * shape.time;
    CHECK(worst_error<T>({first, first + shape.time}, expected.log_sum) < 1e-5);
    CHECK(worst_error<T>(part_of(head, 1, seen_out), expected.out) < tolerance);
    CHECK(worst_error<T>(part_of(head, 3, seen_dqkv), expected.dqkv) < tolerance);
  }
}

}  // namespace

TEST_CASE("attention by the kernels at lengths below, equal to and above a warp") {
  for (const std::int64_t time : {1, 31, 32, 33, 100}) {
    const AttentionShape shape{
        .batch = time < 50 ? 2 : 1, .time = time, .heads = 2, .head_dim = 64};
    check_attention<__nv_bfloat16>(shape, 0.01);
    check_attention<__half>(shape, 0.002);
  }
}

TEST_CASE("attention with other dtypes and head sizes") {
  for (const std::int64_t head_dim : {1, 16, 64, 80, 256}) {
    check_attention<float>({.batch = 2, .time = 19, .heads = 2, .head_dim = head_dim}, 1e-5);
    if (head_dim != 64) {
      check_attention<__nv_bfloat16>({.batch = 1, .time = 19, .heads = 2, .head_dim = head_dim},
                                     0.01);
    }
  }
  check_attention<__half>({.batch = 1, .time = 19, .heads = 2, .head_dim = 80}, 0.002);
}

namespace {

/// Attention by cuDNN, as compiled for batches of the arrays' size or of a larger one.
template <class T>
struct ByCudnn {
  bool deterministic;
  std::int64_t spare_batch = 0;

  void operator()(const Arrays<T>& a) const {
    AttentionShape largest = a.shape;
    largest.batch += spare_batch;
    constexpr auto kType =
        std::is_same_v<T, __half> ? cudnn::DataType::float16 : cudnn::DataType::bfloat16;
    cudnn::Attention attention(a.stream, {largest, kType, deterministic});
    attention.forward(a.shape, a.qkv.data(), a.out.data(), a.log_sum.data());
    attention.backward(a.shape, a.qkv.data(), a.out.data(), a.log_sum.data(), a.d_out.data(),
                       a.delta.data(), a.dqkv.data());
    check(cudaStreamSynchronize(a.stream), "attention");
  }
};

bool on_standin() {
  return std::getenv("ACC_CUDA_BACKEND") != nullptr;
}

/// True if cuDNN can be tested here. A GPU without cuDNN is no failure.
bool cudnn_is_here() {
  try {
    const cudnn::Library library;
    return true;
  } catch (const acc::Error& error) {
    CHECK_FALSE(on_standin());
    MESSAGE(error.what());
    return false;
  }
}

using Settings = std::vector<std::pair<std::string, std::string>>;

/// Sets environment variables for the lifetime of the object.
class Variables {
 public:
  explicit Variables(const Settings& values) {
    for (const auto& [name, value] : values) {
      const char* const before = std::getenv(name.c_str());
      before_.emplace_back(name,
                           before == nullptr ? std::nullopt : std::optional<std::string>(before));
      ::setenv(name.c_str(), value.c_str(), 1);
    }
  }
  Variables(const Variables&) = delete;
  Variables& operator=(const Variables&) = delete;
  ~Variables() {
    for (const auto& [name, value] : before_) {
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
    }
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

/// Returns what `function` prints to stderr.
template <class Function>
std::string printed(const Function& function) {
  std::FILE* const file = std::tmpfile();
  const int before = ::dup(STDERR_FILENO);
  ::dup2(::fileno(file), STDERR_FILENO);
  function();
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::string text(static_cast<std::size_t>(std::ftell(file)), '\0');
  std::rewind(file);
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

/// Runs attention by the class that chooses, twice, and says whether it still uses cuDNN then.
template <class T>
struct ByChoice {
  AttentionShape largest;
  bool& uses_cudnn;
  bool deterministic = false;

  void operator()(const Arrays<T>& a) const {
    Attention<T> attention(a.stream, largest, {attention_choice_from_environment(), deterministic});
    for (int run = 0; run < 2; ++run) {
      attention.forward(a.shape, a.qkv.data(), a.out.data(), a.log_sum.data());
      attention.backward(a.shape, a.qkv.data(), a.out.data(), a.log_sum.data(), a.d_out.data(),
                         a.dqkv.data());
    }
    check(cudaStreamSynchronize(a.stream), "attention");
    uses_cudnn = attention.uses_cudnn();
  }
};

struct Choice {
  Settings variables;
  bool cudnn;
  std::string line;  ///< part of what is printed
  AttentionShape shape = {.batch = 2, .time = 24, .heads = 2, .head_dim = 16};
};

}  // namespace

TEST_CASE_TEMPLATE("attention by cuDNN equals its definition", T, __nv_bfloat16, __half) {
  if (!cudnn_is_here()) {
    return;
  }
  for (const bool deterministic : {false, true}) {
    CAPTURE(deterministic);
    for (const AttentionShape& shape :
         {AttentionShape{.batch = 2, .time = 64, .heads = 3, .head_dim = 64},
          AttentionShape{.batch = 1, .time = 130, .heads = 2, .head_dim = 128},
          AttentionShape{.batch = 3, .time = 17, .heads = 2, .head_dim = 80}}) {
      check_attention<T>(shape, 0.02, 6, ByCudnn<T>{deterministic});
    }
    check_attention<T>({.batch = 2, .time = 64, .heads = 2, .head_dim = 64}, 0.02, 4,
                       ByCudnn<T>{deterministic, 3});
  }
}

TEST_CASE("attention by cuDNN at the lengths and batch sizes of real models") {
  if (on_standin() || !cudnn_is_here()) {
    return;  // too slow on the stand-in, whose graphs do not depend on the length
  }
  for (const bool deterministic : {false, true}) {
    for (const AttentionShape& shape :
         {AttentionShape{.batch = 8, .time = 1024, .heads = 12, .head_dim = 64},
          AttentionShape{.batch = 4, .time = 2048, .heads = 16, .head_dim = 128}}) {
      check_attention<__nv_bfloat16>(shape, 0.02, 2, ByCudnn<__nv_bfloat16>{deterministic});
    }
  }
}

TEST_CASE("cuDNN is used where possible and the kernels elsewhere, and one line tells why") {
  if (!on_standin()) {
    return;  // the stand-in fails on request
  }
  const std::vector<Choice> choices = {
      {{}, true, "attention by cuDNN 9.10.0 (/"},
      {{{"TRAIN_GPT_ATTENTION", "auto"}}, true, "attention by cuDNN"},
      {{{"TRAIN_GPT_ATTENTION", "cudnn"}}, true, "attention by cuDNN"},
      {{{"TRAIN_GPT_ATTENTION", "kernels"}}, false, "own kernels: TRAIN_GPT_ATTENTION=kernels"},
      {{{"ACC_CUDNN_LIBRARY", "/nowhere/libcudnn.so.9"}},
       false,
       "own kernels: cuDNN 9 is not found: ACC_CUDNN_LIBRARY=/nowhere/libcudnn.so.9"},
      {{{"ACC_CUDNN_LIBRARY", std::getenv("ACC_CUBLASLT_LIBRARY")}},
       false,
       "lacks the function cudnnGetVersion; it must be cuDNN 9"},
      {{{"ACC_STANDIN_CUDNN_VERSION", "90501"}},
       false,
       "cuDNN 9.6.0 or newer is needed, " + std::string(std::getenv("ACC_CUDNN_LIBRARY")) +
           " is 9.5.1"},
      {{{"ACC_STANDIN_CUDNN_FAIL", "heuristics"}}, false, "own kernels: cuDNN proposes no engine"},
      {{{"ACC_STANDIN_CUDNN_FAIL", "plan"}}, false, "this engine cannot run the graph"},
      {{{"ACC_STANDIN_CUDNN_FAIL", "execute"}}, false, "a failure that the environment asked for"},
      {{},
       false,
       "cuDNN proposes no engine",
       {.batch = 1, .time = 24, .heads = 2, .head_dim = 12}}};
  for (const Choice& choice : choices) {
    CAPTURE(choice.line);
    const Variables variables(choice.variables);
    bool uses_cudnn = false;
    const std::string text = printed([&] {
      check_attention<__nv_bfloat16>(choice.shape, 0.02, 4,
                                     ByChoice<__nv_bfloat16>{choice.shape, uses_cudnn});
    });
    CAPTURE(text);
    CHECK(uses_cudnn == choice.cudnn);
    CHECK(text.find(choice.line) != std::string::npos);
    const bool started = !choice.cudnn && text.find("attention by cuDNN 9") != std::string::npos;
    CHECK(std::count(text.begin(), text.end(), '\n') == (started ? 2 : 1));
  }
}

TEST_CASE("a deterministic run asks cuDNN for a deterministic backward, and says so") {
  const AttentionShape shape{.batch = 2, .time = 24, .heads = 2, .head_dim = 16};
  bool uses_cudnn = false;
  const std::string text = printed([&] {
    check_attention<__nv_bfloat16>(shape, 0.02, 4,
                                   ByChoice<__nv_bfloat16>{shape, uses_cudnn, true});
  });
  CHECK((text.find("), deterministic\n") != std::string::npos) == uses_cudnn);
  CHECK((uses_cudnn || !on_standin()));
}

TEST_CASE("fp32 and sequences of another length are left to the kernels") {
  bool uses_cudnn = false;
  const AttentionShape shape{.batch = 2, .time = 24, .heads = 2, .head_dim = 16};
  check_attention<float>(shape, 1e-5, 4, ByChoice<float>{shape, uses_cudnn});
  CHECK_FALSE(uses_cudnn);
  AttentionShape longer = shape;
  longer.time = 40;
  check_attention<__nv_bfloat16>(shape, 0.02, 4, ByChoice<__nv_bfloat16>{longer, uses_cudnn});
  CHECK(uses_cudnn == cudnn_is_here());
}

TEST_CASE(
    "TRAIN_GPT_ATTENTION=cudnn makes a failure of cuDNN an error, and other words are refused") {
  const TestStream stream;
  const AttentionShape shape{.batch = 2, .time = 24, .heads = 2, .head_dim = 16};
  const AttentionOptions options{.choice = AttentionChoice::cudnn};
  CHECK_THROWS_WITH_AS(Attention<float>(stream, shape, options),
                       "TRAIN_GPT_ATTENTION=cudnn cannot be fulfilled: cuDNN computes attention in "
                       "bf16 or fp16, not in fp32",
                       acc::Error);
  const Variables variables(Settings{{"TRAIN_GPT_ATTENTION", "flash"}});
  CHECK_THROWS_WITH_AS(attention_choice_from_environment(),
                       "TRAIN_GPT_ATTENTION must be auto, cudnn or kernels, got \"flash\"",
                       acc::Error);
}

// Attributes without effect are left out: the alignment of numbers and temporaries, the strides of
// temporaries and the last stride of rows of one number; so are longer rows of k and v in the
// backward, for which the stand-in ends the process. The tensors of the forward are set first
// (scale, q, k, v, out, log_sum, then temporaries), those of the backward from the 20th on.
TEST_CASE("each wrong number in the graphs for cuDNN is refused or changes the results") {
  if (!on_standin()) {
    return;
  }
  struct Attribute {
    int number;
    int first;
    int last;
  };
  constexpr Attribute kAttributes[] = {
      {900, 2, 6},  {900, 21, 30},                                // tensor: alignment
      {901, 1, 6},  {901, 20, 30},                                // type
      {902, 1, 6},  {902, 20, 30},                                // sizes
      {903, 2, 5},  {903, 21, 21}, {903, 24, 24}, {903, 26, 29},  // strides
      {906, 1, 6},  {906, 20, 30},                                // id
      {907, 1, 29},                                               // is virtual
      {908, 1, 5},                                                // is by value
      {0, 1, 23},                                                 // element-wise: operation
      {1, 1, 23},                                                 // type of the computation
      {9, 1, 4},                                                  // axis
      {1500, 1, 7},  // matrix product: type of the computation
      {1600, 1, 3},  // reduction: operation
      {1601, 1, 3},  // type of the computation
      {200, 1, 2},   // heuristics: mode
      {1000, 1, 2},  // memory: last id
  };
  const AttentionShape shape{.batch = 2, .time = 9, .heads = 2, .head_dim = 8};
  const std::int64_t rows = shape.batch * shape.time;
  using T = __nv_bfloat16;
  const auto qkv = rounded<T>(random_values(rows * 3 * shape.channels(), 11, 1.5));
  const auto d_out = rounded<T>(random_values(rows * shape.channels(), 12));
  const auto results = [&] {
    const Arrays<T> arrays(shape, qkv, d_out);
    ByCudnn<T>{.deterministic = false}(arrays);
    auto all = arrays.out.read();
    for (const auto& more : {arrays.log_sum.read(), arrays.dqkv.read()}) {
      all.insert(all.end(), more.begin(), more.end());
    }
    return all;
  };
  const auto expected = results();
  for (const Attribute& attribute : kAttributes) {
    for (int time = attribute.first; time <= attribute.last; ++time) {
      const std::string change = std::to_string(attribute.number) + ":" + std::to_string(time);
      CAPTURE(change);
      const Variables variables(Settings{{"ACC_STANDIN_CUDNN_CHANGE", change}});
      bool noticed = false;
      try {
        noticed = results() != expected;
      } catch (const acc::Error&) {
        noticed = true;
      }
      CHECK(noticed);
    }
  }
}
