// SPDX-License-Identifier: Apache-2.0
#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/call_difference.hpp"
#include "collectives/gloo/all_reduce.hpp"
#include "collectives/make_group.hpp"
#include "collectives/staged/staged_group.hpp"
#include "device/cpu_device.hpp"
#include "kernels/block_code.hpp"
#include "support/run_ranks.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <latch>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace {

using acc::DType;
using acc::ReduceOp;
using acc::collectives::GroupFactory;
using acc::collectives::ProcessGroup;
using acc::collectives::StagedGroup;
using acc::test::Job;

struct Topology {
  const char* name;
  int world_size;
  int num_machines;
  bool copy_gathers = false;
  bool staged = false;
};

// One rank, shm only, shm with copies, gloo only, both levels; each also below device staging.
constexpr Topology kTopologies[] = {{"solo", 1, 1},
                                    {"shm of 2", 2, 1},
                                    {"shm of 3", 3, 1},
                                    {"shm of 4, copying", 4, 1, true},
                                    {"gloo of 2", 2, 2},
                                    {"gloo of 3", 3, 3},
                                    {"2 hosts of 2", 4, 2},
                                    {"3 hosts of 2", 6, 3},
                                    {"staged over shm of 3", 3, 1, false, true},
                                    {"staged over copying shm of 2", 2, 1, true, true},
                                    {"staged over gloo of 2", 2, 2, false, true},
                                    {"staged over 2 hosts of 2", 4, 2, false, true}};

/// Values of a 16-bit format, as bit patterns.
struct Half {
  DType dtype;
  std::uint16_t one, infinity, nan;
};
constexpr Half kHalves[] = {{DType::bfloat16, 0x3f80, 0x7f80, 0x7fc0},
                            {DType::float16, 0x3c00, 0x7c00, 0x7e00}};

/// Small, so that most cases need many chunks.
constexpr std::size_t kChunkNbytes = 8192;

/// ends: the body aborts the group itself. check: GroupSpec::check.
void with_groups(const Topology& topology, const std::function<void(ProcessGroup&)>& body,
                 bool ends = false, std::chrono::seconds timeout = std::chrono::seconds(60),
                 const std::function<void()>& check = {}) {
  Job job{.world_size = topology.world_size,
          .num_machines = topology.num_machines,
          .sharding = {},
          .copy_gathers = topology.copy_gathers,
          .timeout = timeout};
  acc::test::run_ranks(job, [&](const auto& settings, auto store) {
    std::vector<int> ranks(static_cast<std::size_t>(topology.world_size));
    std::iota(ranks.begin(), ranks.end(), 0);
    const auto cpu = acc::device::open_cpu_device();
    const GroupFactory factory(settings, store.get(), cpu, nullptr, check);
    std::shared_ptr<ProcessGroup> group = factory.make(ranks, "test");
    if (topology.staged) {
      group = std::make_shared<StagedGroup>(group, cpu, kChunkNbytes);
    }
    group->barrier()->wait_released();  // no rank fails while another one still connects
    body(*group);
    if (!ends) {
      group->barrier()->wait_released();
    }
  });
}

float element(int rank, std::size_t i) {
  return static_cast<float>(rank + 1) * (1.0F + static_cast<float>(i % 97) / 8.0F);
}

std::vector<float> elements(int rank, std::size_t numel) {
  std::vector<float> all(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    all[i] = element(rank, i);
  }
  return all;
}

/// By bytes, which takes no time also with the sanitizers.
bool equal(const float* found, std::span<const float> expected) {
  return std::memcmp(found, expected.data(), expected.size_bytes()) == 0;
}

float sum_of(int size, std::size_t i) {
  float sum = 0.0F;
  for (int r = 0; r < size; ++r) {
    sum += element(r, i);
  }
  return sum;
}

std::vector<float> sums_of(int size, std::size_t numel) {
  std::vector<float> all(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    all[i] = sum_of(size, i);
  }
  return all;
}

// doctest's macros are not thread-safe; a failed expectation is passed on as an exception.
void expect(bool condition, std::string_view what) {
  if (!condition) {
    throw std::runtime_error(std::string(what));
  }
}

bool near(float a, float b) {
  return std::abs(a - b) <= 1e-5F * std::max(1.0F, std::abs(b));
}

}  // namespace

