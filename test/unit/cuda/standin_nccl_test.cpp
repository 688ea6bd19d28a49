// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>
#include <doctest/doctest.h>
#include <nccl.h>

#include <cstdint>
#include <cstdlib>

// The stand-in of NCCL keeps to the real one's order of calls (NCCL 2.28.9: dev_runtime.cc,
// init.cc, group.cc), so that programs that break it fail in the tests.
namespace {

/// A communicator of one rank with the memory of one collective.
class OneRank {
 public:
  explicit OneRank(int blocking) {
    ncclUniqueId id{};
    REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking;
    const ncclResult_t made = ncclCommInitRankConfig(&comm, 1, id, 0, &config);
    REQUIRE(made == (blocking == 1 ? ncclSuccess : ncclInProgress));
    REQUIRE(finish() == ncclSuccess);
    REQUIRE(ncclMemAlloc(&memory, kNbytes) == ncclSuccess);
    REQUIRE(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess);
  }
  ~OneRank() {
    ncclCommAbort(comm);
    ncclMemFree(memory);
    cudaStreamDestroy(stream);
  }
  OneRank(const OneRank&) = delete;
  OneRank& operator=(const OneRank&) = delete;

  [[nodiscard]] ncclResult_t state() const {
    ncclResult_t state = ncclInternalError;
    REQUIRE(ncclCommGetAsyncError(comm, &state) == ncclSuccess);
    return state;
  }
  [[nodiscard]] ncclResult_t finish() const {
    ncclResult_t result = state();
    while (result == ncclInProgress) {
      result = state();
    }
    return result;
  }
  [[nodiscard]] ncclResult_t gather() const {
    return ncclAllGather(memory, memory, 16, ncclUint8, comm, stream);
  }

  static constexpr std::size_t kNbytes = 4096;
  ncclComm_t comm = nullptr;
  void* memory = nullptr;
  cudaStream_t stream = nullptr;
};

}  // namespace

TEST_CASE(
    "a registration returns before its window is written, and calls before that are invalid") {
  OneRank rank(0);
  ncclWindow_t window = nullptr;
  CHECK(ncclCommWindowRegister(rank.comm, rank.memory, OneRank::kNbytes, &window,
                               NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
  CHECK(window == nullptr);
  void* handle = nullptr;  // a plain registration does not look at the state
  CHECK(ncclCommRegister(rank.comm, rank.memory, OneRank::kNbytes, &handle) == ncclSuccess);
  CHECK(rank.gather() == ncclInvalidArgument);
  ncclWindow_t second = nullptr;
  CHECK(ncclCommWindowRegister(rank.comm, rank.memory, OneRank::kNbytes, &second,
                               NCCL_WIN_COLL_SYMMETRIC) == ncclInvalidArgument);
  CHECK(rank.state() == ncclInProgress);
  CHECK(rank.finish() == ncclSuccess);
  CHECK(window != nullptr);
  CHECK(second == nullptr);
  CHECK((rank.gather() == ncclInProgress && rank.finish() == ncclSuccess));
}

TEST_CASE("until NCCL 2.27 a registration said that it was in progress") {
  ::setenv("ACC_STANDIN_NCCL_VERSION", "22707", 1);
  OneRank rank(0);
  ncclWindow_t window = nullptr;
  CHECK(ncclCommWindowRegister(rank.comm, rank.memory, OneRank::kNbytes, &window,
                               NCCL_WIN_COLL_SYMMETRIC) == ncclInProgress);
  ::unsetenv("ACC_STANDIN_NCCL_VERSION");
}

TEST_CASE("a split returns before the new communicator is written") {
  OneRank rank(0);
  ncclComm_t part = nullptr;
  CHECK(ncclCommSplit(rank.comm, 0, 0, &part, nullptr) == ncclSuccess);
  CHECK(part == nullptr);
  CHECK(rank.gather() == ncclInvalidArgument);
  CHECK(rank.finish() == ncclSuccess);
  CHECK(part != nullptr);
  CHECK(rank.gather() != ncclInvalidArgument);
  CHECK(ncclCommAbort(part) == ncclSuccess);
}

TEST_CASE("a blocking communicator has done its work when a call returns") {
  OneRank rank(1);
  ncclWindow_t window = nullptr;
  CHECK(ncclCommWindowRegister(rank.comm, rank.memory, OneRank::kNbytes, &window,
                               NCCL_WIN_COLL_SYMMETRIC) == ncclSuccess);
  CHECK(window != nullptr);
  ncclComm_t part = nullptr;
  CHECK(ncclCommSplit(rank.comm, 0, 0, &part, nullptr) == ncclSuccess);
  CHECK(part != nullptr);
  CHECK(rank.gather() == ncclSuccess);
  CHECK(ncclCommAbort(part) == ncclSuccess);
}

TEST_CASE(
    "a window is memory of ncclMemAlloc, and older versions refuse the policy of no threads") {
  OneRank rank(1);
  void* other = nullptr;
  REQUIRE(cudaMalloc(&other, 2 * OneRank::kNbytes) == cudaSuccess);
  const auto address = reinterpret_cast<std::uintptr_t>(other) + OneRank::kNbytes - 1;
  void* const aligned = reinterpret_cast<void*>(address / OneRank::kNbytes * OneRank::kNbytes);
  ncclWindow_t window = nullptr;
  CHECK(ncclCommWindowRegister(rank.comm, aligned, OneRank::kNbytes, &window,
                               NCCL_WIN_COLL_SYMMETRIC) == ncclUnhandledCudaError);
  CHECK(cudaFree(other) == cudaSuccess);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.CTAPolicy = NCCL_CTA_POLICY_ZERO;
  ncclUniqueId id{};
  REQUIRE(ncclGetUniqueId(&id) == ncclSuccess);
  ncclComm_t comm = nullptr;
  ::setenv("ACC_STANDIN_NCCL_VERSION", "22707", 1);
  CHECK(ncclCommInitRankConfig(&comm, 1, id, 0, &config) == ncclInvalidArgument);
  ::unsetenv("ACC_STANDIN_NCCL_VERSION");
}
