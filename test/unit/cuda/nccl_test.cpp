// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/device_route.hpp"
#include "collectives/make_group.hpp"
#include "collectives/solo/solo_group.hpp"
#include "collectives/staged/staged_group.hpp"
#include "device/cpu_device.hpp"
#include "device/open_device.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>

// Process groups over GPU memory: one rank, NCCL, staged. Ranks are threads. The stand-in has four
// GPUs. On a machine with fewer GPUs, ranks share them if NCCL supports that; cases that need more
// are skipped otherwise.
namespace {

using acc::DType;
using acc::Errc;
using acc::Error;
using acc::ReduceOp;
using acc::collectives::GroupFactory;
using acc::collectives::ProcessGroup;
using acc::collectives::SoloGroup;
using acc::collectives::StagedGroup;
using acc::device::Device;
using acc::device::Opened;
using acc::settings::DeviceCollectives;
using acc::test::Job;

const int kFourGpus = ::setenv("ACC_STANDIN_DEVICES", "4", 0);
const int kRanksMayShareGpus = ::setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 0);

struct Topology {
  const char* name;
  int ranks;
  DeviceCollectives route;
  std::size_t chunk_nbytes = 0;  ///< chunk size of a staged group; 0: its default
};

constexpr Topology kTopologies[] = {
    {"solo", 1, DeviceCollectives::automatic},
    {"nccl of 1", 1, DeviceCollectives::nccl},
    {"nccl of 2", 2, DeviceCollectives::nccl},
    {"nccl of 3", 3, DeviceCollectives::nccl},
    {"nccl of 4", 4, DeviceCollectives::nccl},
    {"staged of 2", 2, DeviceCollectives::staged},
    {"staged of 3", 3, DeviceCollectives::staged},
    {"staged of 2, in small chunks", 2, DeviceCollectives::staged, 4096},
    {"staged of 3, in small chunks", 3, DeviceCollectives::staged, 16384}};

// doctest's macros must not be used on several threads, so a failed expectation is an exception.
void expect(bool condition, std::string_view what) {
  if (!condition) {
    throw std::runtime_error(std::string(what));
  }
}

bool fits(const Topology& topology) {
  if (topology.route != DeviceCollectives::nccl) {
    return true;
  }
  acc::settings::RuntimeSettings settings;
  settings.device = acc::settings::Device::cuda;
  acc::device::Backend& backend = *acc::device::open_device(settings).backend;
  const int version = backend.nccl_version();
  return version >= acc::collectives::kMultiRankNcclVersion ||
         (version >= acc::collectives::kMinNcclVersion && topology.ranks <= backend.device_count());
}

/// One rank of a test: its device, its group, and arrays that are written and read on the compute
/// stream without any other order.
struct Rank {
  const acc::settings::RuntimeSettings& settings;
  acc::rendezvous::Store* store;
  Opened opened;
  GroupFactory factory;
  std::shared_ptr<ProcessGroup> group;

  [[nodiscard]] Device& device() const { return *opened.device; }
  [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(group->size()); }

  void write(void* to, const void* values, std::size_t nbytes) {
    staging.push_back(device().allocate_host(nbytes, "test values"));
    std::memcpy(staging.back()->data(), values, nbytes);
    device().copy(to, staging.back()->data(), nbytes, device().compute());
  }
  void fill(float* to, std::size_t numel, float value) {
    const std::vector<float> values(numel, value);
    write(to, values.data(), numel * sizeof(float));
  }
  [[nodiscard]] std::vector<float> read(const float* from, std::size_t numel) {
    const auto host = device().allocate_host(numel * sizeof(float), "test values");
    device().copy(host->data(), from, numel * sizeof(float), device().compute());
    device().record(device().compute())->synchronize();
    return {host->as<float>(), host->as<float>() + numel};
  }

  std::vector<acc::device::MemoryPtr> staging;
};

/// NCCL group of this rank alone, for which GroupFactory makes a solo group. `parent`: null, or
/// another one.
std::shared_ptr<ProcessGroup> nccl_of_one(const Opened& opened, acc::rendezvous::Store* store,
                                          const std::string& name, ProcessGroup* parent) {
  const acc::collectives::GroupSpec spec{
      .name = name, .ranks = {0}, .store = store, .timeout = std::chrono::seconds(60)};
  auto host = std::make_shared<SoloGroup>(spec, acc::device::open_cpu_device());
  return opened.backend->make_nccl_group(spec, std::move(host), opened.device, parent, 0, {});
}