TEST_CASE("all_gather: private and group memory, odd and large shards") {
  for (const Topology& topology : kTopologies) {
    for (const std::size_t numel : {std::size_t{1}, std::size_t{77}, std::size_t{300'001}}) {
      CAPTURE(topology.name);
      CAPTURE(numel);
      std::vector<float> expected;
      for (int rank = 0; rank < topology.world_size; ++rank) {
        const std::vector<float> shard = elements(rank, numel);
        expected.insert(expected.end(), shard.begin(), shard.end());
      }
      CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
        const auto check = [&](const float* all) { expect(equal(all, expected), "wrong element"); };
        const std::vector<float> shard = elements(group.rank(), numel);
        std::vector<float> out(expected.size());
        group.all_gather(shard.data(), out.data(), numel * sizeof(float))->wait();
        check(out.data());

        const auto gathered = group.allocate_gathered(out.size() * sizeof(float));
        for (int round = 0; round < 3; ++round) {
          group.all_gather(shard.data(), gathered->data(), numel * sizeof(float))->wait();
          check(gathered->as<float>());
          group.release_gathered(gathered);
          group.barrier()->wait();
        }
        const auto contribution = group.allocate_contribution(numel * sizeof(float));
        std::copy(shard.begin(), shard.end(), contribution->as<float>());
        std::fill(out.begin(), out.end(), -1.0F);
        group.all_gather(contribution->data(), out.data(), numel * sizeof(float))->wait_released();
        check(out.data());
      }));
    }
  }
}

TEST_CASE("reduce_scatter: scale, accumulate, in place, 16 bits with infinities and NaN") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    CHECK_NOTHROW(with_groups(topology, [](ProcessGroup& group) {
      const std::size_t numel = 1'003;
      const auto size = static_cast<std::size_t>(group.size());
      const std::size_t first = numel * static_cast<std::size_t>(group.rank());
      const auto in = group.allocate_contribution(numel * size * sizeof(float));
      const auto fill = [&] {
        for (std::size_t i = 0; i < numel * size; ++i) {
          in->as<float>()[i] = element(group.rank(), i);
        }
      };
      fill();
      std::vector<float> out(numel, 1.0F);
      group
          .reduce_scatter(in->data(), out.data(), numel, DType::float32,
                          {.scale = 0.5F, .accumulate = true})
          ->wait_released();
      for (std::size_t i = 0; i < numel; ++i) {
        expect(near(out[i], 1.0F + 0.5F * sum_of(group.size(), first + i)), "wrong sum");
      }
      float* const own = in->as<float>() + first;
      group.reduce_scatter(in->data(), own, numel, DType::float32, {})->wait_released();
      for (std::size_t i = 0; i < numel; ++i) {
        expect(near(own[i], sum_of(group.size(), first + i)), "wrong sum in place");
      }
      fill();
      auto* const half = in->as<std::uint16_t>();
      for (const Half& each : kHalves) {
        std::fill_n(half, numel * size, each.one);
        if (group.rank() == 0) {  // in the slice of every rank
          for (std::size_t r = 0; r < size; ++r) {
            half[r * numel + 5] = each.infinity;
            half[r * numel + numel - 1] = each.nan;
          }
        }
        group.reduce_scatter(half, out.data(), numel, each.dtype, {.scale = 0.5F})->wait_released();
        for (std::size_t i = 0; i + 1 < numel; ++i) {
          expect(i == 5 ? std::isinf(out[i]) : out[i] == 0.5F * static_cast<float>(size),
                 "wrong 16-bit sum");
        }
        expect(std::isnan(out.back()), "NaN is lost");
      }
    }));
  }
}

