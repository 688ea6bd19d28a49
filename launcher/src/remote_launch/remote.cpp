// SPDX-License-Identifier: Apache-2.0
#include "remote_launch/remote.hpp"

#include "acc/base/error.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "host/own_variables.hpp"
#include "remote_launch/control_message.hpp"

#include <unistd.h>

namespace acc::launcher::remote_launch {
namespace {

std::size_t machine_number(const std::string& word) {
  const auto number = read_number(word);
  if (!number) {
    throw Error(Errc::protocol, "remote: expected a machine rank, got '" + word + "'");
  }
  return static_cast<std::size_t>(*number);
}

}  // namespace

bool was_started(const plugins::Environment& environment) {
  return host::is_controlled(environment) ||
         !host::value_of(environment, host::variables::machine_rank).empty();
}

std::vector<std::string> become_remote(std::span<const std::string> arguments) {
  if (arguments.size() > 1) {
    throw Error(Errc::invalid_argument, "remote: expected one machine rank or no argument");
  }
  const std::size_t machine = arguments.empty() ? 0 : machine_number(arguments[0]);
  const StartMessage message = read_start_message(STDIN_FILENO, control::kSilenceLimit);
  enter(message, machine);
  return message.arguments;
}

}  // namespace acc::launcher::remote_launch
