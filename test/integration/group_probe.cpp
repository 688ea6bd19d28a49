// SPDX-License-Identifier: Apache-2.0
// A rank that joins its group and runs a few collectives. The rank at fault misbehaves as its
// argument says. A rank whose collective fails prints the error and exits with 42.
//   group_probe RANK [killed|exits|fails|stops|other|size|late]
#include "acc/base/error.hpp"
#include "acc/rendezvous/store.hpp"
#include "acc/settings/environment.hpp"
#include "collectives/make_group.hpp"
#include "device/cpu_device.hpp"
#include "flight/recorder.hpp"
#include "sharding/groups.hpp"

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

using Clock = std::chrono::system_clock;

long long milliseconds() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
      .count();
}

/// Action of the rank at fault while the others call all_reduce of 1000 elements.
void be_at_fault(const std::string& how, acc::collectives::ProcessGroup& group,
                 std::vector<float>& data) {
  std::fprintf(stderr, "at fault at %lld ms\n", milliseconds());
  if (how == "killed") {
    ::kill(::getpid(), SIGKILL);
  } else if (how == "exits") {
    std::exit(0);
  } else if (how == "fails") {
    throw std::runtime_error("a mistake of the program");
  } else if (how == "stops") {
    ::kill(::getpid(), SIGSTOP);
  } else if (how == "other") {
    group.broadcast(data.data(), data.size() * sizeof(float), 0)->wait();
  } else if (how == "size") {
    group.all_reduce(data.data(), data.size() / 2, acc::DType::float32, 1.0F)->wait();
  } else if (how == "late") {
    ::sleep(1000);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto settings =
      acc::settings::settings_from_environment(acc::settings::current_environment());
  const auto store = acc::collectives::connect_store(settings.identity);
  auto groups =
      acc::sharding::make_groups(settings, store.get(), {acc::device::open_cpu_device(), nullptr});
  groups.record(
      std::make_shared<acc::flight::Recorder>(settings.flight_record, settings.identity.rank),
      nullptr);
  auto& group = *groups.world;
  group.barrier()->wait_released();
  std::vector<float> data(1000, 1.0F);
  try {
    for (int step = 0; step < 3; ++step) {
      const acc::flight::Scope scope(groups.recorder.get(), "backward",
                                     "transformer.h." + std::to_string(step));
      if (step == 2 && settings.identity.rank == std::atoi(argv[1])) {
        be_at_fault(argc > 2 ? argv[2] : "killed", group, data);
      }
      group.all_reduce(data.data(), data.size(), acc::DType::float32, 1.0F)->wait();
    }
    group.barrier()->wait();
  } catch (const acc::Error& error) {
    std::fprintf(stderr, "%s\ntold at %lld ms\n", error.what(), milliseconds());
    return 42;
  }
  return 0;
}
