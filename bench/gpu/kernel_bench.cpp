// SPDX-License-Identifier: Apache-2.0
// Measures train_gpt's matrix products and its attention on their own, and compares them.
//
//   kernel_bench gemm ROWS DIM VOCAB REPETITIONS [LAYER]
//     every product of a block and of the head in bf16, next to the same product in fp32; or those
//     of one layer: qkv, attention's projection, MLP up, MLP down, head
//   kernel_bench fp8 ROWS DIM REPETITIONS
//     the linear layers of a block in fp8, with the rounding of their operands, next to bf16.
//     Exit status 2 if the GPU has no fp8
//   kernel_bench attention BATCH TIME HEADS HEAD_DIM FOLDER REPETITIONS
//     reads qkv.bin (B, T, 3, H, D) and d_out.bin (B, T, H, D), bf16; writes out.bin and dqkv.bin.
//     By cuDNN or by the kernels, as TRAIN_GPT_ATTENTION says
//
// Prints one line of JSON per measurement, as soon as it is made: median seconds, TFLOP/s, and for
// products the relative error ||bf16 - fp32|| / ||fp32|| (of fp8: to bf16) over the first and last
// elements.

#include "cuda/attention.hpp"
#include "cuda/cuda_check.hpp"
#include "cuda/device_buffer.hpp"
#include "cuda/fp8.hpp"
#include "cuda/matmul.hpp"

#include <acc/base/error.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace {

using namespace train_gpt;
using namespace train_gpt::cuda;
using Half = __nv_bfloat16;

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream"); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  operator cudaStream_t() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

/// Returns the median time of `work` on the stream, after three runs that are not measured.
double median_seconds(cudaStream_t stream, int repetitions, const std::function<void()>& work) {
  constexpr int kWarmUps = 3;
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "an event");
  check(cudaEventCreate(&end), "an event");
  std::vector<double> seconds;
  for (int run = -kWarmUps; run < repetitions; ++run) {
    check(cudaEventRecord(begin, stream), "a time stamp");
    work();
    check(cudaEventRecord(end, stream), "a time stamp");
    check(cudaEventSynchronize(end), "a measurement");
    float milliseconds = 0.0f;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "a time stamp");
    if (run >= 0) {
      seconds.push_back(milliseconds * 1e-3);
    }
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

double rate(double flops, double seconds) {
  return seconds > 0.0 ? flops / seconds * 1e-12 : 0.0;
}

// Random values that bf16 represents exactly. Longer arrays repeat them.
std::vector<float> pattern() {
  std::vector<float> values((1 << 20) + 7);
  std::mt19937 generator(1);
  std::normal_distribution<float> normal(0.0f, 0.5f);
  for (float& value : values) {
    value = __bfloat162float(__float2bfloat16_rn(normal(generator)));
  }
  return values;
}

template <class T>
class Array {
 public:
  /// Without a seed the array is filled with NaN.
  explicit Array(std::int64_t numel, int seed = -1) : numel_(numel), buffer_(numel, "a benchmark") {
    if (seed < 0) {
      check(cudaMemset(data(), 0xff, static_cast<std::size_t>(numel) * sizeof(T)), "a fill");
      check(cudaDeviceSynchronize(), "a fill");
      return;
    }
    static const std::vector<float> values = pattern();
    const std::size_t shift = static_cast<std::size_t>(seed) * 1009;
    std::vector<T> typed(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      typed[i] = static_cast<T>(values[(i + shift) % values.size()]);
    }
    const auto length = static_cast<std::int64_t>(typed.size());
    for (std::int64_t at = 0; at < numel; at += length) {
      const auto part = static_cast<std::size_t>(std::min(length, numel - at));
      check(cudaMemcpy(data() + at, typed.data(), part * sizeof(T), cudaMemcpyHostToDevice),
            "a copy");
    }
    check(cudaDeviceSynchronize(), "a copy");
  }

  [[nodiscard]] T* data() const { return buffer_.data(); }
  [[nodiscard]] std::vector<T> read(std::int64_t from, std::int64_t count) const {
    std::vector<T> values(static_cast<std::size_t>(count));
    check(cudaDeviceSynchronize(), "a kernel");
    check(
        cudaMemcpy(values.data(), data() + from, values.size() * sizeof(T), cudaMemcpyDeviceToHost),
        "a copy");
    return values;
  }
  [[nodiscard]] std::int64_t numel() const { return numel_; }

