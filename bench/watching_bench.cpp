// SPDX-License-Identifier: Apache-2.0
// Cost of reports: after each step of a fixed amount of work, in turn those of the runtime (as
// Optimizer::step, Work::wait and Runtime::report make them) and a line of JSON. Prints the median
// CPU time of each. Started by bench/watching.py below acclaunch.
#include "acc/base/flight_record.hpp"
#include "flight/recorder.hpp"
#include "timing.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <ctime>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using acc::bench::median;
using Value = std::pair<std::string_view, double>;

// Collectives of a step of a model with 50 units: three gathers or reductions for each.
constexpr int kCollectives = 150;

double cpu_seconds(clockid_t clock = CLOCK_THREAD_CPUTIME_ID) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

volatile double sink = 0.0;

void work(long rounds) {
  double sum = 0.0;
  for (long i = 0; i < rounds; ++i) {
    sum += 1.0 / static_cast<double>(i + 1);
  }
  sink = sum;
}

/// Returns the rounds of `work` that take 10 ms.
long calibrated() {
  constexpr long kTry = 10'000'000;
  const double begin = cpu_seconds();
  work(kTry);
  return static_cast<long>(kTry * 0.010 / (cpu_seconds() - begin));
}

void report_step(acc::flight::Recorder& recorder, std::int64_t step) {
  for (int i = 0; i < kCollectives; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    recorder.waited(i % 3 == 0 ? "reduce_scatter" : "all_gather",
                    std::chrono::steady_clock::now() - begin);
  }
  std::vector<Value> values = {
      {"step", static_cast<double>(step)}, {"learning_rate", 3e-4}, {"gradient_norm", 0.8}};
  if (recorder.wants_memory()) {
    for (const char* name : {"memory.parameters", "memory.gradients", "memory.optimizer"}) {
      values.emplace_back(name, 1e9);
    }
  }
  recorder.end_step(values);
  const std::array own = {Value{"loss", 2.5}, Value{"tokens_per_s", 51'200.0}};
  recorder.report(own);
}

}  // namespace

int main(int argc, char** argv) {
  const int num_steps = argc > 1 ? std::atoi(argv[1]) : 300;
  const char* const record = std::getenv(acc::flight::kRecordVariable);
  const char* const descriptor = std::getenv("ACC_REPORT_FD");
  if (record == nullptr || descriptor == nullptr) {
    fmt::print("start it with bench/watching.py\n");
    return 2;
  }
  acc::flight::Recorder recorder(record, 0);
  const int fd = std::atoi(descriptor);
  const long rounds = calibrated();
  std::vector<double> work_times;
  std::array<std::vector<double>, 2> report_times;
  long num_full = 0;
  for (int step = 0; step < num_steps; ++step) {
    for (std::size_t kind = 0; kind < report_times.size(); ++kind) {
      const double begin = cpu_seconds();
      work(rounds);
      const double end = cpu_seconds();
      if (kind == 0) {
        report_step(recorder, step);
      } else {
        const std::string line = fmt::format(
            "{{\"step\": {}, \"loss\": 2.5, \"lr\": 3e-4, \"tokens_per_s\": 51200}}\n", step);
        num_full += ::write(fd, line.data(), line.size()) < 0 ? 1 : 0;
      }
      report_times.at(kind).push_back(cpu_seconds() - end);
      work_times.push_back(end - begin);
    }
  }
  fmt::print(
      "{{\"work_us\": {:.2f}, \"runtime_us\": {:.2f}, \"line_us\": {:.2f}, \"lines_refused\": {}, "
      "\"cpu_s\": {:.3f}}}\n",
      median(work_times) * 1e6, median(report_times[0]) * 1e6, median(report_times[1]) * 1e6,
      num_full, cpu_seconds(CLOCK_PROCESS_CPUTIME_ID));
}
