#pragma once

#include "acc/plugins/environment.hpp"

#include <chrono>
#include <string>
#include <string_view>
#include <vector>

namespace acc::launcher {

/// What acclaunch on another machine is to do as if it had been typed there.
struct StartMessage {
  std::string working_directory;
  std::vector<std::string> arguments;          ///< the face's name first
  plugins::Environment environment;            ///< added to what is there
  std::vector<plugins::Environment> machines;  ///< and what one of them gets besides

  bool operator==(const StartMessage&) const = default;
};

/// A line `acclaunch-start 1 LENGTH` and so many bytes of CBOR, whose strings may hold any byte:
/// what a starter writes first into a launcher's standard input.
std::string encode(const StartMessage& message);
/// Reads exactly that, so that what follows is still there. Throws Error: connection where it does
/// not come in time, protocol where it is something else.
StartMessage read_start_message(int fd, std::chrono::milliseconds limit);

/// Goes where the message says and sets the environment, that of `machine` included. Throws
/// Error(config) for a folder that is not there, Error(protocol) for no such machine.
void enter(const StartMessage& message, std::size_t machine);

}  // namespace acc::launcher