 private:
  std::int64_t numel_;
  DeviceBuffer<T> buffer_;
};

/// NaN if an element was not written.
template <class Expected>
double relative_error(const Array<Half>& result, const Array<Expected>& expected) {
  const std::int64_t count = std::min<std::int64_t>(result.numel(), 1 << 16);
  double difference = 0.0;
  double norm = 0.0;
  for (const std::int64_t from : {std::int64_t{0}, result.numel() - count}) {
    const auto a = result.read(from, count);
    const auto b = expected.read(from, count);
    for (std::size_t i = 0; i < a.size(); ++i) {
      const auto wanted = static_cast<double>(static_cast<float>(b[i]));
      difference += std::pow(static_cast<double>(static_cast<float>(a[i])) - wanted, 2);
      norm += std::pow(wanted, 2);
    }
  }
  return std::sqrt(difference / norm);
}

enum class Forward { linear, linear_add, linear_gelu, multiply };

struct LayerShape {
  const char* name;
  std::int64_t rows, in, out;
  Forward forward;
  bool gelu_backward = false;  ///< its input is GELU's result
};

template <class T>
struct Operation {
  std::string name;
  const Array<T>* result;
  std::function<void()> run;
};

/// Operands of one linear layer, and its products.
template <class T>
class Layer {
 public:
  Layer(cudaStream_t stream, const LayerShape& shape)
      : shape_(shape),
        matmul_(stream, shape.out, MatmulOptions::from_environment()),
        x_(shape.rows * shape.in, 1),
        w_(shape.in * shape.out, 2),
        bias_(shape.out, 3),
        dy_(shape.rows * shape.out, 4),
        residual_(shape.forward == Forward::linear_add ? shape.rows * shape.out : 1, 5),
        y_(shape.rows * shape.out),
        u_(shape.forward == Forward::linear_gelu ? shape.rows * shape.out : 1),
        dx_(shape.rows * shape.in),
        dw_(shape.in * shape.out),
        db_(shape.out) {}

  std::vector<Operation<T>> operations() {
    const auto [name, rows, in, out, forward, gelu_backward] = shape_;
    const ConstMatrix<T> x(x_.data(), rows, in);
    const ConstMatrix<T> w(w_.data(), in, out);
    const ConstMatrix<T> dy(dy_.data(), rows, out);
    const Matrix<T> y(y_.data(), rows, out);
    const Matrix<T> dx(dx_.data(), rows, in);
    std::vector<Operation<T>> all;
    switch (forward) {
      case Forward::linear:
        all.push_back({"bias", &y_, [=, this] { matmul_.linear(y, x, w, bias_.data()); }});
        break;
      case Forward::linear_add:
        all.push_back({"bias and residual", &y_,
                       [=, this] { matmul_.linear_add(y, x, w, bias_.data(), residual_.data()); }});
        break;
      case Forward::linear_gelu:
        all.push_back({"bias and GELU", &y_,
                       [=, this] { matmul_.linear_gelu(y, u_.data(), x, w, bias_.data()); }});
        break;
      case Forward::multiply:
        all.push_back({"plain", &y_, [=, this] { matmul_.multiply(y, x, w); }});
        break;
    }
    if (gelu_backward) {
      all.push_back({"input gradient and GELU's", &dx_,
                     [=, this] { matmul_.multiply_gelu_backward(dx, dy, w.t(), x_.data()); }});
    } else {
      all.push_back({"input gradient", &dx_, [=, this] { matmul_.multiply(dx, dy, w.t()); }});
    }
    if (forward != Forward::multiply) {
      all.push_back({"weight and bias gradient", &dw_, [=, this] {
                       matmul_.weight_gradient({dw_.data(), 0.0f}, {db_.data(), 0.0f}, x, dy);
                     }});
    }
    return all;
  }

 private:
  LayerShape shape_;
  Matmul<T> matmul_;
  Array<T> x_, w_, bias_, dy_, residual_, y_, u_, dx_, dw_, db_;
};

