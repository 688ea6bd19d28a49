// SPDX-License-Identifier: Apache-2.0
#include "collectives/device_route.hpp"

#include "acc/base/error.hpp"

#include <doctest/doctest.h>

#include <optional>

namespace {

using acc::collectives::choose_route;
using acc::collectives::RankHardware;
using acc::settings::DeviceCollectives;

RankHardware gpu(const char* host, const char* id, int version = 22809, bool shares = false) {
  return {.host = host,
          .hardware_id = id,
          .nccl_version = version,
          .shares_by_nccl = shares,
          .nccl_problem = version == 0 ? "libnccl.so.2: not found" : ""};
}

}  // namespace

TEST_CASE("all ranks of a job choose the same route for GPU memory") {
  struct Case {
    const char* name;
    std::vector<RankHardware> ranks;
    bool nccl;
    const char* reason;
  };
  const Case kCases[] = {
      {"a GPU each", {gpu("a", "GPU-1"), gpu("a", "GPU-2")}, true, "NCCL 2.28.9"},
      {"one number, two machines", {gpu("a", "GPU-1"), gpu("b", "GPU-1")}, true, "NCCL 2.28.9"},
      {"one without NCCL",
       {gpu("a", "GPU-1"), gpu("a", "GPU-2", 0), gpu("a", "GPU-3")},
       false,
       "rank 1 found no NCCL (libnccl.so.2: not found)"},
      {"one too old",
       {gpu("a", "GPU-1", 22809), gpu("a", "GPU-2", 21703)},
       false,
       "NCCL of rank 1 is 2.17.3, at least 2.18.0 is needed"},
      {"two versions",
       {gpu("a", "GPU-1", 22809), gpu("b", "GPU-1", 22807)},
       false,
       "rank 0 has NCCL 2.28.9, rank 1 has 2.28.7"},
      {"a shared GPU, older NCCL",
       {gpu("a", "GPU-1"), gpu("a", "GPU-2"), gpu("a", "GPU-1")},
       false,
       "ranks 0,2 share GPU-1, which NCCL permits from 2.30.0 on (2.28.9 on ranks 0,1,2)"},
      {"a shared GPU, not permitted by all",
       {gpu("a", "GPU-1", 23001, true), gpu("a", "GPU-1", 23001, false)},
       false,
       "ranks 0,1 share GPU-1, and NCCL_MULTI_RANK_GPU_ENABLE=1 is not set on rank 1"},
      {"a shared GPU, permitted",
       {gpu("a", "GPU-1", 23001, true), gpu("a", "GPU-1", 23001, true)},
       true,
       "NCCL 2.30.1"},
  };
  for (const Case& each : kCases) {
    CAPTURE(each.name);
    const auto route = choose_route(DeviceCollectives::automatic, each.ranks);
    CHECK(route.nccl == each.nccl);
    CHECK(route.reason == each.reason);
    CHECK_FALSE(choose_route(DeviceCollectives::staged, each.ranks).nccl);
    std::optional<std::string> refused;
    try {
      choose_route(DeviceCollectives::nccl, each.ranks);
    } catch (const acc::Error& error) {
      CHECK(error.code() == acc::Errc::device);
      refused = error.what();
    }
    CHECK(refused.has_value() != each.nccl);
    CHECK((!refused || refused->find(each.reason) != std::string::npos));
  }
}

TEST_CASE("the description of a rank's GPU passes through the store unchanged") {
  for (RankHardware each : {gpu("a", "GPU-1"), gpu("", "", 0), gpu("b", "GPU-2", 23000, true)}) {
    each.nccl_problem += "\nsecond line";
    CHECK(acc::collectives::decode_hardware(encode(each)) == each);
  }
}
