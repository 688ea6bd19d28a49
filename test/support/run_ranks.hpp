// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "acc/rendezvous/hash_store.hpp"
#include "acc/settings/sharding_settings.hpp"

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace acc::test {

/// Settings shared by the ranks of a test job.
struct Job {
  int world_size = 1;
  int num_machines = 1;
  settings::ShardingSettings sharding = {};
  bool copy_gathers = false;
  settings::Device device = settings::Device::cpu;
  settings::DeviceCollectives device_collectives = settings::DeviceCollectives::automatic;
  settings::NcclOptions nccl = {};
  std::chrono::seconds timeout{60};
  std::vector<int> machine_sizes = {};  ///< ranks of each machine; empty: equally many
};

inline Job job_of(settings::Strategy strategy, int world_size, int num_machines = 1) {
  Job job{.world_size = world_size, .num_machines = num_machines};
  job.sharding.strategy = strategy;
  return job;
}

inline settings::RuntimeSettings settings_of(const Job& job, int rank) {
  settings::RuntimeSettings settings;
  int local = job.world_size / job.num_machines;
  int machine = rank / local;
  int local_rank = rank % local;
  if (!job.machine_sizes.empty()) {
    local_rank = rank;
    machine = 0;
    for (const int size : job.machine_sizes) {
      local = size;
      if (local_rank < size) {
        break;
      }
      local_rank -= size;
      ++machine;
    }
  }
  settings.identity = {.rank = rank,
                       .local_rank = local_rank,
                       .world_size = job.world_size,
                       .local_world_size = local,
                       .local_world_sizes = job.machine_sizes,
                       .node_rank = machine,
                       .num_nodes = job.num_machines,
                       .master_addr = "127.0.0.1",
                       .master_port = 29500};
  settings.sharding = job.sharding;
  settings.copy_gathers = job.copy_gathers;
  settings.device = job.device;
  settings.device_collectives = job.device_collectives;
  settings.nccl = job.nccl;
  settings.share_gpus = true;
  settings.collective_timeout = job.timeout;
  return settings;
}

/// Runs `body` once per rank, each on its own thread with its own handle to one in-process store.
/// After all threads have ended, rethrows the exception of the lowest rank that failed.
inline void run_ranks(const Job& job,
                      const std::function<void(const settings::RuntimeSettings&,
                                               std::unique_ptr<rendezvous::Store>)>& body) {
  rendezvous::HashStore store;
  std::vector<std::exception_ptr> failures(static_cast<std::size_t>(job.world_size));
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < job.world_size; ++rank) {
      threads.emplace_back([&, rank, handle = store.clone()]() mutable {
        try {
          body(settings_of(job, rank), std::move(handle));
        } catch (...) {
          failures[static_cast<std::size_t>(rank)] = std::current_exception();
        }
      });
    }
  }
  for (const auto& failure : failures) {
    if (failure) {
      std::rethrow_exception(failure);
    }
  }
}

}  // namespace acc::test
