// SPDX-License-Identifier: Apache-2.0
#include "support/program.hpp"

#include <doctest/doctest.h>

#include <cstdlib>
#include <map>
#include <string>

using acc::test::Program;
using Variables = std::map<std::string, std::string>;

namespace {

struct Outcome {
  int status;
  std::string text;
};

Outcome probe(Variables variables, const std::string& local_rank = "0",
              const std::string& local_world_size = "1") {
  variables.emplace("ACC_CUDA_BACKEND", ACC_STANDIN_BACKEND);
  Program program({ACC_BIN_DIR "/gpu_probe", local_rank, local_world_size}, variables);
  const int status = program.wait();
  return {status, program.out()};
}

}  // namespace

TEST_CASE("a worker gets the GPU of its local rank") {
  const Outcome outcome = probe({{"ACC_STANDIN_DEVICES", "4"}}, "2", "4");
  CHECK(outcome.text.starts_with("cuda:2 ("));
  CHECK(outcome.status == 0);
}

TEST_CASE("an error names in one sentence what is missing") {
  struct Case {
    Variables variables;
    const char* expected;
  };
  const Case cases[] = {
      {{{"ACC_STANDIN_ERROR", "no_driver"}},
       "device: device cuda: there is no NVIDIA driver here (libcuda.so.1 was not found, or does "
       "not load): install the driver, or use --cpu\n"},
      {{{"ACC_STANDIN_ERROR", "old_driver"}},
       "device: device cuda: the NVIDIA driver is too old: it supports CUDA 12.2 and this build "
       "needs 13.0 or newer: update the driver, or use --cpu\n"},
      {{{"ACC_STANDIN_ERROR", "no_device"}},
       "device: device cuda: there is a driver, but no GPU: use a machine that has one, or "
       "--cpu\n"},
      {{{"CUDA_VISIBLE_DEVICES", "9"}},
       "device: device cuda: there is a driver, but no GPU (CUDA_VISIBLE_DEVICES=9): use a machine "
       "that has one, or --cpu\n"},
      {{{"ACC_STANDIN_FAIL", "cudaGetDeviceCount"}}, "device: device cuda: cudaGetDeviceCount: "},
      {{{"ACC_STANDIN_FAIL", "cudaStreamCreateWithPriority"}},
       "device: cuda:0: cudaStreamCreateWithPriority: "},
      {{{"ACC_STANDIN_FAIL", "cudaMalloc"}}, "device: cuda:0: cudaMalloc: "},
      {{{"ACC_CUDA_BACKEND", "/nowhere/libacc_cuda.so"}},
       "device: device cuda: cannot load libacc_cuda.so (/nowhere/libacc_cuda.so: cannot open "
       "shared object file: No such file or directory): this build has no CUDA support; build with "
       "the preset cuda, or use --cpu\n"},
      {{{"ACC_CUDA_BACKEND", "libdl.so.2"}},
       "device: device cuda: libdl.so.2 has a different version than the runtime that loads it: "
       "install both from one build\n"},
  };
  for (const Case& test : cases) {
    CAPTURE(test.expected);
    const Outcome outcome = probe(test.variables);
    CAPTURE(outcome.text);
    CHECK(outcome.text.starts_with(test.expected));
    CHECK(outcome.status == 2);
  }
}

TEST_CASE("more workers than GPUs") {
  const Outcome outcome = probe({{"ACC_STANDIN_DEVICES", "2"}}, "1", "8");
  CHECK(outcome.text ==
        "device: device cuda: 8 workers on this machine, but GPUs: 2: start fewer workers, or let "
        "them share GPUs with ACC_SHARE_GPUS=1\n");
  CHECK(outcome.status == 2);
}

TEST_CASE("a GPU with too little memory for an allocation") {
  const Outcome outcome = probe({{"ACC_STANDIN_MEMORY", "100000"}});
  CHECK(outcome.text.starts_with(
      "out_of_memory: cuda:0: out of memory (OOM): 1.0 MiB for probe do not fit: 0.0 of 0.0"));
  CHECK(outcome.status == 1);
}

// The real library on a machine without a driver: it loads and reports what is missing.
TEST_CASE("the real library without a driver") {
  const Outcome real =
      probe({{"ACC_CUDA_BACKEND", ACC_REAL_BACKEND}, {"CUDA_VISIBLE_DEVICES", ""}});
  CAPTURE(real.text);
  CHECK(real.text.starts_with("device: device cuda: there is "));
  CHECK(real.status == 2);
}
