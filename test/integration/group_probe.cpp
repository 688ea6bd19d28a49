// A rank that meets its peers and then, if it is the chosen one, dies without a word; the others
// wait for it in a collective and must say who is missing.  group_probe VICTIM
#include "acc/base/error.hpp"
#include "acc/plugins/environment.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/make_group.hpp"
#include "device/cpu_device.hpp"

#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <vector>

int main(int, char** argv) {
  const auto settings =
      acc::plugins::settings_from_environment(acc::plugins::current_environment());
  const auto store = acc::collectives::connect_store(settings.identity);
  std::vector<int> ranks(static_cast<std::size_t>(settings.identity.world_size));
  std::iota(ranks.begin(), ranks.end(), 0);
  const auto group =
      acc::collectives::GroupFactory(settings, store.get(), acc::device::open_cpu_device(), nullptr)
          .make(ranks, "probe");
  group->barrier()->wait_released();
  if (settings.identity.rank == std::atoi(argv[1])) {
    ::kill(::getpid(), SIGKILL);
  }
  std::vector<float> data(1000, 1.0F);
  try {
    group->all_reduce(data.data(), data.size(), 1.0F)->wait();
    group->barrier()->wait();
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 42;
  }
  return 0;
}
