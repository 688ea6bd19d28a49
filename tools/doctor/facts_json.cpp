// SPDX-License-Identifier: Apache-2.0
#include "doctor/facts_json.hpp"

#include "acc/base/error.hpp"
#include "acc/base/json.hpp"

#include <array>
#include <concepts>
#include <type_traits>

namespace acc::doctor {
namespace {

using Json = nlohmann::ordered_json;

template <typename T, typename Facts>
concept Is = std::same_as<std::remove_const_t<T>, Facts>;

// Call `field` with the name and the value of each member, in the order of the JSON object.
void visit(Is<Interface> auto& of, const auto& field) {
  field("name", of.name);
  field("addresses", of.addresses);
  field("mtu", of.mtu);
  field("speed_mbps", of.speed_mbps);
}

void visit(Is<MachineFacts> auto& of, const auto& field) {
  field("machine", of.machine);
  field("host", of.host);
  field("boot_id", of.boot_id);
  field("kernel", of.kernel);
  field("architecture", of.architecture);
  field("acclaunch_version", of.acclaunch_version);
  field("driver_version", of.driver_version);
  field("cuda_version", of.cuda_version);
  field("nccl_version", of.nccl_version);
  field("gpus", of.gpus);
  field("visible_devices", of.visible_devices);
  field("address", of.address);
  field("name_resolves_to", of.name_resolves_to);
  field("interfaces", of.interfaces);
  field("port_low", of.port_low);
  field("port_high", of.port_high);
  field("ports", of.ports);
  field("token", of.token);
  field("has_infiniband", of.has_infiniband);
  field("cpus", of.cpus);
  field("cpu_quota", of.cpu_quota);
  field("memory_total", of.memory_total);
  field("memory_available", of.memory_available);
  field("memory_limit", of.memory_limit);
  field("shm_total", of.shm_total);
  field("shm_free", of.shm_free);
  field("nofile", of.nofile);
  field("memlock", of.memlock);
  field("nproc", of.nproc);
}

void visit(Is<Attempt> auto& of, const auto& field) {
  field("address", of.address);
  field("port", of.port);
  field("reached", of.reached);
}

void visit(Is<PairFacts> auto& of, const auto& field) {
  field("from", of.from);
  field("to", of.to);
  field("name_resolves_to", of.name_resolves_to);
  field("name_failure", of.name_failure);
  field("attempts", of.attempts);
  field("clock_offset_ms", of.clock_offset_ms);
  field("round_trip_us", of.round_trip_us);
  field("latency_us", of.latency_us);
  field("bandwidth_gbps", of.bandwidth_gbps);
  field("measured_again", of.measured_again);
  field("failure", of.failure);
}

template <typename T>
concept HasFields = Is<T, Interface> || Is<T, MachineFacts> || Is<T, Attempt> || Is<T, PairFacts>;

/// Returns the JSON of a value. An unknown one is null.
struct Writer {
  Json operator()(const auto& value) const { return value; }
  Json operator()(Reached value) const { return std::string(to_string(value)); }
  template <typename T>
  Json operator()(const std::optional<T>& value) const {
    return value ? (*this)(*value) : Json(nullptr);
  }
  template <HasFields T>
  Json operator()(const std::vector<T>& values) const {
    Json all = Json::array();
    for (const T& each : values) {
      all.push_back((*this)(each));
    }
    return all;
  }
  Json operator()(const HasFields auto& facts) const {
    Json object = Json::object();
    visit(facts,
          [&](const char* name, const auto& value) { object[name] = Writer::operator()(value); });
    return object;
  }
};

/// Reads a value. Every field is required. A missing one or a wrong type is an error of
/// nlohmann::json, which `decoded` translates.
struct Reader {
  void operator()(const Json& from, auto& into) const { from.get_to(into); }
  void operator()(const Json& from, Reached& into) const {
    const auto name = from.get<std::string>();
    for (const Reached each : {Reached::yes, Reached::refused, Reached::no_answer,
                               Reached::no_route, Reached::silent, Reached::other}) {
      if (name == to_string(each)) {
        into = each;
        return;
      }
    }
    throw Error(Errc::protocol, "doctor: unknown result of an attempt to connect: " + name);
  }
  template <typename T>
  void operator()(const Json& from, std::optional<T>& into) const {
    if (!from.is_null()) {
      (*this)(from, into.emplace());
    }
  }
  template <HasFields T>
  void operator()(const Json& from, std::vector<T>& into) const {
    if (!from.is_array()) {
      throw Error(Errc::protocol, "doctor: a machine's facts have no list where one belongs");
    }
    for (const Json& each : from) {
      (*this)(each, into.emplace_back());
    }
  }
  void operator()(const Json& from, HasFields auto& into) const {
    visit(into, [&](const char* name, auto& value) { Reader::operator()(from.at(name), value); });
  }
};

template <typename Facts>
std::string encoded(const Facts& facts) {
  // Bytes of a host name or an error message that are not UTF-8 are replaced.
  return lossy_text_of_json(Writer()(facts), -1);
}

template <typename Facts>
Facts decoded(const std::string& text) {
  Facts facts;
  try {
    Reader()(json_from_text<Json>(text), facts);
  } catch (const nlohmann::json::exception& error) {
    throw Error(Errc::protocol,
                std::string("doctor: cannot parse a machine's facts: ") + error.what());
  }
  return facts;
}

}  // namespace

Json to_json(const MachineFacts& facts) {
  return Writer()(facts);
}

Json to_json(const PairFacts& pair) {
  return Writer()(pair);
}

std::string encode(const MachineFacts& facts) {
  return encoded(facts);
}

std::string encode(const std::vector<PairFacts>& pairs) {
  return encoded(pairs);
}

MachineFacts decode_machine(const std::string& text) {
  return decoded<MachineFacts>(text);
}

std::vector<PairFacts> decode_pairs(const std::string& text) {
  return decoded<std::vector<PairFacts>>(text);
}

}  // namespace acc::doctor
