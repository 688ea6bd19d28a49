#include "host/command_output.hpp"

#include "acc/base/unique_fd.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>

namespace acc::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{10};

/// The child with its output in `output`, or -1.
pid_t start(const std::filesystem::path& program, const std::vector<std::string>& arguments,
            int output) {
  std::vector<std::string> words = {program.string()};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> pointers;
  for (std::string& word : words) {
    pointers.push_back(word.data());
  }
  pointers.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, output, STDOUT_FILENO);
  ::posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = -1;
  const int error =
      ::posix_spawn(&child, program.c_str(), &actions, nullptr, pointers.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  return error == 0 ? child : -1;
}

/// Everything until the end of the stream; false when it does not come in time.
bool read_all(int input, std::string& text) {
  const auto deadline = Clock::now() + kPatience;
  std::array<char, 4096> buffer{};
  for (;;) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    pollfd wanted{input, POLLIN, 0};
    if (left <= 0 || ::poll(&wanted, 1, static_cast<int>(left)) <= 0) {
      return false;
    }
    const ssize_t count = ::read(input, buffer.data(), buffer.size());
    if (count <= 0) {
      return count == 0;
    }
    text.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

}  // namespace

std::optional<std::string> command_output(const std::filesystem::path& program,
                                          const std::vector<std::string>& arguments) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) {
    return std::nullopt;
  }
  const UniqueFd input(ends[0]);
  UniqueFd output(ends[1]);
  const pid_t child = start(program, arguments, output.get());
  output.reset();
  if (child < 0) {
    return std::nullopt;
  }
  std::string text;
  const bool complete = read_all(input.get(), text);
  if (!complete) {
    ::kill(child, SIGKILL);
  }
  int status = 0;
  const bool ended = ::waitpid(child, &status, 0) == child && WIFEXITED(status);
  return complete && ended && WEXITSTATUS(status) == 0 ? std::optional(text) : std::nullopt;
}

}  // namespace acc::launcher