void with_ranks(const Topology& topology, const std::function<void(Rank&)>& body,
                std::chrono::seconds timeout = std::chrono::seconds(60)) {
  acc::test::run_ranks(
      {.world_size = topology.ranks, .sharding = {}, .timeout = timeout},
      [&](auto settings, auto store) {
        settings.device = acc::settings::Device::cuda;
        settings.share_gpus = true;
        settings.device_collectives = topology.route;
        const Opened opened = acc::device::open_device(settings);
        Rank rank{settings, store.get(),
                  opened,   GroupFactory(settings, store.get(), opened.device, opened.backend),
                  nullptr,  {}};
        std::vector<int> all(static_cast<std::size_t>(topology.ranks));
        std::iota(all.begin(), all.end(), 0);
        rank.group = topology.ranks == 1 && topology.route == DeviceCollectives::nccl
                         ? nccl_of_one(opened, store.get(), "test", nullptr)
                         : rank.factory.make(all, "test");
        if (topology.chunk_nbytes != 0) {
          const GroupFactory host(settings, store.get(), acc::device::open_cpu_device(), nullptr);
          rank.group = std::make_shared<StagedGroup>(host.make(all, "host"), opened.device,
                                                     topology.chunk_nbytes);
        }
        body(rank);
        opened.device->synchronize();
      });
}

float element(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * static_cast<float>(1 + i % 13);
}

float sum_of(std::size_t ranks, std::size_t i) {
  return static_cast<float>(ranks * (ranks + 1) / 2) * static_cast<float>(1 + i % 13);
}

std::vector<float> elements(int rank, std::size_t numel) {
  std::vector<float> values(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    values[i] = element(rank, i);
  }
  return values;
}

}  // namespace

TEST_CASE("all_gather: in place and not, odd and large shards, again and again") {
  for (const Topology& topology : kTopologies) {
    for (const std::size_t numel : {std::size_t{1}, std::size_t{1'003}, std::size_t{70'001}}) {
      CAPTURE(topology.name);
      CAPTURE(numel);
      if (!fits(topology)) {
        continue;
      }
      CHECK_NOTHROW(with_ranks(topology, [&](Rank& rank) {
        const auto shard = rank.group->allocate_contribution(numel * sizeof(float));
        const auto all = rank.group->allocate_gathered(numel * rank.size() * sizeof(float));
        float* const own = all->as<float>() + numel * static_cast<std::size_t>(rank.group->rank());
        for (int round = 0; round < 3; ++round) {
          const bool in_place = round == 1;
          auto values = elements(rank.group->rank(), numel);
          values[0] += static_cast<float>(round);
          float* const from = in_place ? own : shard->as<float>();
          rank.write(from, values.data(), numel * sizeof(float));
          rank.group->all_gather(from, all->data(), numel * sizeof(float))->wait();
          const auto seen = rank.read(all->as<float>(), numel * rank.size());
          rank.group->release_gathered(all);
          for (std::size_t i = 0; i < seen.size(); ++i) {
            const float extra = i % numel == 0 ? static_cast<float>(round) : 0.0F;
            expect(seen[i] == element(static_cast<int>(i / numel), i % numel) + extra,
                   "wrong element");
          }
        }
      }));
    }
  }
}

TEST_CASE("reduce_scatter: every scale, accumulated or not, in place, 16 bits") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    if (!fits(topology)) {
      continue;
    }
    CHECK_NOTHROW(with_ranks(topology, [&](Rank& rank) {
      const std::size_t numel = 5'003;
      const std::size_t total = numel * rank.size();
      const std::size_t first = numel * static_cast<std::size_t>(rank.group->rank());
      const auto in = rank.group->allocate_contribution(total * sizeof(float));
      const auto out = rank.device().allocate(numel * sizeof(float), "test sums");
      const auto values = elements(rank.group->rank(), total);
      for (const float scale : {1.0F, 1.0F / static_cast<float>(rank.size()), 0.25F}) {
        for (const bool accumulate : {false, true}) {
          for (const bool in_place : {false, true}) {
            float* const to = in_place ? in->as<float>() + first : out->as<float>();
            rank.fill(out->as<float>(), numel, 7.0F);
            rank.write(in->data(), values.data(), total * sizeof(float));
            rank.group
                ->reduce_scatter(in->data(), to, numel, DType::float32,
                                 {.scale = scale, .accumulate = accumulate && !in_place})
                ->wait_released();
            const auto sums = rank.read(to, numel);
            const float before = accumulate && !in_place ? 7.0F : 0.0F;
            for (std::size_t i = 0; i < numel; ++i) {
              expect(doctest::Approx(sums[i]) == before + scale * sum_of(rank.size(), first + i),
                     "wrong sum");
            }
          }
        }
      }
      for (const auto& [dtype, one] :
           {std::pair(DType::bfloat16, 0x3f80), std::pair(DType::float16, 0x3c00)}) {
        const std::vector<std::uint16_t> ones(total, static_cast<std::uint16_t>(one));
        for (const bool accumulate : {false, true}) {
          rank.fill(out->as<float>(), numel, 0.5F);
          rank.write(in->data(), ones.data(), total * sizeof(std::uint16_t));
          rank.group
              ->reduce_scatter(in->data(), out->as<float>(), numel, dtype,
                               {.scale = 2.0F, .accumulate = accumulate})
              ->wait();
          for (const float sum : rank.read(out->as<float>(), numel)) {
            expect(sum == 2.0F * static_cast<float>(rank.size()) + (accumulate ? 0.5F : 0.0F),
                   "wrong sum in 16 bits");
          }
        }
      }
    }));
  }
}

