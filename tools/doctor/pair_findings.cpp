// SPDX-License-Identifier: Apache-2.0
// Findings about pairs of machines: connections, names, clocks, speed.
#include "doctor/findings.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

// Findings are grouped so that each cause is reported once: a blocked machine gives one finding for
// all machines that cannot reach it, and a failed collective is not reported for a pair that cannot
// connect at all.
namespace acc::doctor {
namespace {

Finding finding(Severity severity, std::string kind, std::vector<int> machines, std::string what,
                std::string what_to_do) {
  return {severity, std::move(kind), std::move(machines), std::move(what), std::move(what_to_do)};
}

std::string names_of(const Examination& examination, const std::vector<int>& machines) {
  std::vector<std::string> names;
  for (const int each : machines) {
    names.push_back(name_of(examination, each));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Attempts of a pair that were not answered, at the address that collectives publish.
struct Blocked {
  Reached reached = Reached::no_answer;  ///< result of the last one
  std::vector<std::uint16_t> ports;
  bool all = true;  ///< no attempt was answered

  auto operator<=>(const Blocked&) const = default;
};

/// Empty if all attempts were answered.
std::optional<Blocked> blocked(const PairFacts& pair, const MachineFacts& to) {
  Blocked result;
  for (const Attempt& each : pair.attempts) {
    if (each.address != to.address) {
      continue;
    }
    if (each.reached == Reached::yes) {
      result.all = false;
    } else {
      result.reached = each.reached;
      result.ports.push_back(each.port);
    }
  }
  return result.ports.empty() ? std::nullopt : std::optional(result);
}

/// Kind and texts of a finding.
struct Sentence {
  const char* kind;
  const char* what;
  const char* what_to_do;
};

Sentence sentence_of(Reached reached) {
  switch (reached) {
    case Reached::silent:
      return {
          "no_reply", "accepted, but the program there does not answer",
          "Look at the load of that machine; its processes may be frozen or waiting for a disk."};
    case Reached::refused:
      return {"port_blocked", "refused (ECONNREFUSED), though the doctor listens there",
              "A firewall rejects it, or the address belongs to another machine (NAT, a name "
              "shared by two machines): allow TCP between the job's machines, at all ports of "
              "net.ipv4.ip_local_port_range."};
    case Reached::no_route:
      return {"no_route", "no route to it, or a firewall rejects it as such",
              "Compare ip route and the firewalls of both machines; GLOO_SOCKET_IFNAME selects the "
              "interface whose network all machines share."};
    case Reached::other:
      return {"wrong_machine", "another program or machine answers",
              "The address belongs to another machine or a proxy: look for an address that is used "
              "twice, and at NAT."};
    default:
      return {"port_blocked", "no answer (timeout): packets are dropped on the way",
              "Allow TCP between the job's machines, in both directions and at all ports of "
              "net.ipv4.ip_local_port_range: collectives listen on ports that the system chooses. "
              "Check the firewall (nft list ruleset, firewall-cmd --list-all) and the cloud's "
              "security group."};
  }
}

using MachinePairs = std::set<std::pair<int, int>>;

/// Adds one finding for all machines that cannot reach a machine in the same way. Adds the pairs to
/// `explained`, so that their failed collectives are not reported too.
void add_unreachable(std::vector<Finding>& found, const Examination& examination,
                     MachinePairs& explained) {
  std::map<std::pair<int, Blocked>, std::vector<int>> groups;
  for (const PairFacts& pair : examination.pairs) {
    const auto& to = examination.machines[static_cast<std::size_t>(pair.to)];
    if (const auto how = to ? blocked(pair, *to) : std::nullopt) {
      groups[{pair.to, *how}].push_back(pair.from);
      explained.insert(std::minmax(pair.from, pair.to));
    }
  }
  for (const auto& [group, froms] : groups) {
    const auto& [to, how] = group;
    const auto& facts = *examination.machines[static_cast<std::size_t>(to)];
    const Sentence sentence = sentence_of(how.reached);
    const bool both_ways = std::ranges::all_of(froms, [&](int from) {
      const PairFacts* back = examination.pair(to, from);
      const auto& other = examination.machines[static_cast<std::size_t>(from)];
      return back != nullptr && other && !back->reaches(other->address);
    });
    Finding finding{Severity::error, sentence.kind, froms, "", sentence.what_to_do};
    finding.machines.push_back(to);
    finding.what =
        fmt::format("{} cannot connect to {} at {}, {} {}: {}{}", names_of(examination, froms),
                    name_of(examination, to), facts.address, how.all ? "any port; tried" : "port",
                    fmt::join(how.ports, ", "), sentence.what,
                    both_ways ? "; the other direction fails too" : "; the other direction works");
    found.push_back(std::move(finding));
  }
}

void add_failures(std::vector<Finding>& found, const Examination& examination,
                  const MachinePairs& explained) {
  MachinePairs told = explained;
  for (const PairFacts& pair : examination.pairs) {
    const auto both = std::minmax(pair.from, pair.to);
    if (!pair.failure.empty() && told.insert(both).second) {
      found.push_back(finding(
          Severity::error, "collective_failed", {both.first, both.second},
          fmt::format("a collective between {} and {} failed: {}", name_of(examination, pair.from),
                      name_of(examination, pair.to), pair.failure),
          "Run the doctor with these two machines alone and ACC_LOG_LEVEL=debug."));
    }
  }
}

/// Machines on which the host name of one machine does not resolve as it should.
struct NameViews {
  std::map<std::string, std::vector<int>> failures;  ///< machines by reason of the failed lookup
  std::vector<int> loopback, elsewhere;     ///< resolves to loopback, to addresses of no interface
  std::set<std::vector<std::string>> seen;  ///< all different results
};

/// Collects the lookups of one machine's host name by all other machines. Lookups on the same
/// physical machine do not count, because a loopback address is correct there.
NameViews views_of(const Examination& examination, const MachineFacts& named) {
  NameViews views;
  std::set<std::string> own;
  for (const Interface& each : named.interfaces) {
    own.insert(each.addresses.begin(), each.addresses.end());
  }
  for (const PairFacts& pair : examination.pairs) {
    const auto& from = examination.machines[static_cast<std::size_t>(pair.from)];
    if (pair.to != named.machine || !from || from->boot_id == named.boot_id) {
      continue;
    }
    const std::vector<std::string>& seen = pair.name_resolves_to;
    if (seen.empty()) {
      views.failures[pair.name_failure].push_back(pair.from);
    } else if (std::ranges::all_of(seen, is_loopback)) {
      views.loopback.push_back(pair.from);
    } else {
      views.seen.insert(seen);
      if (std::ranges::none_of(seen, [&](const auto& each) { return own.contains(each); })) {
        views.elsewhere.push_back(pair.from);
      }
    }
  }
  return views;
}

void add_names(std::vector<Finding>& found, const Examination& examination,
               const MachineFacts& named) {
  const NameViews views = views_of(examination, named);
  const std::string name = name_of(examination, named.machine);
  const auto add = [&](const char* kind, std::vector<int> who, std::string what,
                       const char* what_to_do) {
    who.push_back(named.machine);
    found.push_back(finding(Severity::warning, kind, std::move(who), std::move(what), what_to_do));
  };
  for (const auto& [reason, who] : views.failures) {
    add("name_unknown", who,
        fmt::format("{} cannot look up the name {}: {}", names_of(examination, who), name, reason),
        "Add the names of all machines to the name server (DNS) or to every /etc/hosts; until then "
        "use addresses, not names.");
  }
  if (!views.loopback.empty()) {
    add("name_loopback", views.loopback,
        fmt::format("on {} the name {} resolves to a loopback address",
                    names_of(examination, views.loopback), name),
        "Correct its /etc/hosts: that name belongs to another machine.");
  }
  if (!views.elsewhere.empty()) {
    add("name_elsewhere", views.elsewhere,
        fmt::format("on {} the name {} resolves to none of that machine's addresses",
                    names_of(examination, views.elsewhere), name),
        "Look for an old line in /etc/hosts or an old record of the name server; behind NAT it may "
        "be correct.");
  } else if (views.seen.size() > 1) {
    std::vector<std::string> texts;
    for (const auto& each : views.seen) {
      texts.push_back(fmt::format("{}", fmt::join(each, ", ")));
    }
    add("names_differ", {},
        fmt::format("the name {} resolves to different addresses on different machines: {}", name,
                    fmt::join(texts, " or ")),
        "Make /etc/hosts and the name server of all machines agree.");
  }
}

void add_clocks(std::vector<Finding>& found, const Examination& examination) {
  const auto offsets = clock_offsets_ms(examination);
  for (std::size_t machine = 0; machine < offsets.size(); ++machine) {
    const double skew = std::abs(offsets[machine].value_or(0.0));
    if (skew > kSkewWarningMs) {
      const auto who = static_cast<int>(machine);
      found.push_back(finding(
          skew > kSkewErrorMs ? Severity::error : Severity::warning, "clock_skew", {who},
          fmt::format("the clock of {} is {:.1f} s {} the other clocks", name_of(examination, who),
                      skew / 1000, *offsets[machine] > 0 ? "ahead of" : "behind"),
          "Start chronyd, ntpd or systemd-timesyncd there (timedatectl, chronyc tracking)."));
    }
  }
}

std::string figures(const Examination& examination, int a, int b) {
  const auto latency = examination.latency_us(a, b);
  const auto bandwidth = examination.bandwidth_gbps(a, b);
  return fmt::format("{} us, {} Gbit/s", latency ? fmt::format("{:.0f}", *latency) : "?",
                     bandwidth ? fmt::format("{:.3g}", *bandwidth) : "?");
}

void add_slow(std::vector<Finding>& found, const Examination& examination) {
  const SlowLinks slow = slow_links(examination);
  for (const int machine : slow.machines) {
    std::vector<std::string> texts;
    for (std::size_t other = 0; other < examination.machines.size(); ++other) {
      const auto b = static_cast<int>(other);
      if (b != machine && examination.bandwidth_gbps(machine, b)) {
        texts.push_back(
            fmt::format("{} with {}", figures(examination, machine, b), name_of(examination, b)));
      }
    }
    found.push_back(
        finding(Severity::warning, "slow_machine", {machine},
                fmt::format("{} has much slower connections than the others, to all machines: {}",
                            name_of(examination, machine), fmt::join(texts, "; ")),
                "Look at its cable, port and interface (ethtool IFACE: speed, errors), at its "
                "load, and whether its address is that of a management network."));
  }
  for (const auto& [a, b] : slow.pairs) {
    found.push_back(finding(
        Severity::warning, "slow_pair", {a, b},
        fmt::format("{} and {} are much slower with each other than other pairs: {}",
                    name_of(examination, a), name_of(examination, b), figures(examination, a, b)),
        "Each of them is fast with others, so look between them: switches, shared uplinks, "
        "routes (ip route get ADDRESS, tracepath); request machines that are closer to each "
        "other (Slurm: --switches=1)."));
  }
}

}  // namespace

std::vector<Finding> pair_findings(const Examination& examination) {
  std::vector<Finding> found;
  MachinePairs explained;
  add_unreachable(found, examination, explained);
  add_failures(found, examination, explained);
  for (const auto& machine : examination.machines) {
    if (machine) {
      add_names(found, examination, *machine);
    }
  }
  add_clocks(found, examination);
  add_slow(found, examination);
  return found;
}

}  // namespace acc::doctor