TEST_CASE("all_reduce of arrays and doubles, and broadcast, agree on every rank") {
  for (const Topology& topology : kTopologies) {
    for (const std::size_t numel : {std::size_t{7}, std::size_t{48 * 6}, std::size_t{400'000}}) {
      CAPTURE(topology.name);
      CAPTURE(numel);
      const std::vector<float> sums = sums_of(topology.world_size, numel);
      CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
        const auto memory = group.allocate_contribution(numel * sizeof(float));
        std::vector<float> own(numel);
        for (float* data : {memory->as<float>(), own.data()}) {
          for (std::size_t i = 0; i < numel; ++i) {
            data[i] = element(group.rank(), i);
          }
          group.all_reduce(data, numel, acc::DType::float32, 2.0F)->wait_released();
          for (std::size_t i = 0; i < numel; ++i) {
            expect(near(data[i], 2.0F * sums[i]), "wrong sum");
          }
        }
        std::vector<double> figures = {1.0, static_cast<double>(group.rank())};
        group.all_reduce(figures, ReduceOp::sum)->wait();
        expect(figures[0] == group.size(), "wrong count");
        figures[1] = group.rank();
        group.all_reduce(figures, ReduceOp::max)->wait();
        expect(figures[1] == group.size() - 1, "wrong maximum");
        const int root = group.size() - 1;
        std::vector<float> of_root(numel);
        std::iota(of_root.begin(), of_root.end(), 0.0F);
        if (group.rank() == root) {
          own = of_root;
        }
        group.broadcast(own.data(), numel * sizeof(float), root)->wait();
        expect(equal(own.data(), of_root), "wrong broadcast");
      }));
    }
  }
}

namespace {

/// Numbers of both signs, of another size on each rank.
std::vector<float> signed_elements(int rank, std::size_t numel) {
  std::vector<float> all(numel);
  for (std::size_t i = 0; i < numel; ++i) {
    all[i] = static_cast<float>(rank + 1) * std::sin(static_cast<float>(i * i + 1));
  }
  return all;
}

/// The numbers as another machine reads them.
std::vector<float> read_from(acc::BlockCode code, const std::vector<float>& values) {
  std::vector<std::byte> coded(acc::kernels::coded_nbytes(code, values.size()));
  std::vector<float> read(values.size());
  acc::kernels::encode(code, values.data(), DType::float32, values.size(), coded.data());
  acc::kernels::decode(code, coded.data(), 0, values.size(), read.data(), DType::float32);
  return read;
}

/// Sums over the ranks of a machine of elements [first, first + numel).
std::vector<float> machine_sums(const Topology& topology, int machine, std::size_t first,
                                std::size_t numel) {
  const int ranks = topology.world_size / topology.num_machines;
  std::vector<float> sums(numel);
  for (int local = 0; local < ranks; ++local) {
    const auto values = signed_elements(machine * ranks + local, first + numel);
    for (std::size_t i = 0; i < numel; ++i) {
      sums[i] += values[first + i];
    }
  }
  return sums;
}

/// Gathers `data` and compares that of all ranks.
void expect_same_on_all(ProcessGroup& group, const std::vector<float>& data) {
  std::vector<float> all(data.size() * static_cast<std::size_t>(group.size()));
  group.all_gather(data.data(), all.data(), data.size() * sizeof(float))->wait_released();
  for (std::size_t i = 0; i < all.size(); i += data.size()) {
    expect(equal(all.data() + i, data), "ranks have different numbers");
  }
}

constexpr acc::BlockCode kEight{.bits = 8};
constexpr acc::BlockCode kSevenRotated{.bits = 7, .rotated = true};

}  // namespace

