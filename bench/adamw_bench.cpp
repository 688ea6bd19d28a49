// SPDX-License-Identifier: Apache-2.0
// Speed of the fused AdamW update: adamw_bench [params] [threads,…] [repetitions]
//
// Prints one line of JSON per variant (instruction set) of this CPU and number of threads, in the
// format of the peer program of bench/adamw.py. The update moves 28 bytes per parameter: it reads
// p, g, m, v and writes p, m, v. `of_streams` is its rate divided by the rate of a loop that only
// adds over the same arrays, measured alternately: the fraction of the memory bandwidth.

#include "kernels/kernels.hpp"
#include "optim/update.hpp"
#include "timing.hpp"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

using acc::bench::median;

/// An array with the alignment of the runtime's device memory.
class Array {
 public:
  explicit Array(std::size_t numel)
      : numel_(numel),
        data_(static_cast<float*>(std::aligned_alloc(256, (numel + 63) / 64 * 256))) {
    std::fill_n(data_.get(), numel, 0.0F);
  }
  float& operator[](std::size_t i) { return data_.get()[i]; }
  float* data() { return data_.get(); }
  [[nodiscard]] std::size_t size() const { return numel_; }

 private:
  struct Free {
    void operator()(float* data) const { std::free(data); }
  };
  std::size_t numel_;
  std::unique_ptr<float, Free> data_;
};

struct Tensors {
  Array weights, grads, exp_avg, exp_avg_sq;

  explicit Tensors(std::size_t numel)
      : weights(numel), grads(numel), exp_avg(numel), exp_avg_sq(numel) {
    for (std::size_t i = 0; i < numel; ++i) {
      weights[i] = static_cast<float>(i % 1000) * 1e-3F - 0.5F;
      grads[i] = static_cast<float>(i % 777) * 1e-6F - 4e-4F;
    }
  }
};

/// Reads and writes the same bytes as an update.
void add_over(float* __restrict weights, const float* __restrict grads, float* __restrict exp_avg,
              float* __restrict exp_avg_sq, std::size_t numel) {
  for (std::size_t i = 0; i < numel; ++i) {
    weights[i] += 1e-30F * grads[i];
    exp_avg[i] += 1e-30F * grads[i];
    exp_avg_sq[i] += 1e-30F * grads[i];
  }
}

void add_over(Tensors& t, std::size_t begin, std::size_t end) {
  add_over(&t.weights[begin], &t.grads[begin], &t.exp_avg[begin], &t.exp_avg_sq[begin],
           end - begin);
}

void update(const acc::kernels::Kernels& table, Tensors& t, std::int64_t step, std::size_t begin,
            std::size_t end) {
  const acc::AdamW settings{.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .weight_decay = 0.1};
  const acc::kernels::UpdateArrays arrays{.weights = t.weights.data(),
                                          .grads = t.grads.data(),
                                          .first = t.exp_avg.data(),
                                          .second = t.exp_avg_sq.data(),
                                          .rounded = nullptr};
  const acc::optim::Rule rule(acc::optim::named(settings));
  table.update(rule.step(settings.lr, settings.weight_decay, step, 1.0), arrays, begin,
               end - begin);
}

template <typename Work>
double timed(Tensors& t, int threads, const Work& work) {
  return acc::bench::seconds_of([&] {
    const std::size_t share = t.weights.size() / static_cast<std::size_t>(threads);
    std::vector<std::jthread> helpers;
    for (int k = 1; k < threads; ++k) {
      const std::size_t begin = static_cast<std::size_t>(k) * share;
      const std::size_t end = k + 1 == threads ? t.weights.size() : begin + share;
      helpers.emplace_back([&, begin, end] { work(begin, end); });
    }
    work(0, threads == 1 ? t.weights.size() : share);
  });
}

void measure(const acc::kernels::Kernels& table, Tensors& t, int threads, int repetitions) {
  std::vector<double> seconds;
  std::vector<double> ratios;
  for (int step = 1; step <= repetitions + 2; ++step) {
    const double elapsed = timed(t, threads, [&](std::size_t begin, std::size_t end) {
      update(table, t, step, begin, end);
    });
    const double streams =
        timed(t, threads, [&](std::size_t begin, std::size_t end) { add_over(t, begin, end); });
    if (step > 2) {
      seconds.push_back(elapsed);
      ratios.push_back(streams / elapsed);
    }
  }
  const double typical = median(seconds);
  const auto params = static_cast<double>(t.weights.size());
  std::printf(
      "{\"impl\": \"acc_%s\", \"threads\": %d, \"params\": %zu, \"median_s\": %.5f, "
      "\"min_s\": %.5f, \"gparams_per_s\": %.4f, \"gb_per_s\": %.2f, \"of_streams\": %.3f}\n",
      table.name, threads, t.weights.size(), typical,
      *std::min_element(seconds.begin(), seconds.end()), params / typical / 1e9,
      28.0 * params / typical / 1e9, median(ratios));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t numel = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : std::size_t{32} << 20;
  std::istringstream thread_list(argc > 2 ? argv[2] : "1,2");
  const int repetitions = argc > 3 ? std::atoi(argv[3]) : 9;
  if (numel == 0 || repetitions < 1) {
    std::fprintf(stderr, "usage: adamw_bench [params] [threads,...] [repetitions]\n");
    return 2;
  }
  Tensors tensors(numel);
  for (std::string threads; std::getline(thread_list, threads, ',');) {
    for (const auto* table : acc::kernels::available_kernels()) {
      measure(*table, tensors, std::max(1, std::atoi(threads.c_str())), repetitions);
    }
  }
}
