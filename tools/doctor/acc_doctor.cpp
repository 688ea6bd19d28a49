// SPDX-License-Identifier: Apache-2.0
// The program that `acclaunch doctor` starts on every machine. Examines the machine, the other
// machines and the network between them.
//   acc_doctor [--output FILE] [--driver VERSION] [--gpu NAME]...     as a worker of a job
//   acc_doctor --alone [--meet HOST:PORT] [--machine_rank N] ...    when machines could not meet
//
// Exit status: 0, or 1 if a finding is an error; on all machines the status of machine 0's report.
#include "acc/base/atomic_file.hpp"
#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/machine.hpp"
#include "acc/base/text.hpp"
#include "acc/rendezvous/prefix_store.hpp"
#include "acc/rendezvous/tcp_store.hpp"
#include "acc/settings/environment.hpp"
#include "collectives/make_group.hpp"
#include "doctor/alone.hpp"
#include "doctor/answering.hpp"
#include "doctor/examine.hpp"
#include "doctor/gather.hpp"
#include "doctor/report.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <random>

namespace {

using namespace acc::doctor;

constexpr std::chrono::seconds kStoreLimit{20};
/// Time limit for machine 0's result, which may measure many pairs again.
constexpr std::chrono::minutes kVerdictLimit{10};

struct Options {
  std::string output;  ///< empty: no file
  bool alone = false;
  std::string meet;
  int machine_rank = 0;
  MachineFacts facts;  ///< facts passed by the launcher
};

Options read_options(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--alone") {
      options.alone = true;
      continue;
    }
    if (i + 1 == argc) {
      throw acc::Error(acc::Errc::invalid_argument, name + " needs a value");
    }
    const std::string value = argv[++i];
    if (name == "--output") {
      options.output = value;
    } else if (name == "--driver") {
      options.facts.driver_version = value;
    } else if (name == "--gpu") {
      options.facts.gpus.push_back(value);
    } else if (name == "--meet") {
      options.meet = value;
    } else if (name == "--machine_rank") {
      options.machine_rank = std::atoi(value.c_str());
    } else {
      throw acc::Error(acc::Errc::invalid_argument, "acc_doctor has no flag " + name);
    }
  }
  return options;
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  char text[32];
  std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &parts);
  return text;
}

int show(const Examination& examination, const std::vector<Finding>& found) {
  std::fputs(acc::printable_lines(table(examination, found)).c_str(), stdout);
  std::fflush(stdout);
  return exit_status(found);
}

/// Prints the report, writes the JSON file if `path` is not empty, and returns the exit status.
int report(const Examination& examination, const std::string& path) {
  const std::vector<Finding> found = findings(examination);
  const int status = show(examination, found);
  if (!path.empty()) {
    acc::write_file(path, json(examination, found, utc_now()), acc::Overwrite::yes);
    std::printf("written to %s\n", path.c_str());
  }
  return status;
}

int examine_alone(Options options) {
  gather(options.facts);
  Examination examination;
  examination.machines.emplace_back(options.facts);
  std::vector<Finding> found = findings(examination);
  if (options.meet.empty()) {
    return report(examination, options.output);
  }
  const std::size_t colon = options.meet.rfind(':');
  const auto port = static_cast<std::uint16_t>(std::atoi(options.meet.c_str() + colon + 1));
  const MeetingPlace place =
      look_at(options.meet.substr(0, colon), port, options.machine_rank == 0);
  std::vector<Finding> all = meeting_findings(place, options.facts);
  all.insert(all.end(), found.begin(), found.end());
  std::ranges::stable_sort(all, {}, &Finding::severity);
  std::printf("The machines did not meet. Findings of machine %d alone:\n\n", options.machine_rank);
  return show(examination, all);
}

/// Identity with one rank per machine, whatever the launch has.
acc::settings::WorkerIdentity by_machines(acc::settings::WorkerIdentity identity) {
  identity.rank = identity.node_rank;
  identity.world_size = identity.num_nodes;
  identity.local_rank = 0;
  identity.local_world_size = 1;
  identity.local_world_sizes.clear();
  return identity;
}

std::shared_ptr<acc::rendezvous::Store> connect(const acc::settings::WorkerIdentity& identity) {
  auto store = std::make_shared<acc::rendezvous::TcpStore>(
      identity.master_addr, identity.master_port, kStoreLimit,
      acc::rendezvous::TcpStoreOptions{.call_timeout = kStoreLimit});
  return std::make_shared<acc::rendezvous::PrefixStore>(
      acc::collectives::store_prefix(identity, "doctor"), std::move(store));
}

int examine_together(Options options, acc::settings::RuntimeSettings settings) {
  settings.identity = by_machines(settings.identity);
  const auto& identity = settings.identity;
  const auto store = connect(identity);
  MachineFacts& own = options.facts;
  gather(own);
  own.machine = identity.node_rank;
  own.address = acc::collectives::address_towards(identity.master_addr, identity.master_port);
  own.token = (std::uint64_t{std::random_device{}()} << 32) | std::random_device{}() | 1U;
  const Answering answering(own.port_low, own.port_high, own.token);
  own.ports = answering.ports();
  const Examination examination = examine(settings, store, own);
  if (identity.rank == 0) {
    const int status = report(examination, options.output);
    store->set("verdict", std::to_string(status));
    return status;
  }
  if (!examination.machines.front()) {
    throw acc::Error(
        acc::Errc::timeout,
        "timeout: machine 0 joined, but did not report its facts in time: look at its load; it may "
        "be frozen");
  }
  return std::atoi(store->get("verdict", kVerdictLimit).c_str());
}

int run(int argc, char** argv) {
  Options options = read_options(argc, argv);
  if (options.alone) {
    return examine_alone(std::move(options));
  }
  const auto settings =
      acc::settings::settings_from_environment(acc::settings::current_environment());
  // If there is one launcher per rank, the first rank of a machine acts for the machine.
  if (settings.identity.local_rank > 0) {
    return 0;
  }
  return settings.identity.num_nodes == 1 ? examine_alone(std::move(options))
                                          : examine_together(std::move(options), settings);
}

/// Prints an error with the host name, because the launcher does not prefix the lines of the
/// doctor.
void complain(const std::exception& error) {
  acc::notice_lines(acc::Component::tools, acc::LogLevel::critical,
                    "acc_doctor on " + acc::host_name() + ": ", error.what());
}

}  // namespace

int main(int argc, char** argv) {
  int status = 1;
  try {
    status = run(argc, argv);
  } catch (const acc::Error& error) {
    complain(error);
    status = acc::exit_status(error);
  } catch (const std::exception& error) {
    complain(error);
  }
  std::fflush(nullptr);
  std::_Exit(status);  // threads of abandoned lookups and collectives may still run
}
