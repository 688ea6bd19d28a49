// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"

#include <doctest/doctest.h>

#include <csignal>
#include <map>
#include <string>
#include <vector>

using acc::test::Program;

namespace {

using Variables = std::map<std::string, std::string>;

struct Outcome {
  int status;
  std::string out;
  std::string err;
};

Outcome run_probe(const std::string& scenario, const Variables& variables = {},
                  const std::string& program = "standin_probe") {
  Program probe({ACC_BIN_DIR "/" + program, scenario}, variables);
  const int status = probe.wait();
  return {status, probe.out(), probe.err()};
}

void check_contains(const std::string& text, const std::string& part) {
  CAPTURE(text);
  CAPTURE(part);
  CHECK(text.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("an error that would corrupt or hang a GPU ends the process with a message") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"use_after_free", "cudaMemset: 8 bytes from offset 100 of allocation 1 (4096 bytes"},
      {"free_twice", "which has been freed"},
      {"copy_past_the_end",
       "cudaMemset: the 41 bytes from offset 60 leave allocation 1 (100 bytes"},
      {"kernel_past_the_end", "something wrote past allocation 1 (64 bytes"},
      {"kernel_after_free", "to allocation 1 (64 bytes"},
      {"diverge_at_barrier", "divergent __syncthreads"},
      {"diverge_in_warp", "divergent warp"},
      {"wait_for_each_other", "deadlock in block (0, 0, 0) of 32 threads"},
      {"overrun_shared", "a kernel wrote 0 bytes past its 32 bytes of dynamic shared memory"},
  };
  for (const auto& [scenario, sentence] : cases) {
    CAPTURE(scenario);
    const Outcome outcome = run_probe(scenario);
    CHECK(outcome.status == 128 + SIGABRT);
    check_contains(outcome.err, "stand-in CUDA: ");
    check_contains(outcome.err, sentence);
  }
}

TEST_CASE("a kernel's misaligned vector or index past an array ends the process, as on a GPU") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"misaligned_float4", "misaligned address"},
      {"misaligned_uint4", "misaligned address"},
      {"misaligned_bfloat162", "misaligned address"},
      {"past_own_array", "index 4 out of bounds for type 'int [4]'"},
  };
  for (const auto& [scenario, sentence] : cases) {
    CAPTURE(scenario);
    const Outcome outcome = run_probe(scenario);
    CHECK(outcome.status == 1);
    check_contains(outcome.err, sentence);
  }
  for (const char* scenario : {"aligned_float4", "own_array"}) {
    CHECK(run_probe(scenario).status == 0);
  }
}

TEST_CASE("the address sanitizer stops a kernel at its first access outside of its memory") {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"kernel_past_the_end", "WRITE of size 4"},
      {"kernel_after_free", "WRITE of size 4"},
      {"kernel_reads_past_the_end", "READ of size 16"},
      {"kernel_reads_freed", "READ of size 16"},
      {"overrun_shared", "WRITE of size 1"},
  };
  for (const auto& [scenario, sentence] : cases) {
    CAPTURE(scenario);
    const Outcome outcome = run_probe(scenario, {}, "standin_probe_asan");
    CHECK(outcome.status == 1);
    check_contains(outcome.err, "AddressSanitizer: use-after-poison");
    check_contains(outcome.err, sentence);
    check_contains(outcome.err, "_kernel");  // in the stack
  }
  const Outcome correct = run_probe("own_array", {}, "standin_probe_asan");
  CHECK(correct.status == 0);
  CHECK(correct.out == "6\n");
}

TEST_CASE("the environment sets the devices of the machine") {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{}, "count: cudaSuccess\n2 devices, driver 13000\n0 at 0000:10:00.0\n1 at 0000:11:00.0\n"},
      {{{"ACC_STANDIN_DEVICES", "1"}},
       "count: cudaSuccess\n1 devices, driver 13000\n0 at 0000:10:00.0\n"},
      {{{"ACC_STANDIN_DEVICES", "4"}, {"CUDA_VISIBLE_DEVICES", "3,1,9,0"}},
       "count: cudaSuccess\n2 devices, driver 13000\n0 at 0000:13:00.0\n1 at 0000:11:00.0\n"},
      {{{"CUDA_VISIBLE_DEVICES", "GPU-ac000000-0000-0000-0000-000000000001"}},
       "count: cudaSuccess\n1 devices, driver 13000\n0 at 0000:11:00.0\n"},
      {{{"CUDA_VISIBLE_DEVICES", ""}}, "count: cudaErrorNoDevice\n0 devices, driver 13000\n"},
      {{{"ACC_STANDIN_ERROR", "no_driver"}},
       "count: cudaErrorInsufficientDriver\n0 devices, driver 0\n"},
      {{{"ACC_STANDIN_ERROR", "old_driver"}},
       "count: cudaErrorInsufficientDriver\n0 devices, driver 12020\n"},
      {{{"ACC_STANDIN_ERROR", "no_device"}}, "count: cudaErrorNoDevice\n0 devices, driver 13000\n"},
  };
  for (const auto& [variables, expected] : cases) {
    const Outcome outcome = run_probe("devices", variables);
    CHECK(outcome.status == 0);
    CHECK(outcome.out == expected);
  }
}

TEST_CASE("the call that ACC_STANDIN_FAIL selects fails, and a kernel's fault is permanent") {
  const std::vector<std::pair<Variables, std::string>> cases = {
      {{},
       "malloc: cudaSuccess\nmalloc: cudaSuccess\nmalloc: cudaSuccess\nlaunch: cudaSuccess\n"
       "synchronize: cudaSuccess\nlast: cudaSuccess\nafter: cudaSuccess\n"},
      {{{"ACC_STANDIN_FAIL", "cudaMalloc:2"}},
       "malloc: cudaSuccess\nmalloc: cudaErrorUnknown\nmalloc: cudaSuccess\nlaunch: cudaSuccess\n"
       "synchronize: cudaSuccess\nlast: cudaErrorUnknown\nafter: cudaSuccess\n"},
      {{{"ACC_STANDIN_FAIL", "kernel:1"}},
       "malloc: cudaSuccess\nmalloc: cudaSuccess\nmalloc: cudaSuccess\nlaunch: cudaSuccess\n"
       "synchronize: cudaErrorLaunchFailure\nlast: cudaErrorLaunchFailure\n"
       "after: cudaErrorLaunchFailure\n"},
  };
  for (const auto& [variables, expected] : cases) {
    const Outcome outcome = run_probe("failures", variables);
    CHECK(outcome.status == 0);
    CHECK(outcome.out == expected);
  }
}

TEST_CASE("a malformed variable is named") {
  const Outcome outcome = run_probe("devices", {{"ACC_STANDIN_DEVICES", "two"}});
  CHECK(outcome.status == 128 + SIGABRT);
  check_contains(outcome.err, "ACC_STANDIN_DEVICES: 'two' is not a number");
}