TEST_CASE("all_reduce, scalars, broadcast and barrier") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    if (!fits(topology)) {
      continue;
    }
    CHECK_NOTHROW(with_ranks(topology, [&](Rank& rank) {
      const std::size_t numel = 20'011;
      const auto data = rank.device().allocate(numel * sizeof(float), "test values");
      const auto values = elements(rank.group->rank(), numel);
      for (const float scale : {1.0F, 1.0F / static_cast<float>(rank.size()), 3.0F}) {
        rank.write(data->data(), values.data(), numel * sizeof(float));
        rank.group->all_reduce(data->as<float>(), numel, DType::float32, scale)->wait();
        const auto sums = rank.read(data->as<float>(), numel);
        for (std::size_t i = 0; i < numel; ++i) {
          expect(doctest::Approx(sums[i]) == scale * sum_of(rank.size(), i), "wrong sum");
        }
      }
      const float fine = 1.0F + 1.0F / 1024.0F;  // NCCL rounds it to 1, as bfloat16
      const float seen = topology.route == DeviceCollectives::nccl ? 1.0F : fine;
      rank.fill(data->as<float>(), numel, fine);
      rank.group->all_reduce(data->as<float>(), numel, DType::bfloat16, 0.5F)->wait();
      expect(rank.read(data->as<float>(), numel) ==
                 std::vector<float>(numel, 0.5F * static_cast<float>(rank.size()) * seen),
             "wrong sum in 16 bits");
      std::vector<double> figures = {1.0, static_cast<double>(rank.group->rank())};
      rank.group->all_reduce(figures, ReduceOp::sum)->wait();
      expect(figures[0] == rank.group->size(), "wrong count");
      const int root = rank.group->size() - 1;
      rank.write(data->data(), values.data(), numel * sizeof(float));
      rank.group->broadcast(data->data(), numel * sizeof(float), root)->wait();
      expect(rank.read(data->as<float>(), numel) == elements(root, numel), "wrong broadcast");
      rank.group->barrier()->wait();
    }));
  }
}