TEST_CASE("coded all_gather: all ranks read what other machines read, one machine is exact") {
  for (const Topology& topology : kTopologies) {
    for (const std::size_t numel : {std::size_t{1}, std::size_t{77}, std::size_t{30'001}}) {
      for (const DType dtype : {DType::float32, DType::bfloat16}) {
        CAPTURE(topology.name);
        CAPTURE(numel);
        CAPTURE(std::string(to_string(dtype)));
        CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
          expect(group.spans_machines() == (topology.num_machines > 1), "machines");
          const auto width = nbytes_of(dtype);
          std::vector<float> shard = signed_elements(group.rank(), numel);
          std::vector<std::byte> sent(numel * width);
          acc::kernels::cast(shard.data(), DType::float32, sent.data(), dtype, numel);
          const auto ranks = static_cast<std::size_t>(group.size());
          std::vector<std::byte> out(sent.size() * ranks);
          const auto gathered = group.allocate_gathered(out.size());
          for (std::byte* const to : {out.data(), gathered->data(), gathered->data()}) {
            const std::int64_t before = group.sent().gathered;
            group.all_gather_coded(sent.data(), to, numel, dtype, kEight)->wait_released();
            const std::int64_t nbytes = group.sent().gathered - before;
            std::vector<float> read(numel * ranks);
            acc::kernels::cast(to, dtype, read.data(), DType::float32, read.size());
            for (std::size_t i = 0; i < read.size(); ++i) {
              const auto rank = static_cast<int>(i / numel);
              const float exact = static_cast<float>(rank + 1) *
                                  std::sin(static_cast<float>((i % numel) * (i % numel) + 1));
              // Half a step of the largest number, and the rounding to bfloat16, twice.
              const float step = topology.num_machines > 1 ? 1.0F / 253.0F : 1e-9F;
              const float rounding = dtype == DType::bfloat16 ? 0x1p-7F : 1e-7F;
              // Private memory is exchanged in blocks of a whole machine.
              const float largest = to == out.data() ? static_cast<float>(group.size())
                                                     : static_cast<float>(rank + 1);
              expect(std::abs(read[i] - exact) <=
                         step * largest + rounding * std::abs(exact) * (1.0F + step),
                     "outside of the bound");
            }
            expect_same_on_all(group, read);
            // A rank of a pair of machines sends its shard once.
            if (topology.num_machines == 2 && to != out.data() && !topology.staged) {
              expect(nbytes == static_cast<std::int64_t>((numel + 255) / 256 * 260), "bytes");
            }
            expect(topology.num_machines > 1 || nbytes == 0, "bytes within a machine");
            if (to == gathered->data()) {
              group.release_gathered(gathered);
            }
          }
        }));
      }
    }
  }
}

TEST_CASE("coded reduce_scatter: only the sums of other machines are rounded") {
  for (const Topology& topology : kTopologies) {
    if (topology.staged) {  // codes each chunk
      continue;
    }
    CAPTURE(topology.name);
    CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
      const std::size_t numel = 9'003;
      const auto ranks = static_cast<std::size_t>(group.size());
      const auto in = group.allocate_contribution(numel * ranks * sizeof(float));
      const auto values = signed_elements(group.rank(), numel * ranks);
      std::copy(values.begin(), values.end(), in->as<float>());
      const std::size_t first = numel * static_cast<std::size_t>(group.rank());
      const int own = group.rank() / (topology.world_size / topology.num_machines);
      std::vector<float> expected(numel);
      for (int machine = 0; machine < topology.num_machines; ++machine) {
        auto sums = machine_sums(topology, machine, first, numel);
        sums = machine == own ? sums : read_from(kSevenRotated, sums);
        for (std::size_t i = 0; i < numel; ++i) {
          expected[i] += sums[i];
        }
      }
      std::vector<float> out(numel, 1.0F);
      const acc::collectives::ReduceOptions options{
          .scale = 0.5F, .accumulate = true, .code = kSevenRotated};
      const std::int64_t before = group.sent().reduced;
      group.reduce_scatter(in->data(), out.data(), numel, DType::float32, options)->wait_released();
      for (std::size_t i = 0; i < numel; ++i) {
        expect(std::abs(out[i] - (1.0F + 0.5F * expected[i])) <=
                   1e-5F * static_cast<float>(topology.world_size),
               "wrong sum");
      }
      if (topology.num_machines == 2) {
        expect(
            group.sent().reduced - before == static_cast<std::int64_t>((numel + 255) / 256 * 228),
            "bytes");
      }
      // In place, with a NaN of one rank in the slice of every rank, in 16 bits too.
      for (std::size_t r = 0; group.rank() == 0 && r < ranks; ++r) {
        in->as<float>()[r * numel + 5] = std::nanf("");
      }
      float* const slice = in->as<float>() + first;
      group.reduce_scatter(in->data(), slice, numel, DType::float32, {.code = kSevenRotated})
          ->wait_released();
      expect(std::isnan(slice[5]) && std::isfinite(slice[numel - 1]), "NaN is lost");
      auto* const half = in->as<std::uint16_t>();
      std::fill_n(half, numel * ranks, kHalves[0].one);
      for (std::size_t r = 0; group.rank() == 0 && r < ranks; ++r) {
        half[r * numel + 5] = kHalves[0].infinity;
      }
      group.reduce_scatter(half, out.data(), numel, DType::bfloat16, {.code = kSevenRotated})
          ->wait_released();
      expect(!std::isfinite(out[5]), "infinity is lost");
      // All numbers of a block are alike, so its rotation is one number, which is exact but for
      // float32.
      expect(std::abs(out[numel - 1000] - static_cast<float>(ranks)) < 1e-4F, "wrong 16-bit sum");
    }));
  }
}

