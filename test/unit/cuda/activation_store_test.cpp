// SPDX-License-Identifier: Apache-2.0
#include "api/activation_store.hpp"

#include "gpu.hpp"

#include <doctest/doctest.h>

#include <memory>
#include <vector>

using acc::detail::ActivationStore;
using acc::test::random_values;
using acc::test::same_bits;

namespace {

constexpr std::size_t kNumel = 16 * 1024;
constexpr std::size_t kNbytes = kNumel * sizeof(float);
constexpr unsigned kCount = 12;

std::vector<float> read(acc::device::Device& gpu, const void* from) {
  std::vector<float> values(kNumel);
  gpu.copy(values.data(), from, kNbytes, gpu.compute());
  gpu.record(gpu.compute())->synchronize();
  return values;
}

}  // namespace

TEST_CASE("activations of a GPU: kept there or on the host, whatever the program does meanwhile") {
  for (const bool offload : {false, true}) {
    CAPTURE(offload);
    const auto gpu = acc::test::open_gpu().device;
    const auto store = std::make_shared<ActivationStore>(gpu, offload);
    const acc::test::OnDevice<float> x(*gpu, random_values(kNumel, 0));
    const auto before = gpu->memory();
    for (int micro_step = 0; micro_step < 2; ++micro_step) {
      std::vector<std::unique_ptr<ActivationStore::Kept>> kept;
      std::vector<std::vector<float>> expected;
      for (unsigned each = 0; each < kCount; ++each) {
        expected.push_back(random_values(kNumel, each));
        gpu->copy(x.data(), expected.back().data(), kNbytes, gpu->compute());
        kept.push_back(std::make_unique<ActivationStore::Kept>(store, x.data(), kNbytes));
      }
      const auto held = gpu->memory();
      const auto pieces = [](std::int64_t nbytes) {
        return nbytes / static_cast<std::int64_t>(kNbytes);
      };
      const std::int64_t on_gpu = pieces(held.allocated - before.allocated);
      // Two copies to the host and two back are in flight.
      CHECK((offload ? on_gpu <= 4 : on_gpu == kCount));
      CHECK(pieces(held.host_allocated - before.host_allocated) == (offload ? kCount : 0));
      for (unsigned left = kCount; left-- > 0;) {
        if (left > 0 && left % 2 == 0) {
          kept[left - 1]->prefetch();
        }
        const std::vector<float> found = read(*gpu, kept[left]->restore());
        CHECK(same_bits(found, expected[left]));
        kept.pop_back();
      }
    }
  }
}

TEST_CASE("activations of a GPU that are never fetched, or whose copy to the host is in flight") {
  const auto gpu = acc::test::open_gpu().device;
  const auto store = std::make_shared<ActivationStore>(gpu, true);
  const std::vector<float> values = random_values(kNumel, 1);
  const acc::test::OnDevice<float> x(*gpu, values);
  for (int each = 0; each < 6; ++each) {
    ActivationStore::Kept kept(store, x.data(), kNbytes);
    if (each % 2 == 0) {
      kept.prefetch();
    }
  }
  ActivationStore::Kept wanted(store, x.data(), kNbytes);
  gpu->zero(x.data(), kNbytes, gpu->compute());
  CHECK(same_bits(read(*gpu, wanted.restore()), values));
}
