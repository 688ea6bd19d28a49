// SPDX-License-Identifier: Apache-2.0
// A rank on a GPU that runs a collective with its peers. Then rank VICTIM kills itself. The others
// wait for it on the GPU only, without communication between their hosts, and must name the missing
// rank.
//   nccl_probe VICTIM
#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/environment.hpp"
#include "collectives/make_group.hpp"
#include "device/open_device.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

int main(int, char** argv) try {
  auto settings = acc::settings::settings_from_environment(acc::settings::current_environment());
  settings.device = acc::settings::Device::cuda;
  const auto store = acc::collectives::connect_store(settings.identity);
  const auto opened = acc::device::open_device(settings);
  const acc::collectives::GroupFactory factory(settings, store.get(), opened.device,
                                               opened.backend);
  std::vector<int> ranks(static_cast<std::size_t>(settings.identity.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = factory.make(ranks, "probe");
  const auto data = group->allocate_contribution(4000);
  group->all_reduce(data->as<float>(), 1000, acc::DType::float32, 1.0F)->wait();
  opened.device->synchronize();
  group->barrier()->wait_released();
  if (settings.identity.rank == std::atoi(argv[1])) {
    ::kill(::getpid(), SIGKILL);
  }
  group->all_reduce(data->as<float>(), 1000, acc::DType::float32, 1.0F)->wait();
  opened.device->synchronize();  // returns because the watch aborts the collective
  const auto reason = group->failure();
  if (!reason) {
    group->barrier()->wait_released();  // a rank that left earlier would look like a failed one
  }
  std::fprintf(stderr, "%s\n", reason ? reason->c_str() : "nothing was wrong");
  return reason ? 42 : 0;
} catch (const acc::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 42;
}