TEST_CASE("coded all_reduce: the same sums on all ranks, within the bound") {
  for (const Topology& topology : kTopologies) {
    for (const std::size_t numel : {std::size_t{7}, std::size_t{48 * 6}, std::size_t{40'000}}) {
      CAPTURE(topology.name);
      CAPTURE(numel);
      std::vector<float> exact(numel);
      double bound = 0.0;
      for (int rank = 0; rank < topology.world_size; ++rank) {
        const auto values = signed_elements(rank, numel);
        for (std::size_t i = 0; i < numel; ++i) {
          exact[i] += values[i];
        }
        bound += (rank + 1) / 253.0;  // half a step: of a machine's sum at most this, and again
      }
      bound = topology.num_machines == 1 ? 1e-5 : 2.0 * bound;
      CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
        std::vector<float> data = signed_elements(group.rank(), numel);
        group.all_reduce_coded(data.data(), numel, DType::bfloat16, 0.5F, kEight)->wait_released();
        for (std::size_t i = 0; i < numel; ++i) {
          expect(std::abs(data[i] - 0.5F * exact[i]) <= 0.5 * bound, "outside of the bound");
        }
        expect_same_on_all(group, data);
        data = signed_elements(group.rank(), numel);
        if (group.rank() == group.size() - 1) {
          data[numel / 2] = std::numeric_limits<float>::infinity();
        }
        group.all_reduce_coded(data.data(), numel, DType::float32, 1.0F, kEight)->wait_released();
        expect(!std::isfinite(data[numel / 2]), "infinity is lost");
        expect(topology.world_size == 1 || numel < 40'000 || std::isfinite(data[0]),
               "spreads too far");
      }));
    }
  }
}

TEST_CASE("all_reduce in 16 bits: other hosts get rounded numbers, all ranks the same sums") {
  for (const Topology& topology : kTopologies) {
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const std::size_t numel : {std::size_t{7}, std::size_t{48 * 6}, std::size_t{400'000}}) {
        CAPTURE(topology.name);
        CAPTURE(std::string(to_string(dtype)));
        CAPTURE(numel);
        const std::vector<float> sums = sums_of(topology.world_size, numel);
        CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
          const float epsilon = topology.num_machines == 1 ? 1e-5F
                                : dtype == DType::bfloat16 ? 0x1p-8F
                                                           : 0x1p-11F;
          const auto memory = group.allocate_contribution(numel * sizeof(float));
          float* const data = memory->as<float>();
          for (std::size_t i = 0; i < numel; ++i) {
            data[i] = element(group.rank(), i);
          }
          // The sum of a host exceeds float16, the mean over all ranks does not.
          data[0] = 60'000.0F;
          const float mean = 1.0F / static_cast<float>(group.size());
          group.all_reduce(data, numel, dtype, mean)->wait_released();
          expect(std::abs(data[0] - 60'000.0F) <= epsilon * 60'000.0F, "wrong large sum");
          for (std::size_t i = 1; i < numel; ++i) {
            const float expected = sums[i] * mean;
            expect(std::abs(data[i] - expected) <= epsilon * expected, "wrong sum");
          }
          const std::size_t nbytes = numel * sizeof(float);
          std::vector<float> all(numel * static_cast<std::size_t>(group.size()));
          group.all_gather(data, all.data(), nbytes)->wait_released();
          for (std::size_t i = 0; i < all.size(); i += numel) {
            expect(equal(all.data() + i, {data, numel}), "ranks have different sums");
          }
        }));
      }
    }
  }
}