TEST_CASE("parts of the world are separate groups, usable at the same time as the world") {
  const Topology topology{"nccl of 4", 4, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  with_ranks(topology, [](Rank& rank) {
    const int me = rank.group->rank();
    const auto shard = rank.factory.make({me / 2 * 2, me / 2 * 2 + 1}, "shard", rank.group.get());
    const auto replicate = rank.factory.make({me % 2, me % 2 + 2}, "replicate", rank.group.get());
    const auto data = rank.device().allocate(3 * sizeof(float), "test values");
    const auto sum_over = [&](ProcessGroup& group) {
      rank.fill(data->as<float>(), 3, static_cast<float>(1 << me));
      group.all_reduce(data->as<float>(), 3, DType::float32, 1.0F)->wait();
      return static_cast<int>(rank.read(data->as<float>(), 3)[2]);
    };
    expect(shard->rank() == me % 2 && replicate->rank() == me / 2, "wrong place");
    expect(sum_over(*shard) == (me < 2 ? 3 : 12), "wrong shard group");
    expect(sum_over(*replicate) == (me % 2 == 0 ? 5 : 10), "wrong replicate group");
    expect(sum_over(*rank.group) == 15, "the world does not work any more");
    rank.group->barrier()->wait_released();  // a rank that leaves a group ends it for the others
  });
}

TEST_CASE("NCCL on one rank: a part of the group, and an abort") {
  const Topology topology{"nccl of 1", 1, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  with_ranks(topology, [](Rank& rank) {
    const auto part = nccl_of_one(rank.opened, rank.store, "part", rank.group.get());
    const auto shard = part->allocate_contribution(40);
    const auto all = part->allocate_gathered(40);
    rank.fill(shard->as<float>(), 10, 5.0F);
    part->all_gather(shard->data(), all->data(), 40)->wait();
    part->reduce_scatter(all->data(), shard->as<float>(), 10, DType::float32, {.scale = 2.0F})
        ->wait();
    for (ProcessGroup* group : {part.get(), rank.group.get()}) {
      group->all_reduce(shard->as<float>(), 10, DType::float32, 1.0F)->wait();
    }
    expect(rank.read(shard->as<float>(), 10) == std::vector<float>(10, 10.0F), "wrong sums");
    rank.group->abort("the test is over", acc::Errc::collective);
    bool refused = false;
    try {
      rank.group->all_reduce(shard->as<float>(), 10, DType::float32, 1.0F);
    } catch (const Error& error) {
      refused = error.code() == Errc::collective;
    }
    expect(refused, "a collective of a group that was aborted");
    expect(rank.group->failure() == "the test is over", "another reason");
  });
}

TEST_CASE("memory of a group is counted at the granularity of NCCL until it is freed") {
  const Topology topology{"nccl of 2", 2, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  with_ranks(topology, [](Rank& rank) {
    constexpr std::int64_t kGranularity = 2 << 20;
    const auto held = [&, before = rank.device().memory().allocated] {
      return rank.device().memory().allocated - before;
    };
    // Large memory is freed at once; small pieces share one segment, which the group keeps.
    auto large = rank.group->allocate_gathered(kGranularity + 4);
    expect(held() == 2 * kGranularity, "not accounted for");
    auto first = rank.group->allocate_contribution(100'000);
    auto second = rank.group->allocate_gathered(100'000);
    expect(held() == 3 * kGranularity, "small pieces do not share a segment");
    for (const auto& piece : {large, first, second}) {
      for (const float value : rank.read(piece->as<float>(), 25'000)) {
        expect(value == 0.0F, "not zero-filled");
      }
      rank.fill(piece->as<float>(), 25'000, 1.0F);
    }
    large.reset();
    first.reset();
    second.reset();
    expect(held() == kGranularity, "still accounted for");
  });
}

// NCCL reads and writes memory of the peers at the offsets of its own.
TEST_CASE("memory of a group has the same place on all ranks, whenever each of them frees it") {
  const Topology topology{"nccl of 2", 2, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  CHECK_NOTHROW(with_ranks(topology, [](Rank& rank) {
    constexpr std::size_t kNumel = 30'011;
    const auto me = static_cast<std::size_t>(rank.group->rank());
    std::vector<acc::collectives::BufferPtr> kept;
    for (std::size_t round = 0; round < 40; ++round) {
      const auto shard = rank.group->allocate_contribution(kNumel * sizeof(float));
      const auto all = rank.group->allocate_gathered(2 * kNumel * sizeof(float));
      const auto values = elements(rank.group->rank(), kNumel);
      rank.write(shard->data(), values.data(), kNumel * sizeof(float));
      rank.group->all_gather(shard->data(), all->data(), kNumel * sizeof(float))->wait();
      expect(rank.read(all->as<float>(), 2 * kNumel)[kNumel + 1] == element(1, 1), "wrong element");
      rank.group->barrier()->wait_released();
      if (round % 3 == me) {  // rank 0 keeps others than rank 1
        kept.insert(kept.end(), {shard, all});
      }
    }
  }));
}

TEST_CASE("a rank that never joins is named at the timeout") {
  const Topology topology{"nccl of 3", 3, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  std::atomic<int> named = 0;
  with_ranks(
      topology,
      [&](Rank& rank) {
        const int me = rank.group->rank();
        rank.group->barrier()->wait_released();
        const acc::collectives::GroupSpec spec{.name = "late",
                                               .ranks = {0, 1, 2},
                                               .rank = me,
                                               .store = rank.store,
                                               .timeout = std::chrono::seconds(1)};
        if (me != 1) {
          try {
            rank.opened.backend->make_nccl_group(spec, rank.group, rank.opened.device, nullptr, 0,
                                                 {});
          } catch (const Error& error) {
            named += std::string(error.what()).find("rank 1 did not join") != std::string::npos;
          }
        }
        while (!rank.group->failure()) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      },
      std::chrono::seconds(60));
  CHECK(named == 2);
}

TEST_CASE("a collective that a rank never enters ends on every rank within the time limit") {
  const Topology topology{"nccl of 2", 2, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  with_ranks(
      topology,
      [](Rank& rank) {
        const auto data = rank.device().allocate(64, "test values");
        rank.group->all_reduce(data->as<float>(), 16, DType::float32, 1.0F)->wait();
        rank.device().synchronize();
        if (rank.group->rank() == 0) {
          rank.group->all_reduce(data->as<float>(), 16, DType::float32, 1.0F)->wait();
          rank.device().synchronize();
        } else {
          while (!rank.group->failure()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
        }
        const auto reason = rank.group->failure();
        expect(reason && reason->find("all_reduce of 16 x float32 over nccl[0,1] did not end "
                                      "within 1 s on rank 0; rank 1 did not reach it") !=
                             std::string::npos,
               "another reason: " + reason.value_or("none"));
        std::vector<double> figures = {0.0};
        bool refused = false;
        try {
          rank.group->all_reduce(figures, ReduceOp::sum)->wait();
        } catch (const Error& error) {
          refused = error.code() == Errc::collective;
        }
        expect(refused, "scalars of a group that ended");
      },
      std::chrono::seconds(1));
}

TEST_CASE("an abort on one rank ends the waits of the others, with its reason") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    if (!fits(topology) || topology.ranks == 1) {
      continue;
    }
    CHECK_NOTHROW(with_ranks(topology, [](Rank& rank) {
      const auto data = rank.device().allocate(64, "test values");
      rank.group->barrier()->wait_released();
      if (rank.group->rank() == 1) {
        rank.group->abort("rank 1 is out of memory", acc::Errc::collective);
      } else {
        try {
          rank.group->all_reduce(data->as<float>(), 16, DType::float32, 1.0F)->wait();
          rank.device().synchronize();
        } catch (const Error& error) {
          expect(error.code() == Errc::collective, "another error");
        }
      }
      const auto reason = rank.group->failure();
      expect(reason == "rank 1 is out of memory", "another reason: " + reason.value_or("none"));
    }));
  }
}

TEST_CASE("an abort ends groups that hang on one GPU together") {
  const Topology topology{"nccl of 4", 4, DeviceCollectives::nccl};
  if (!fits(topology)) {
    return;
  }
  // The ranks that abort leave at once. If only the pair hangs, its reason is that of the whole.
  for (const bool both_hang : {true, false}) {
    CAPTURE(both_hang);
    CHECK_NOTHROW(with_ranks(topology, [both_hang](Rank& rank) {
      const int me = rank.group->rank();
      const auto pair = rank.factory.make({me / 2 * 2, me / 2 * 2 + 1}, "pair", rank.group.get());
      const auto data = rank.device().allocate(128, "test values");
      rank.group->barrier()->wait_released();  // all are connected
      if (me % 2 == 0) {
        try {
          pair->all_reduce(data->as<float>(), 16, DType::float32, 1.0F);
          if (both_hang) {
            rank.group->all_reduce(data->as<float>() + 16, 16, DType::float32, 1.0F);
          }
        } catch (const Error& error) {  // the abort came before the call
          expect(error.code() == Errc::collective, "another error");
        }
      } else {
        rank.group->abort("rank 1 or 3 is out of memory", acc::Errc::collective);
      }
      rank.device().synchronize();
      const auto reason = rank.group->failure();
      expect(reason == "rank 1 or 3 is out of memory",
             "another reason: " + reason.value_or("none"));
    }));
  }
}

TEST_CASE("a background error of NCCL ends the group on every rank") {
  if (std::getenv("ACC_CUDA_BACKEND") == nullptr) {
    return;  // only the stand-in fails on demand
  }
  ::setenv("ACC_STANDIN_NCCL_FAIL", "1:3", 1);
  const Topology topology{"nccl of 3", 3, DeviceCollectives::nccl};
  with_ranks(topology, [](Rank& rank) {
    const auto data = rank.device().allocate(64, "test values");
    rank.group->barrier()->wait_released();  // all are connected
    try {
      for (int i = 0; i < 4; ++i) {
        rank.group->all_reduce(data->as<float>(), 16, DType::float32, 1.0F)->wait();
      }
      rank.device().synchronize();
    } catch (const Error& error) {
      expect(error.code() == Errc::collective, "another error");
    }
    const auto reason = rank.group->failure();
    expect(reason && reason->find("NCCL failed") != std::string::npos &&
               reason->find("remote process error") != std::string::npos,
           "another reason: " + reason.value_or("none"));
  });
  ::unsetenv("ACC_STANDIN_NCCL_FAIL");
}
