// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "doctor/findings.hpp"

#include <string>
#include <utility>

namespace acc::doctor {

/// A machine without any fault.
inline MachineFacts sound_machine(int machine) {
  MachineFacts facts;
  facts.machine = machine;
  facts.host = "node" + std::to_string(machine);
  facts.boot_id = "boot" + std::to_string(machine);
  facts.kernel = "6.1.0";
  facts.architecture = "x86_64";
  facts.acclaunch_version = "1.0";
  facts.address = "10.0.0." + std::to_string(machine + 1);
  facts.name_resolves_to = {facts.address};
  facts.interfaces = {
      {.name = "eth0", .addresses = {facts.address}, .mtu = 1500, .speed_mbps = 10000}};
  facts.port_low = 32768;
  facts.port_high = 60999;
  facts.ports = {32768, 50000};
  facts.token = 7U + static_cast<unsigned>(machine);
  facts.cpus = 8;
  facts.memory_total = facts.memory_available = std::int64_t{64} << 30;
  facts.shm_total = facts.shm_free = std::int64_t{32} << 30;
  facts.nofile = 65536;
  facts.memlock = facts.nproc = kUnlimited;
  return facts;
}

inline Examination sound_job(int count) {
  Examination job;
  job.main_process = "node0:29500";
  for (int machine = 0; machine < count; ++machine) {
    job.machines.emplace_back(sound_machine(machine));
  }
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) {
      if (from == to) {
        continue;
      }
      PairFacts pair;
      pair.from = from;
      pair.to = to;
      const MachineFacts& other = *job.machines[static_cast<std::size_t>(to)];
      pair.name_resolves_to = {other.address};
      for (const std::uint16_t port : other.ports) {
        pair.attempts.push_back({other.address, port, Reached::yes});
      }
      pair.clock_offset_ms = 0.0;
      pair.round_trip_us = 100.0;
      pair.latency_us = 50.0;
      pair.bandwidth_gbps = 9.0;
      job.pairs.push_back(pair);
    }
  }
  return job;
}

inline PairFacts& pair_of(Examination& job, int from, int to) {
  return const_cast<PairFacts&>(*std::as_const(job).pair(from, to));
}

inline MachineFacts& machine_of(Examination& job, int machine) {
  return *job.machines[static_cast<std::size_t>(machine)];
}

}  // namespace acc::doctor
