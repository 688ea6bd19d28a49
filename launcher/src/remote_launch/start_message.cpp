// SPDX-License-Identifier: Apache-2.0
// Encoding of the start message. The body is CBOR (RFC 8949), whose byte strings may hold any
// environment value. It is read byte by byte up to the newline of the head, then by its length, so
// that the control messages that follow stay in the pipe.
#include "remote_launch/start_message.hpp"

#include "acc/base/error.hpp"
#include "acc/base/sourced.hpp"
#include "acc/base/text.hpp"
#include "host/own_variables.hpp"
#include "remote_launch/control_message.hpp"

#include <nlohmann/json.hpp>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>

namespace acc::launcher::remote_launch {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::string_view kHead = "acclaunch-start 1 ";  // with the version of the format
constexpr std::size_t kMaxHead = 64;
constexpr std::size_t kMaxBody = std::size_t{8} << 20;

Error not_understood(const std::string& what) {
  return {Errc::protocol,
          "this acclaunch cannot read the start message of the one that started it (" + what +
              "); install the same version on all machines"};
}

std::vector<std::uint8_t> to_bytes(const StartMessage& message) {
  return Json::to_cbor({{"directory", message.working_directory},
                        {"arguments", message.arguments},
                        {"environment", message.environment},
                        {"machines", message.machines}});
}

/// True if setenv accepts the name and value.
bool is_variable(const std::string& name, const std::string& value) {
  return !name.empty() && (name + value).find('\0') == std::string::npos &&
         name.find('=') == std::string::npos;
}

void check(const settings::Environment& environment) {
  for (const auto& [name, value] : environment) {
    if (!is_variable(name, value)) {
      throw not_understood("a variable " + name);
    }
  }
}

StartMessage from_bytes(const std::vector<std::uint8_t>& bytes) {
  StartMessage message;
  try {
    const Json json = Json::from_cbor(bytes);
    if (json.size() != 4) {
      throw not_understood("fields");
    }
    json.at("directory").get_to(message.working_directory);
    json.at("arguments").get_to(message.arguments);
    json.at("environment").get_to(message.environment);
    json.at("machines").get_to(message.machines);
  } catch (const Json::exception& error) {
    throw not_understood(error.what());
  }
  check(message.environment);
  for (const settings::Environment& machine : message.machines) {
    check(machine);
  }
  return message;
}

/// Reads at least one and at most `size` bytes. Throws Error(connection) at the deadline and at the
/// end of the input.
std::size_t read_some(int fd, std::uint8_t* into, std::size_t size, Clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd polled{fd, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) == 0) {
      throw Error(Errc::connection,
                  "timeout: no start message from the acclaunch that started this one");
    }
    const ssize_t count = ::read(fd, into, size);
    if (count > 0) {
      return static_cast<std::size_t>(count);
    }
    if (count == 0 || (errno != EINTR && errno != EAGAIN)) {
      throw Error(Errc::connection,
                  "the connection to the acclaunch that started this one is broken");
    }
  }
}

/// Returns the length of the body from the first line.
std::size_t length_in(std::string_view head) {
  std::size_t length = 0;
  if (!head.starts_with(kHead)) {
    throw not_understood("\"" + std::string(head) + "\"");
  }
  head.remove_prefix(kHead.size());
  const auto [end, error] = std::from_chars(head.data(), head.data() + head.size(), length);
  if (error != std::errc() || end != head.data() + head.size() || length > kMaxBody) {
    throw not_understood("length " + std::string(head));
  }
  return length;
}

void set_all(const settings::Environment& environment) {
  for (const auto& [name, value] : environment) {
    ::setenv(name.c_str(), value.c_str(), 1);
  }
}

}  // namespace

std::string encode(const StartMessage& message) {
  const std::vector<std::uint8_t> bytes = to_bytes(message);
  if (bytes.size() > kMaxBody) {
    throw Error(Errc::not_supported,
                "the environment and the command line are too large to start the job on other "
                "machines: " +
                    std::to_string(bytes.size()) + " bytes");
  }
  return std::string(kHead) + std::to_string(bytes.size()) + "\n" +
         std::string(bytes.begin(), bytes.end());
}

StartMessage read_start_message(int fd, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  std::string head;
  for (std::uint8_t byte = 0; read_some(fd, &byte, 1, deadline) == 1 && byte != '\n';) {
    head.push_back(static_cast<char>(byte));
    if (head.size() > kMaxHead) {
      throw not_understood("\"" + head + "\"");
    }
  }
  std::vector<std::uint8_t> body(length_in(head));
  for (std::size_t done = 0; done < body.size();) {
    done += read_some(fd, body.data() + done, body.size() - done, deadline);
  }
  return from_bytes(body);
}

void enter(const StartMessage& message, std::size_t machine) {
  if (machine >= message.machines.size()) {
    throw not_understood("machine " + std::to_string(machine));
  }
  set_all(message.environment);
  // The variables of the machine include ACC_CONTROL: errors from here on are reported as answers.
  set_all(message.machines[machine]);
  if (::chdir(message.working_directory.c_str()) != 0) {
    throw Error(Errc::not_found, "cannot change to the folder " + message.working_directory + ": " +
                                     std::strerror(errno));
  }
}

namespace {

std::size_t machine_number(const std::string& word) {
  const auto number = read_number(word);
  if (!number) {
    throw Error(Errc::protocol, "remote: expected a machine rank, got '" + word + "'");
  }
  return static_cast<std::size_t>(*number);
}

}  // namespace

bool was_started(const settings::Environment& environment) {
  return host::is_controlled(environment) ||
         !host::value_of(environment, host::variables.machine_rank).empty();
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
