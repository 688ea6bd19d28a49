// SPDX-License-Identifier: Apache-2.0
#include "doctor/alone.hpp"

#include "acc/rendezvous/main_process.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace acc::doctor {
namespace {

constexpr std::chrono::seconds kLoneResolveLimit{5};
constexpr std::chrono::seconds kLoneConnectLimit{5};

bool is_own(const std::string& address, const MachineFacts& own) {
  return is_loopback(address) || std::ranges::any_of(own.interfaces, [&](const Interface& each) {
           return std::ranges::find(each.addresses, address) != each.addresses.end();
         });
}

Finding meeting_finding(Severity severity, std::string kind, std::string what,
                        std::string what_to_do) {
  return {severity, std::move(kind), {0}, std::move(what), std::move(what_to_do)};
}

/// Finding for one attempt to connect to the main process.
Finding finding_of(const MeetingPlace& place, const Attempt& attempt) {
  const std::string where = fmt::format("{}:{} ({})", place.host, place.port, attempt.address);
  switch (attempt.reached) {
    case Reached::yes:
      return meeting_finding(
          Severity::note, "main_process_answers",
          where + " accepts connections from here: another machine is missing, or was late",
          "Look at the launchers of the other machines; machine 0's launcher names the missing "
          "one.");
    case Reached::refused:
      return meeting_finding(
          Severity::error, "main_process_refuses",
          where + " refuses the connection: no process listens there (ECONNREFUSED)",
          "Machine 0's launcher has ended, was never started, or uses another port; or the "
          "address belongs to another machine. While it waits, ss -ltn on it shows the port.");
    case Reached::no_route:
      return meeting_finding(
          Severity::error, "main_process_unreachable", "no route to " + where,
          "Compare --main_process_ip with machine 0's addresses (ip address) and this machine's "
          "routes (ip route get ADDRESS).");
    default:
      return meeting_finding(
          Severity::error, "main_process_unreachable",
          where + " does not answer (timeout): packets are dropped on the way",
          "Allow TCP to that port in machine 0's firewall and in the cloud's security group, or "
          "name an open one with --main_process_port on all machines.");
  }
}

}  // namespace

MeetingPlace look_at(const std::string& host, std::uint16_t port, bool serves) {
  MeetingPlace place{.host = host, .port = port, .serves = serves, .name = {}, .attempts = {}};
  place.name = resolve({host}, kLoneResolveLimit)[host];
  std::vector<Target> targets;
  for (const std::string& address : place.name.addresses) {
    targets.push_back({address, port});
  }
  if (!serves) {
    place.attempts = connect_to(targets, kLoneConnectLimit);
  }
  return place;
}

std::vector<Finding> meeting_findings(const MeetingPlace& place, const MachineFacts& own) {
  std::vector<Finding> found;
  const std::vector<std::string>& addresses = place.name.addresses;
  if (addresses.empty()) {
    const auto unknown = rendezvous::main_process_unknown(place.host, place.name.failure);
    return {
        meeting_finding(Severity::error, "main_process_unknown", unknown.what, unknown.what_to_do)};
  }
  // An address is here if it is a loopback address or belongs to an interface of this machine.
  const bool leads_here =
      std::ranges::all_of(addresses, [&](const std::string& each) { return is_own(each, own); });
  if (place.serves &&
      std::ranges::none_of(addresses, [&](const auto& each) { return is_own(each, own); })) {
    const auto elsewhere = rendezvous::main_process_elsewhere(place.host, addresses);
    found.push_back(meeting_finding(Severity::error, "main_process_elsewhere", elsewhere.what,
                                    elsewhere.what_to_do));
  } else if (!place.serves && leads_here) {
    found.push_back(meeting_finding(
        Severity::error, "main_process_is_here",
        fmt::format("this is not machine 0, but --main_process_ip {} resolves to {}, which "
                    "is this machine",
                    place.host, fmt::join(addresses, ", ")),
        "Correct --machine_rank, or the name in this machine's /etc/hosts."));
  }
  for (const Attempt& each : place.attempts) {
    found.push_back(finding_of(place, each));
  }
  return found;
}

}  // namespace acc::doctor