void measure_layer(const Stream& stream, const LayerShape& shape, int repetitions) {
  Layer<Half> measured(stream, shape);
  Layer<float> expected(stream, shape);
  const auto operations = measured.operations();
  const auto references = expected.operations();
  const double flops = 2.0 * static_cast<double>(shape.rows) * static_cast<double>(shape.in) *
                       static_cast<double>(shape.out);
  for (std::size_t i = 0; i < operations.size(); ++i) {
    references[i].run();
    const double seconds = median_seconds(stream, repetitions, operations[i].run);
    const double error = relative_error(*operations[i].result, *references[i].result);
    std::printf(
        "{\"what\": \"%s, %s\", \"rows\": %lld, \"in\": %lld, \"out\": %lld, \"median_s\": %.7f, "
        "\"tflops\": %.1f, \"error\": %s}\n",
        shape.name, operations[i].name.c_str(), static_cast<long long>(shape.rows),
        static_cast<long long>(shape.in), static_cast<long long>(shape.out), seconds,
        rate(flops, seconds), std::isfinite(error) ? std::to_string(error).c_str() : "null");
    std::fflush(stdout);
  }
}

/// layer: the name of the only one to measure; empty: all
void measure_products(std::int64_t rows, std::int64_t dim, std::int64_t vocab, int repetitions,
                      const std::string& layer) {
  const std::vector<LayerShape> shapes = {
      {"qkv", rows, dim, 3 * dim, Forward::linear},
      {"attention's projection", rows, dim, dim, Forward::linear_add},
      {"MLP up", rows, dim, 4 * dim, Forward::linear_gelu},
      {"MLP down", rows, 4 * dim, dim, Forward::linear_add, true},
      {"head", rows, dim, vocab, Forward::multiply}};
  if (!layer.empty() &&
      std::ranges::none_of(shapes, [&](const LayerShape& shape) { return shape.name == layer; })) {
    throw acc::Error(acc::Errc::invalid_argument,
                     "unknown layer '" + layer +
                         "', expected qkv, attention's projection, MLP up, MLP down or head");
  }
  const Stream stream;
  for (const LayerShape& shape : shapes) {
    if (layer.empty() || layer == shape.name) {
      measure_layer(stream, shape, repetitions);
    }
  }
}

void measure_fp8(std::int64_t rows, std::int64_t dim, int repetitions) {
  const Stream stream;
  Matmul<Half> matmul(stream, 4 * dim, MatmulOptions::from_environment());
  constexpr int kMicroSteps = 2;  // the second one has scales
  const auto measure = [&](const char* name, std::int64_t in, std::int64_t out) {
    Fp8 fp8(stream, matmul, {}, 1, rows, 4 * dim, in * out);
    const Array<Half> x(rows * in, 1), w(in * out, 2), bias(out, 3), dy(rows * out, 4);
    const Array<Half> y(rows * out), dx(rows * in), dw(in * out), db(out);
    const Array<Half> y_bf16(rows * out), dx_bf16(rows * in);
    const auto forward = [&] {
      fp8.forward(0, {y.data(), rows, out}, {x.data(), rows, in}, {w.data(), in, out}, bias.data(),
                  nullptr);
    };
    const auto backward = [&] {
      fp8.backward(0, {dx.data(), rows, in}, {dw.data(), 0.0f}, {db.data(), 0.0f},
                   {x.data(), rows, in}, {dy.data(), rows, out}, {w.data(), in, out});
    };
    for (int micro_step = 0; micro_step < kMicroSteps; ++micro_step) {
      fp8.begin_micro_step();
      forward();
      backward();
    }
    matmul.linear({y_bf16.data(), rows, out}, {x.data(), rows, in}, {w.data(), in, out},
                  bias.data());
    matmul.multiply({dx_bf16.data(), rows, in}, {dy.data(), rows, out},
                    ConstMatrix<Half>(w.data(), in, out).t());
    const double flops =
        2.0 * static_cast<double>(rows) * static_cast<double>(in) * static_cast<double>(out);
    const auto print = [&](const char* part, double seconds, double products, double error) {
      std::printf(
          "{\"what\": \"fp8 %s, %s\", \"rows\": %lld, \"in\": %lld, \"out\": %lld, "
          "\"median_s\": %.7f, \"tflops\": %.1f, \"error\": %s}\n",
          name, part, static_cast<long long>(rows), static_cast<long long>(in),
          static_cast<long long>(out), seconds, rate(products * flops, seconds),
          std::isfinite(error) ? std::to_string(error).c_str() : "null");
      std::fflush(stdout);
    };
    print("forward", median_seconds(stream, repetitions, forward), 1.0, relative_error(y, y_bf16));
    print("backward", median_seconds(stream, repetitions, backward), 2.0,
          relative_error(dx, dx_bf16));
  };
  measure("qkv", dim, 3 * dim);
  measure("attention's projection", dim, dim);
  measure("MLP up", dim, 4 * dim);
  measure("MLP down", 4 * dim, dim);
}

