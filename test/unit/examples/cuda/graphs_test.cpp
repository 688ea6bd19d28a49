// SPDX-License-Identifier: Apache-2.0
#include "cuda/graphs.hpp"

#include "cuda/kernels.hpp"
#include "device_array.hpp"

#include <acc/base/error.hpp>

#include <cstdlib>
#include <vector>

using namespace train_gpt::cuda;

namespace {

const std::vector<float> kValues(8, 2.0f);

/// Doubles the value `times` times, through `Graphed`, and returns what it is then.
float doubled(
    Graphed<int>& graphed, GraphCapture& graphs, cudaStream_t stream, int times,
    const std::function<void(int)>& before = [](int) {}) {
  const DeviceArray<float> x(kValues);
  for (int i = 0; i < times; ++i) {
    graphed.run(graphs, 1, [&] {
      before(i);
      add_bias(stream, x.data(), x.data(), 1, 8);
    });
  }
  return x.read().front();
}

}  // namespace

TEST_CASE("repeated work runs once per call, with and without graphs") {
  const TestStream stream;
  for (const bool on : {false, true}) {
    GraphCapture graphs(stream, on);
    Graphed<int> graphed;
    int issued = 0;
    CHECK(doubled(graphed, graphs, stream, 5, [&](int) { ++issued; }) == 64.0f);
    CHECK(issued == (on ? 2 : 5));  // once as it is, once captured
  }
}

TEST_CASE("a call that cannot be captured turns graphs off, and the work runs without them") {
  const TestStream stream;
  GraphCapture graphs(stream, true);
  Graphed<int> graphed;
  const auto wait = [&](int i) {
    if (i == 1) {
      check(cudaStreamSynchronize(stream), "a wait");
    }
  };
  // The second call waits for the stream, in the capture and without it.
  Graphed<int> other;
  CHECK(doubled(graphed, graphs, stream, 1, wait) == 4.0f);
  CHECK(graphs.on());
  const DeviceArray<float> x(kValues);
  const auto issue = [&] {
    check(cudaStreamSynchronize(stream), "a wait");
    add_bias(stream, x.data(), x.data(), 1, 8);
  };
  other.run(graphs, 2, issue);
  CHECK(graphs.on());
  other.run(graphs, 2, issue);
  CHECK_FALSE(graphs.on());
  other.run(graphs, 2, issue);
  CHECK(x.read().front() == 16.0f);
}

TEST_CASE("arguments that never return turn graphs off") {
  const TestStream stream;
  GraphCapture graphs(stream, true);
  Graphed<int> graphed;
  int issued = 0;
  for (int i = 0; i < 40; ++i) {
    graphed.run(graphs, i, [&] { ++issued; });
  }
  CHECK(issued == 40);
  CHECK_FALSE(graphs.on());
}

TEST_CASE("TRAIN_GPT_GRAPHS is 0 or 1") {
  CHECK_FALSE(graphs_from_environment());
  setenv("TRAIN_GPT_GRAPHS", "1", 1);
  CHECK(graphs_from_environment());
  setenv("TRAIN_GPT_GRAPHS", "yes", 1);
  CHECK_THROWS_WITH_AS(graphs_from_environment(), "TRAIN_GPT_GRAPHS must be 0 or 1, got \"yes\"",
                       acc::Error);
  unsetenv("TRAIN_GPT_GRAPHS");
}
