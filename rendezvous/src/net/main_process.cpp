// SPDX-License-Identifier: Apache-2.0
#include "acc/rendezvous/main_process.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace acc::rendezvous {

Advice main_process_elsewhere(const std::string& host, const std::vector<std::string>& addresses) {
  return {fmt::format("this is machine 0, but --main_process_ip {} resolves to {}, which is not an "
                      "address of this machine",
                      host, fmt::join(addresses, ", ")),
          "Give --machine_rank 0 to the machine with that address, or its own address as "
          "--main_process_ip on all machines."};
}

Advice main_process_unknown(const std::string& host, const std::string& failure) {
  return {fmt::format("cannot look up --main_process_ip {}: {}", host, failure),
          "Add the name to the name server (DNS) or /etc/hosts of this machine, or give an "
          "address."};
}

}  // namespace acc::rendezvous