TEST_CASE("a peer that issues another collective is named, and no rank hangs") {
  for (const Topology& topology :
       {kTopologies[1], kTopologies[4], kTopologies[6], kTopologies[8]}) {
    CAPTURE(topology.name);
    std::mutex mutex;
    std::vector<std::string> named;
    std::vector<std::string> unnamed;
    CHECK_THROWS_AS(
        with_groups(topology,
                    [&](ProcessGroup& group) {
                      std::vector<float> data(64);
                      try {
                        if (group.rank() == 1) {
                          group.all_reduce(data.data(), 32, acc::DType::float32, 1.0F)->wait();
                        } else {
                          group.all_reduce(data.data(), 64, acc::DType::float32, 1.0F)->wait();
                        }
                      } catch (const acc::Error& error) {
                        const std::string text = error.what();
                        const std::lock_guard lock(mutex);
                        (text.find("rank") != std::string::npos ? named : unnamed).push_back(text);
                        throw;
                      }
                    }),
        acc::Error);
    CHECK(named.size() == static_cast<std::size_t>(topology.world_size));
    CHECK(unnamed == std::vector<std::string>{});
  }
}

TEST_CASE("collectives of several kinds under way at once keep their order") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    CHECK_NOTHROW(with_groups(topology, [](ProcessGroup& group) {
      const std::size_t numel = 5'000;
      const auto size = static_cast<std::size_t>(group.size());
      const auto shard = group.allocate_contribution(numel * sizeof(float));
      const auto in = group.allocate_contribution(numel * size * sizeof(float));
      const auto all = group.allocate_gathered(numel * size * sizeof(float));
      std::vector<float> out(numel);
      std::vector<double> figures = {static_cast<double>(group.rank())};
      for (int round = 1; round <= 3; ++round) {
        std::fill_n(shard->as<float>(), numel, static_cast<float>(round + group.rank()));
        std::fill_n(in->as<float>(), numel * size, static_cast<float>(round));
        figures[0] = 1.0;
        const auto gathering = group.all_gather(shard->data(), all->data(), numel * sizeof(float));
        const auto reducing =
            group.reduce_scatter(in->data(), out.data(), numel, DType::float32, {.scale = 2.0F});
        const auto counting = group.all_reduce(figures, ReduceOp::sum);
        const auto meeting = group.barrier();
        meeting->wait();
        counting->wait();
        reducing->wait_released();
        gathering->wait_released();
        expect(figures[0] == group.size(), "wrong count");
        for (std::size_t i = 0; i < numel; ++i) {
          expect(near(out[i], 2.0F * static_cast<float>(round) * static_cast<float>(size)),
                 "wrong sum");
        }
        for (std::size_t i = 0; i < numel * size; ++i) {
          expect(all->as<float>()[i] == static_cast<float>(round) + static_cast<float>(i / numel),
                 "wrong element");
        }
        group.release_gathered(all);
        group.barrier()->wait();
      }
    }));
  }
}

TEST_CASE("sums over Gloo proceed on a rank that computes") {
  for (const Topology& topology : {kTopologies[4], kTopologies[5]}) {
    CAPTURE(topology.name);
    std::atomic<int> waiting = topology.world_size - 1;
    CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
      const std::size_t numel = 6'000;
      const auto size = static_cast<std::size_t>(group.size());
      std::vector<float> in(numel * size, static_cast<float>(group.rank() + 1));
      std::vector<float> out(numel);
      std::vector<float> data(numel, static_cast<float>(group.rank() + 1));
      const auto scattering =
          group.reduce_scatter(in.data(), out.data(), numel, DType::float32, {});
      const auto reducing = group.all_reduce(data.data(), numel, DType::float32, 1.0F);
      while (group.rank() == 0 && waiting > 0) {
        std::this_thread::yield();
      }
      scattering->wait();
      reducing->wait();
      --waiting;
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      expect(std::ranges::count(out, sum) == std::ssize(out), "wrong sum of reduce_scatter");
      expect(std::ranges::count(data, sum) == std::ssize(data), "wrong sum of all_reduce");
    }));
  }
}

