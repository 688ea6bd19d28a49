#include "records.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace acc::rendezvous {

std::string launcher_key(std::string_view run_id, std::string_view name) {
  return fmt::format("{}{}/{}", kLauncherKeys, run_id, name);
}

std::string_view take_line(std::string_view& text) {
  const std::string_view line = text.substr(0, text.find('\n'));
  text.remove_prefix(std::min(text.size(), line.size() + 1));
  return line;
}

int take_int(std::string_view& text) {
  const std::string_view line = take_line(text);
  int value = 0;
  const auto [end, error] = std::from_chars(line.data(), line.data() + line.size(), value);
  if (error != std::errc() || end != line.data() + line.size()) {
    throw Error(Errc::protocol,
                fmt::format("another machine wrote '{}' where a number belongs: do all machines "
                            "run the same acclaunch?",
                            line));
  }
  return value;
}

std::string one_line(std::string text) {
  std::ranges::replace(text, '\n', ' ');
  return text;
}

std::string encode(const Machine& machine) {
  return fmt::format("{}\n{}\n{}\n{}\n{}\n{}\n", machine.machine_rank, machine.local_world_size,
                     machine.pid, machine.pid_space, one_line(machine.host),
                     one_line(machine.address));
}

Machine take_machine(std::string_view& text) {
  Machine machine;
  machine.machine_rank = take_int(text);
  machine.local_world_size = take_int(text);
  machine.pid = take_int(text);
  machine.pid_space = take_line(text);
  machine.host = take_line(text);
  machine.address = take_line(text);
  return machine;
}

std::string describe(const Machine& machine) {
  return fmt::format("machine {} ({}, pid {})", machine.machine_rank, machine.host, machine.pid);
}

}  // namespace acc::rendezvous
