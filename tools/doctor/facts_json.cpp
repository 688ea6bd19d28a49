// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"

#include <array>

namespace acc::doctor {
namespace {

using Json = nlohmann::ordered_json;

// Every field is required; an unknown value is null. A missing field or a wrong type is an error of
// nlohmann::json, which `decoded` translates.
template <typename T>
Json or_null(const std::optional<T>& value) {
  return value ? Json(*value) : Json(nullptr);
}

template <typename T>
void read(const Json& from, const char* key, T& into) {
  from.at(key).get_to(into);
}

template <typename T>
void read(const Json& from, const char* key, std::optional<T>& into) {
  const Json& value = from.at(key);
  into = value.is_null() ? std::nullopt : std::optional<T>(value.get<T>());
}

Reached reached_of(const std::string& name) {
  for (const Reached each : {Reached::yes, Reached::refused, Reached::no_answer, Reached::no_route,
                             Reached::silent, Reached::other}) {
    if (name == to_string(each)) {
      return each;
    }
  }
  throw Error(Errc::protocol, "doctor: unknown result of an attempt to connect: " + name);
}

Json to_json(const Interface& interface) {
  return {{"name", interface.name},
          {"addresses", interface.addresses},
          {"mtu", interface.mtu},
          {"speed_mbps", or_null(interface.speed_mbps)}};
}

Json to_json(const Attempt& attempt) {
  return {{"address", attempt.address},
          {"port", attempt.port},
          {"reached", std::string(to_string(attempt.reached))}};
}

void read_network(const Json& json, MachineFacts& facts) {
  read(json, "address", facts.address);
  read(json, "name_resolves_to", facts.name_resolves_to);
  for (const Json& each : json.at("interfaces")) {
    Interface interface;
    read(each, "name", interface.name);
    read(each, "addresses", interface.addresses);
    read(each, "mtu", interface.mtu);
    read(each, "speed_mbps", interface.speed_mbps);
    facts.interfaces.push_back(std::move(interface));
  }
  read(json, "port_low", facts.port_low);
  read(json, "port_high", facts.port_high);
  read(json, "ports", facts.ports);
  read(json, "token", facts.token);
  read(json, "has_infiniband", facts.has_infiniband);
}

void read_resources(const Json& json, MachineFacts& facts) {
  read(json, "cpus", facts.cpus);
  read(json, "cpu_quota", facts.cpu_quota);
  read(json, "memory_total", facts.memory_total);
  read(json, "memory_available", facts.memory_available);
  read(json, "memory_limit", facts.memory_limit);
  read(json, "shm_total", facts.shm_total);
  read(json, "shm_free", facts.shm_free);
  read(json, "nofile", facts.nofile);
  read(json, "memlock", facts.memlock);
  read(json, "nproc", facts.nproc);
}

MachineFacts machine_of(const Json& json) {
  MachineFacts facts;
  read(json, "machine", facts.machine);
  read(json, "host", facts.host);
  read(json, "boot_id", facts.boot_id);
  read(json, "kernel", facts.kernel);
  read(json, "architecture", facts.architecture);
  read(json, "acclaunch_version", facts.acclaunch_version);
  read(json, "driver_version", facts.driver_version);
  read(json, "cuda_version", facts.cuda_version);
  read(json, "nccl_version", facts.nccl_version);
  read(json, "gpus", facts.gpus);
  read(json, "visible_devices", facts.visible_devices);
  read_network(json, facts);
  read_resources(json, facts);
  return facts;
}

PairFacts pair_of(const Json& json) {
  PairFacts pair;
  read(json, "from", pair.from);
  read(json, "to", pair.to);
  read(json, "name_resolves_to", pair.name_resolves_to);
  read(json, "name_failure", pair.name_failure);
  for (const Json& each : json.at("attempts")) {
    pair.attempts.push_back({each.at("address").get<std::string>(),
                             each.at("port").get<std::uint16_t>(),
                             reached_of(each.at("reached").get<std::string>())});
  }
  read(json, "clock_offset_ms", pair.clock_offset_ms);
  read(json, "round_trip_us", pair.round_trip_us);
  read(json, "latency_us", pair.latency_us);
  read(json, "bandwidth_gbps", pair.bandwidth_gbps);
  read(json, "measured_again", pair.measured_again);
  read(json, "failure", pair.failure);
  return pair;
}

/// Serializes JSON. Bytes of a host name or an error message that are not UTF-8 are replaced.
std::string text_of(const Json& json) {
  return text_of_json(json, -1, ' ', false, Json::error_handler_t::replace);
}

template <typename Read>
auto decoded(const std::string& text, const Read& read_all) {
  try {
    return read_all(json_from_text<Json>(text));
  } catch (const nlohmann::json::exception& error) {
    throw Error(Errc::protocol,
                std::string("doctor: cannot parse a machine's facts: ") + error.what());
  }
}

}  // namespace

Json to_json(const MachineFacts& facts) {
  Json interfaces = Json::array();
  for (const Interface& each : facts.interfaces) {
    interfaces.push_back(to_json(each));
  }
  return {{"machine", facts.machine},
          {"host", facts.host},
          {"boot_id", facts.boot_id},
          {"kernel", facts.kernel},
          {"architecture", facts.architecture},
          {"acclaunch_version", facts.acclaunch_version},
          {"driver_version", facts.driver_version},
          {"cuda_version", facts.cuda_version},
          {"nccl_version", facts.nccl_version},
          {"gpus", facts.gpus},
          {"visible_devices", facts.visible_devices},
          {"address", facts.address},
          {"name_resolves_to", facts.name_resolves_to},
          {"interfaces", std::move(interfaces)},
          {"port_low", facts.port_low},
          {"port_high", facts.port_high},
          {"ports", facts.ports},
          {"token", facts.token},
          {"has_infiniband", facts.has_infiniband},
          {"cpus", facts.cpus},
          {"cpu_quota", or_null(facts.cpu_quota)},
          {"memory_total", facts.memory_total},
          {"memory_available", facts.memory_available},
          {"memory_limit", facts.memory_limit},
          {"shm_total", facts.shm_total},
          {"shm_free", facts.shm_free},
          {"nofile", facts.nofile},
          {"memlock", facts.memlock},
          {"nproc", facts.nproc}};
}

Json to_json(const PairFacts& pair) {
  Json attempts = Json::array();
  for (const Attempt& each : pair.attempts) {
    attempts.push_back(to_json(each));
  }
  return {{"from", pair.from},
          {"to", pair.to},
          {"name_resolves_to", pair.name_resolves_to},
          {"name_failure", pair.name_failure},
          {"attempts", std::move(attempts)},
          {"clock_offset_ms", or_null(pair.clock_offset_ms)},
          {"round_trip_us", or_null(pair.round_trip_us)},
          {"latency_us", or_null(pair.latency_us)},
          {"bandwidth_gbps", or_null(pair.bandwidth_gbps)},
          {"measured_again", pair.measured_again},
          {"failure", pair.failure}};
}

std::string encode(const MachineFacts& facts) {
  return text_of(to_json(facts));
}

std::string encode(const std::vector<PairFacts>& pairs) {
  Json all = Json::array();
  for (const PairFacts& each : pairs) {
    all.push_back(to_json(each));
  }
  return text_of(all);
}

MachineFacts decode_machine(const std::string& text) {
  return decoded(text, machine_of);
}

std::vector<PairFacts> decode_pairs(const std::string& text) {
  return decoded(text, [](const Json& all) {
    if (!all.is_array()) {
      throw Error(Errc::protocol, "doctor: a machine's pairs are not a list");
    }
    std::vector<PairFacts> pairs;
    for (const Json& each : all) {
      pairs.push_back(pair_of(each));
    }
    return pairs;
  });
}

}  // namespace acc::doctor