TEST_CASE("reductions over hosts of several ranks proceed on a rank that calls progress") {
  for (const Topology& topology : {kTopologies[6], kTopologies[7]}) {
    CAPTURE(topology.name);
    std::atomic<int> waiting = topology.world_size - 1;
    CHECK_NOTHROW(with_groups(topology, [&](ProcessGroup& group) {
      const std::size_t numel = 6'000;
      const auto size = static_cast<std::size_t>(group.size());
      const auto in = group.allocate_contribution(numel * size * sizeof(float));
      std::vector<std::vector<float>> outs(3, std::vector<float>(numel));
      std::fill_n(in->as<float>(), numel * size, static_cast<float>(group.rank() + 1));
      std::vector<acc::collectives::WorkPtr> reductions;
      reductions.reserve(outs.size());
      for (auto& out : outs) {
        reductions.push_back(
            group.reduce_scatter(in->data(), out.data(), numel, DType::float32, {}));
      }
      while (group.rank() == 0 && waiting > 0) {
        group.progress();
        std::this_thread::yield();
      }
      for (std::size_t i = 0; i < outs.size(); ++i) {
        // Ranks of one column issue their steps in different orders.
        reductions[group.rank() % 2 == 0 ? i : outs.size() - 1 - i]->wait();
      }
      --waiting;
      const auto sum = static_cast<float>(size * (size + 1) / 2);
      for (const auto& out : outs) {
        expect(std::ranges::count(out, sum) == std::ssize(out), "wrong sum");
      }
    }));
  }
}