template <class T>
void read_file(const std::filesystem::path& path, const Array<T>& array) {
  std::vector<T> values(static_cast<std::size_t>(array.numel()));
  const auto nbytes = static_cast<std::streamsize>(values.size() * sizeof(T));
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(values.data()), nbytes)) {
    throw acc::Error(acc::Errc::invalid_argument,
                     path.string() + ": expected " + std::to_string(nbytes) + " bytes");
  }
  check(cudaMemcpy(array.data(), values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice),
        "a copy");
  check(cudaDeviceSynchronize(), "a copy");
}

template <class T>
void write_file(const std::filesystem::path& path, const Array<T>& array) {
  const auto values = array.read(0, array.numel());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()),
             static_cast<std::streamsize>(values.size() * sizeof(T)));
  if (!file.flush()) {
    throw acc::Error(acc::Errc::invalid_argument, path.string() + ": cannot be written");
  }
}

void measure_attention(const AttentionShape& shape, const std::filesystem::path& folder,
                       int repetitions) {
  const Stream stream;
  const std::int64_t rows = shape.batch * shape.time;
  const Array<Half> qkv(rows * 3 * shape.channels()), d_out(rows * shape.channels());
  const Array<Half> out(d_out.numel()), dqkv(qkv.numel());
  const Array<float> log_sum(rows * shape.heads);
  Attention<Half> attention(stream, shape, {.choice = attention_choice_from_environment()});
  read_file(folder / "qkv.bin", qkv);
  read_file(folder / "d_out.bin", d_out);
  const double forward = median_seconds(stream, repetitions, [&] {
    attention.forward(shape, qkv.data(), out.data(), log_sum.data());
  });
  const double backward = median_seconds(stream, repetitions, [&] {
    attention.backward(shape, qkv.data(), out.data(), log_sum.data(), d_out.data(), dqkv.data());
  });
  write_file(folder / "out.bin", out);
  write_file(folder / "dqkv.bin", dqkv);
  // Two products forward and five backward, of which the causal mask leaves half.
  const double product = static_cast<double>(shape.batch * shape.channels()) *
                         static_cast<double>(shape.time) * static_cast<double>(shape.time);
  std::printf(
      "{\"by\": \"%s\", \"forward_s\": %.7f, \"backward_s\": %.7f, \"forward_tflops\": %.1f, "
      "\"backward_tflops\": %.1f}\n",
      attention.uses_cudnn() ? "cudnn" : "kernels", forward, backward, rate(2.0 * product, forward),
      rate(5.0 * product, backward));
}

int usage() {
  std::fprintf(stderr,
               "usage: kernel_bench gemm ROWS DIM VOCAB REPETITIONS [LAYER]\n"
               "       kernel_bench fp8 ROWS DIM REPETITIONS\n"
               "       kernel_bench attention BATCH TIME HEADS HEAD_DIM FOLDER REPETITIONS\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i) { return std::max(1LL, std::atoll(argv[i])); };
  const std::string mode = argc > 1 ? argv[1] : "";
  try {
    if (mode == "gemm" && (argc == 6 || argc == 7)) {
      measure_products(number(2), number(3), number(4), static_cast<int>(number(5)),
                       argc == 7 ? argv[6] : "");
    } else if (mode == "fp8" && argc == 5) {
      measure_fp8(number(2), number(3), static_cast<int>(number(4)));
    } else if (mode == "attention" && argc == 8) {
      measure_attention({number(2), number(3), number(4), number(5)}, argv[6],
                        static_cast<int>(number(7)));
    } else {
      return usage();
    }
    return 0;
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "kernel_bench: %s\n", error.what());
    return acc::exit_status(error);
  }
}
