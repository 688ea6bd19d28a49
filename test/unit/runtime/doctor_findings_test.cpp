// SPDX-License-Identifier: Apache-2.0
#include "unit/runtime/doctor_fixture.hpp"

#include <doctest/doctest.h>

#include <algorithm>
#include <functional>

using namespace acc::doctor;

namespace {

struct Case {
  const char* kind;
  Severity severity;
  std::vector<int> machines;
  const char* words;  ///< words that the finding contains
  std::function<void(Examination&)> spoil;
};

void block(PairFacts& pair, Reached reached) {
  for (Attempt& each : pair.attempts) {
    each.reached = reached;
  }
}

void set_figures(Examination& job, int a, int b, double latency_us, double bandwidth_gbps) {
  for (PairFacts* each : {&pair_of(job, a, b), &pair_of(job, b, a)}) {
    each->latency_us = latency_us;
    each->bandwidth_gbps = bandwidth_gbps;
  }
}

void set_clock(Examination& job, int machine, double ahead_ms) {
  for (PairFacts& each : job.pairs) {
    if (each.to == machine) {
      each.clock_offset_ms = ahead_ms;
    } else if (each.from == machine) {
      each.clock_offset_ms = -ahead_ms;
    }
  }
}

const std::vector<Case> kCases = {
    {"no_facts",
     Severity::error,
     {2},
     "machine 2",
     [](Examination& job) {
       job.machines[2].reset();
       std::erase_if(job.pairs, [](const auto& each) { return each.from == 2 || each.to == 2; });
     }},
    {"little_shm",
     Severity::warning,
     {1},
     "node1: 0.06 of 32.00 GiB",
     [](Examination& job) { machine_of(job, 1).shm_free = 64 << 20; }},
    {"no_gpu_in_container",
     Severity::warning,
     {2},
     "node2: no GPU and no libcuda.so.1, although NVIDIA_VISIBLE_DEVICES=all",
     [](Examination& job) {
       for (auto& each : job.machines) {
         each->driver_version = "580.1";
         each->visible_devices = each->machine == 2 ? "all" : "void";
       }
     }},
    {"little_memory",
     Severity::warning,
     {0, 3},
     "node0: 1.00 of 64.00 GiB",
     [](Examination& job) {
       machine_of(job, 0).memory_available = machine_of(job, 3).memory_available = 1 << 30;
     }},
    {"few_open_files",
     Severity::warning,
     {2},
     "at most 1024 open files",
     [](Examination& job) { machine_of(job, 2).nofile = 1024; }},
    {"few_processes",
     Severity::warning,
     {2},
     "at most 100",
     [](Examination& job) { machine_of(job, 2).nproc = 100; }},
    {"little_locked_memory",
     Severity::warning,
     {1},
     "8388608 bytes",
     [](Examination& job) {
       machine_of(job, 1).memlock = machine_of(job, 2).memlock = 8 << 20;
       machine_of(job, 1).has_infiniband = true;
     }},
    {"loopback_address",
     Severity::error,
     {0},
     "127.0.1.1",
     [](Examination& job) {
       machine_of(job, 0).address = "127.0.1.1";
       for (PairFacts& each : job.pairs) {
         if (each.to == 0) {
           each.attempts.clear();
         }
       }
       machine_of(job, 0).interfaces.push_back(
           {.name = "lo", .addresses = {"127.0.1.1"}, .mtu = 1500, .speed_mbps = 10000});
     }},
    {"name_loopback",
     Severity::warning,
     {3},
     "its own name resolves to 127.0.1.1",
     [](Examination& job) { machine_of(job, 3).name_resolves_to = {"127.0.1.1"}; }},
    {"name_loopback",
     Severity::warning,
     {0, 2, 3},
     "on node0, node2 the name node3",
     [](Examination& job) {
       pair_of(job, 0, 3).name_resolves_to = pair_of(job, 2, 3).name_resolves_to = {"127.0.0.1"};
     }},
    {"name_unknown",
     Severity::warning,
     {1, 0},
     "no such name",
     [](Examination& job) {
       pair_of(job, 1, 0).name_resolves_to.clear();
       pair_of(job, 1, 0).name_failure = "no such name";
     }},
    {"name_elsewhere",
     Severity::warning,
     {1, 0},
     "none of that machine's addresses",
     [](Examination& job) { pair_of(job, 1, 0).name_resolves_to = {"10.9.9.9"}; }},
    {"names_differ",
     Severity::warning,
     {0},
     "10.0.0.1 or 10.1.0.1",
     [](Examination& job) {
       machine_of(job, 0).interfaces[0].addresses.emplace_back("10.1.0.1");
       pair_of(job, 1, 0).name_resolves_to = {"10.1.0.1"};
     }},
    {"same_name",
     Severity::warning,
     {1, 2},
     "all have the host name node1",
     [](Examination& job) { machine_of(job, 2).host = "node1"; }},
    {"same_machine",
     Severity::note,
     {1, 2},
     "are the same one: node1",
     [](Examination& job) {
       machine_of(job, 2).host = "node1";
       machine_of(job, 2).boot_id = "boot1";
     }},
    {"acclaunch_versions",
     Severity::error,
     {0, 1, 2, 3},
     "1.0 on node0, node1, node3; 1.1 on node2",
     [](Examination& job) { machine_of(job, 2).acclaunch_version = "1.1"; }},
    {"nccl_versions",
     Severity::error,
     {0, 1, 2, 3},
     "none on node0, node1, node2; 2.28.3 on node3",
     [](Examination& job) { machine_of(job, 3).nccl_version = "2.28.3"; }},
    {"driver_versions",
     Severity::warning,
     {0, 1, 2, 3},
     "570.1 on node0",
     [](Examination& job) { machine_of(job, 0).driver_version = "570.1"; }},
    {"gpus",
     Severity::warning,
     {0, 1, 2, 3},
     "2 x H200 on node1",
     [](Examination& job) {
       machine_of(job, 1).gpus = {"H200", "H200"};
     }},
    {"architectures",
     Severity::error,
     {0, 1, 2, 3},
     "aarch64 on node1",
     [](Examination& job) { machine_of(job, 1).architecture = "aarch64"; }},
    {"kernels",
     Severity::note,
     {0, 1, 2, 3},
     "6.8.0 on node1",
     [](Examination& job) { machine_of(job, 1).kernel = "6.8.0"; }},
    {"mtu",
     Severity::warning,
     {0, 1, 2, 3},
     "9000 bytes on node2",
     [](Examination& job) { machine_of(job, 2).interfaces[0].mtu = 9000; }},
    {"interface_speed",
     Severity::warning,
     {0, 1, 2, 3},
     "1000 Mbit/s on node2",
     [](Examination& job) { machine_of(job, 2).interfaces[0].speed_mbps = 1000; }},
    {"port_blocked",
     Severity::error,
     {3, 1},
     "the other direction works",
     [](Examination& job) {
       block(pair_of(job, 3, 1), Reached::no_answer);
       pair_of(job, 3, 1).failure = pair_of(job, 1, 3).failure = "no connection";
       pair_of(job, 3, 1).bandwidth_gbps = pair_of(job, 1, 3).bandwidth_gbps = std::nullopt;
     }},
    {"port_blocked",
     Severity::error,
     {0, 2, 3, 1},
     "node0, node2, node3 cannot connect to node1",
     [](Examination& job) {
       for (const int from : {0, 2, 3}) {
         block(pair_of(job, from, 1), Reached::refused);
       }
     }},
    {"port_blocked",
     Severity::error,
     {0, 1},
     "port 50000: ",
     [](Examination& job) { pair_of(job, 0, 1).attempts[1].reached = Reached::no_answer; }},
    {"no_reply",
     Severity::error,
     {0, 1},
     "does not answer",
     [](Examination& job) { block(pair_of(job, 0, 1), Reached::silent); }},
    {"no_route",
     Severity::error,
     {0, 1},
     "no route",
     [](Examination& job) { block(pair_of(job, 0, 1), Reached::no_route); }},
    {"wrong_machine",
     Severity::error,
     {0, 1},
     "another program or machine answers",
     [](Examination& job) { block(pair_of(job, 0, 1), Reached::other); }},
    {"collective_failed",
     Severity::error,
     {1, 2},
     "lost it",
     [](Examination& job) {
       pair_of(job, 1, 2).failure = "lost it";
       pair_of(job, 1, 2).bandwidth_gbps = pair_of(job, 2, 1).bandwidth_gbps = std::nullopt;
     }},
    {"clock_skew",
     Severity::warning,
     {0},
     "node0 is 2.0 s ahead of",
     [](Examination& job) { set_clock(job, 0, 2000); }},
    {"clock_skew",
     Severity::error,
     {2},
     "node2 is 90.0 s behind",
     [](Examination& job) { set_clock(job, 2, -90'000); }},
    {"slow_pair",
     Severity::warning,
     {0, 2},
     "50 us, 1 Gbit/s",
     [](Examination& job) { set_figures(job, 0, 2, 50, 1); }},
    {"slow_pair",
     Severity::warning,
     {1, 3},
     "900 us, 9 Gbit/s",
     [](Examination& job) { set_figures(job, 1, 3, 900, 9); }},
    {"slow_machine",
     Severity::warning,
     {3},
     "50 us, 1 Gbit/s with node0",
     [](Examination& job) {
       for (const int other : {0, 1, 2}) {
         set_figures(job, other, 3, 50, 1);
       }
     }},
};

}  // namespace

TEST_CASE("a healthy job has no findings") {
  for (const int count : {1, 2, 3, 4, 9}) {
    CHECK(findings(sound_job(count)).empty());
  }
}

TEST_CASE("each fault gives one finding with advice") {
  for (const Case& each : kCases) {
    CAPTURE(each.kind);
    CAPTURE(each.words);
    Examination job = sound_job(4);
    each.spoil(job);
    const std::vector<Finding> found = findings(job);
    REQUIRE(found.size() == 1);
    CHECK(found[0].kind == each.kind);
    CHECK(found[0].severity == each.severity);
    CHECK(found[0].machines == each.machines);
    CAPTURE(found[0].what);
    CHECK(found[0].what.find(each.words) != std::string::npos);
    CHECK_FALSE(found[0].what_to_do.empty());
  }
}

TEST_CASE("small differences between machines give no finding") {
  Examination job = sound_job(4);
  set_figures(job, 0, 1, 249, 4.6);
  set_clock(job, 2, 99);
  CHECK(findings(job).empty());
}

TEST_CASE("two machines are not compared with others") {
  Examination job = sound_job(2);
  set_figures(job, 0, 1, 90'000, 0.001);
  CHECK(findings(job).empty());
}

TEST_CASE("errors come first") {
  Examination job = sound_job(3);
  machine_of(job, 1).kernel = "6.8.0";
  machine_of(job, 1).nofile = 256;
  machine_of(job, 1).acclaunch_version = "2.0";
  const std::vector<Finding> found = findings(job);
  REQUIRE(found.size() == 3);
  CHECK(std::ranges::is_sorted(found, {}, &Finding::severity));
  CHECK(found[0].kind == "acclaunch_versions");
}