TEST_CASE("failure() returns on every rank, from any thread, why the group ended") {
  for (const Topology& topology : kTopologies) {
    CAPTURE(topology.name);
    CHECK_NOTHROW(with_groups(
        topology,
        [](ProcessGroup& group) {
          expect(!group.failure(), "failed before anything happened");
          group.barrier()->wait_released();
          if (group.rank() == 0) {
            group.abort("rank 0 gave up", acc::Errc::collective);
          }
          std::optional<std::string> reason;
          std::thread([&] {
            while (!(reason = group.failure())) {
              std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
          }).join();
          group.abort(*reason, acc::Errc::collective);  // as a rank does before it leaves
          expect(*reason == "rank 0 gave up", "another reason: " + *reason);
        },
        true));
  }
}

TEST_CASE("a change of the job's members ends waits and is a failure of every group") {
  for (const Topology& topology : kTopologies) {
    if (topology.world_size == 1) {
      continue;
    }
    CAPTURE(topology.name);
    std::atomic<bool> has_changed = false;
    std::atomic<int> ended = 0;
    const auto check = [&] {
      if (has_changed) {
        throw acc::Error(acc::Errc::peer_lost, "machine 7 is lost");
      }
    };
    CHECK_NOTHROW(with_groups(
        topology,
        [&](ProcessGroup& group) {
          if (group.rank() == 0) {  // which takes part in nothing
            has_changed = true;
            expect(group.failure() == "machine 7 is lost", "no failure, or another one");
            for (int seen = ended; seen < group.size() - 1; seen = ended) {
              ended.wait(seen);
            }
            return;
          }
          std::optional<acc::Errc> code;
          try {
            group.barrier()->wait();
          } catch (const acc::Error& error) {
            code = error.code();
          }
          ++ended;
          ended.notify_all();
          expect(code == acc::Errc::peer_lost, "another error, or none");
        },
        true, std::chrono::seconds(60), check));
  }
}

TEST_CASE("the reason of another rank does not move the terminal's cursor") {
  for (const Topology& topology : kTopologies) {
    if (topology.world_size == 1) {
      continue;
    }
    CAPTURE(topology.name);
    CHECK_NOTHROW(with_groups(
        topology,
        [](ProcessGroup& group) {
          if (group.rank() == 0) {
            group.abort("gave up \x1b[2J\nall is well", acc::Errc::collective);
          }
          std::optional<std::string> reason;
          while (!(reason = group.failure())) {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
          }
          group.abort(*reason, acc::Errc::collective);  // as a rank does before it leaves
          expect(group.rank() == 0 || *reason == "gave up \\x1b[2J\\x0aall is well", *reason);
        },
        true));
  }
}

TEST_CASE("among different collectives, the one of the fewest ranks is reported as the fault") {
  const struct {
    std::map<std::string, std::vector<int>> ranks_by_call;
    std::optional<int> at_fault;
    const char* calls;
  } cases[] = {
      {{{"barrier", {2}}, {"all_gather", {0, 1, 3}}},
       2,
       "rank 2 calls barrier, ranks 0-1,3 call all_gather"},
      {{{"barrier", {0}}, {"all_gather", {1, 2}}},
       0,
       "rank 0 calls barrier, ranks 1-2 call all_gather"},
      {{{"barrier", {0}}, {"all_gather", {1}}},
       std::nullopt,
       "rank 1 calls all_gather, rank 0 calls barrier"},
      {{{"barrier", {0, 1}}, {"all_gather", {2, 3}}, {"broadcast", {4}}},
       std::nullopt,
       "rank 4 calls broadcast, ranks 2-3 call all_gather, ranks 0-1 call barrier"},
  };
  for (const auto& each : cases) {
    CAPTURE(each.calls);
    const auto difference = acc::collectives::call_difference(7, "shm", each.ranks_by_call);
    CHECK(difference.reason == "collective number 7 of shm differs: " + std::string(each.calls));
    CHECK(difference.at_fault == each.at_fault);
  }
}

TEST_CASE("a timeout in any collective blames the rank that does not come") {
  using Array = std::vector<float>;
  struct Call {
    const char* name;
    std::function<acc::collectives::WorkPtr(ProcessGroup&, Array&)> issue;
  };
  constexpr std::size_t kNumel = 3 << 17;
  std::vector<Call> calls = {
      {"barrier", [](ProcessGroup& group, Array&) { return group.barrier(); }},
      {"all_gather",
       [](ProcessGroup& group, Array& data) {
         return group.all_gather(data.data(), data.data() + kNumel, kNumel);
       }},
      {"reduce_scatter",
       [](ProcessGroup& group, Array& data) {
         return group.reduce_scatter(data.data(), data.data() + kNumel, kNumel / 3, DType::float32,
                                     {});
       }},
      {"all_reduce", [](ProcessGroup& group, Array& data) {
         return group.all_reduce(data.data(), kNumel, DType::float32, 1.0F);
       }}};
  for (int root = 0; root < 3; ++root) {
    calls.push_back({"broadcast", [root](ProcessGroup& group, Array& data) {
                       return group.broadcast(data.data(), kNumel, root);
                     }});
  }
  struct Case {
    const Topology* topology;
    const Call* call;
    int absent;
    std::array<std::string, 3> errors = {};
    std::array<int, 3> blamed = {-1, -1, -1};
  };
  std::vector<Case> cases;
  for (const Topology* topology : {&kTopologies[2], &kTopologies[5]}) {
    for (const Call& call : calls) {
      for (int absent = 0; absent < 3; ++absent) {
        cases.push_back({topology, &call, absent});
      }
    }
  }
  {
    std::vector<std::jthread> all;  // at the same time, since each one takes the timeout
    for (Case& each : cases) {
      all.emplace_back([&each] {
        std::latch failed(2);
        with_groups(
            *each.topology,
            [&](ProcessGroup& group) {
              if (group.rank() == each.absent) {
                failed.wait();
                return;
              }
              const auto me = static_cast<std::size_t>(group.rank());
              Array data(2 * kNumel);
              try {
                each.call->issue(group, data)->wait();
                group.barrier()->wait();
              } catch (const acc::Error& error) {
                each.errors[me] = error.what();
                each.blamed[me] = error.rank().value_or(-1);
              }
              failed.count_down();
            },
            true, std::chrono::seconds(20));  // also how late the two others may be
      });
    }
  }
  for (const Case& each : cases) {
    CAPTURE(each.topology->name);
    CAPTURE(each.call->name);
    CAPTURE(each.absent);
    for (std::size_t r = 0; r < 3; ++r) {
      if (static_cast<int>(r) != each.absent) {
        CAPTURE(each.errors[r]);
        CHECK(each.blamed[r] == each.absent);
      }
    }
  }
}

TEST_CASE("all_reduce of a Gloo group: two phases if more than two ranks can divide the array") {
  const auto in_two_phases = [](std::size_t ranks, std::size_t numel) {
    return acc::collectives::choose_all_reduce(ranks, numel) ==
           acc::collectives::all_reduce_two_phase;
  };
  CHECK_FALSE(in_two_phases(2, 8));
  CHECK_FALSE(in_two_phases(3, 8));
  CHECK(in_two_phases(3, 9));
  CHECK(in_two_phases(4, 8));
}
