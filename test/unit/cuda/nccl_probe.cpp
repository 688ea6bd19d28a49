// A rank on a GPU that meets its peers and then, if it is the chosen one, dies without a word; the
// others wait for it on the GPU, without a word to each other, and must say who is missing.
//   nccl_probe VICTIM
#include "acc/base/error.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/make_group.hpp"
#include "device/open_device.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

int main(int, char** argv) try {
  auto settings = acc::plugins::settings_from_environment(acc::plugins::current_environment());
  settings.device = acc::plugins::Device::cuda;
  const auto store = acc::collectives::connect_store(settings.identity);
  const auto opened = acc::device::open_device(settings);
  const acc::collectives::GroupFactory factory(settings, store.get(), opened.device,
                                               opened.backend);
  std::vector<int> ranks(static_cast<std::size_t>(settings.identity.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group = factory.make(ranks, "probe");
  const auto data = group->allocate_contribution(4000);
  group->all_reduce(data->as<float>(), 1000, 1.0F)->wait();
  opened.device->synchronize();
  group->barrier()->wait_released();
  if (settings.identity.rank == std::atoi(argv[1])) {
    ::kill(::getpid(), SIGKILL);
  }
  group->all_reduce(data->as<float>(), 1000, 1.0F)->wait();
  opened.device->synchronize();  // returns, for the watch ends what cannot end
  const auto reason = group->failure();
  if (!reason) {
    group->barrier()->wait_released();  // who leaves before looks like one that failed
  }
  std::fprintf(stderr, "%s\n", reason ? reason->c_str() : "nothing was wrong");
  return reason ? 42 : 0;
} catch (const acc::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 42;
}
