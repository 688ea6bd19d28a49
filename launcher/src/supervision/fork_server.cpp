// SPDX-License-Identifier: Apache-2.0
#include "supervision/fork_server.hpp"

#include "acc/base/log.hpp"
#include "acc/base/text.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;

namespace {

/// The program, which fork_server.py describes.
constexpr std::string_view kProgram =
#include <fork_server.inc>  // fork_server.py as a string literal; made by CMake
    ;
/// Runs it with variables of its own, so that __main__ stays as it is for the worker's program.
constexpr const char* kBoot =
    "exec(compile(__import__('sys').argv[1], 'acclaunch --preload', 'exec', dont_inherit=True), "
    "{'__name__': 'acclaunch_preload', '__builtins__': __builtins__})";

/// Number by which the server's output is distinguished from that of ranks.
constexpr int kOutputRank = -1;
/// Time in which the server must fork one worker.
constexpr int kPatience = 60'000;  // ms
constexpr std::size_t kMostDescriptors = 5;
constexpr std::size_t kMostBytes = std::size_t{64} << 10;

std::string reason(const char* what) {
  return std::string(what) + ": " + std::strerror(errno);
}

/// Appends fields that end with a zero byte.
class Fields {
 public:
  void add(std::string_view field) { text_.append(field).push_back('\0'); }
  void add(long number) { add(std::to_string(number)); }
  template <typename Items, typename ToText>
  void add_all(const Items& items, ToText to_text) {
    add(static_cast<long>(items.size()));
    for (const auto& item : items) {
      add(to_text(item));
    }
  }
  [[nodiscard]] const std::string& text() const noexcept { return text_; }

 private:
  std::string text_;
};

/// Returns what the forked process must know, in the order in which Spec of fork_server.py reads
/// it.
std::string spec_of(const WorkerSpec& spec) {
  Fields fields;
  fields.add(spec.process_group);
  fields.add(spec.numa_node);
  fields.add(SYS_set_mempolicy);
  fields.add(spec.reports_variable);
  fields.add(spec.working_directory.empty() ? "." : spec.working_directory);
  fields.add_all(spec.cores, [](int core) { return std::to_string(core); });
  fields.add_all(spec.command, [](const std::string& word) { return word; });
  fields.add_all(spec.environment,
                 [](const auto& variable) { return variable.first + "=" + variable.second; });
  return fields.text();
}

/// Returns a file in memory: the variables of a worker may exceed the largest message.
UniqueFd file_with(const std::string& text) {
  UniqueFd file(::memfd_create("acclaunch-worker", MFD_CLOEXEC));
  if (!file) {
    throw Error(Errc::process, reason("memfd_create failed"));
  }
  for (std::size_t written = 0; written < text.size();) {
    const ssize_t size = ::write(file.get(), text.data() + written, text.size() - written);
    if (size < 0) {
      throw Error(Errc::process, reason("cannot write to memory"));
    }
    written += static_cast<std::size_t>(size);
  }
  return file;
}

/// Sends a message of one byte with descriptors. False if the receiver has gone.
bool send_message(int socket, char kind, std::span<const int> descriptors) {
  iovec content{.iov_base = &kind, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMostDescriptors * sizeof(int))> space{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = space.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL) == 1;
}

}  // namespace

ForkServer::ForkServer(asio::any_io_executor executor, output::OutputMux& output, Options options)
    : executor_(std::move(executor)), output_(output), options_(std::move(options)) {
  WorkerSpec& worker = options_.worker;
  std::vector<std::string> command = options_.interpreter;
  command.insert(command.end(), {"-c", kBoot, std::string(kProgram), "",
                                 std::to_string(options_.interpreter.size()), options_.modules});
  command.insert(command.end(), worker.command.begin(), worker.command.end());
  worker.command = std::move(command);
}

void ForkServer::start() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(Errc::process, reason("socketpair failed"));
  }
  control_.reset(ends[0]);
  const UniqueFd of_server(ends[1]);
  WorkerSpec spec = options_.worker;
  spec.reports = of_server.get();
  spec.command[options_.interpreter.size() + 3] = std::to_string(of_server.get());
  const output::OutputMux::WorkerEnds streams =
      output_.add_worker({.rank = kOutputRank, .prefix = "[preload] "});
  process_.emplace(executor_, spec, streams.out.get(), streams.err.get(),
                   WorkerSurroundings{.descriptors = options_.descriptors});
}

asio::awaitable<void> ForkServer::ready() {
  if (process_ && !process_->has_ended()) {
    co_return;
  }
  start();
  asio::posix::stream_descriptor readable(executor_, ::dup(control_.get()));
  co_await readable.async_wait(asio::posix::stream_descriptor::wait_read,
                               asio::as_tuple(asio::use_awaitable));
  const std::string answer = this->answer();
  output_.drain(kOutputRank);
  if (answer.empty()) {
    const ProcessEnd end = co_await process_->wait();
    throw failed("the process that imports the modules has ended: " + end.describe());
  }
  if (!answer.starts_with('R')) {
    throw Error(Errc::config, "--preload " + options_.modules + ": " + answer.substr(1));
  }
  logger(Component::launcher).debug("process {} has imported {}", pid(), answer.substr(1));
}

pid_t ForkServer::fork(const WorkerSpec& spec, int in, int out, int err, const Cgroup* cgroup) {
  if (!forks_) {
    const std::vector<int> group = cgroup != nullptr && cgroup->directory() >= 0
                                       ? std::vector{cgroup->directory()}
                                       : std::vector<int>{};
    send_message(control_.get(), 'B', group);
    forks_ = true;
  }
  const UniqueFd file = file_with(spec_of(spec));
  std::vector<int> descriptors = {file.get(), in, out, err};
  if (spec.reports >= 0) {
    descriptors.push_back(spec.reports);
  }
  send_message(control_.get(), 'W', descriptors);
  const std::string answer = this->answer();
  const auto worker = read_number(answer);
  if (!worker) {
    control_.reset();  // ends those that have been forked
    throw failed("cannot fork rank " + std::to_string(spec.rank) +
                 (answer.empty() ? "" : ": " + answer.substr(1)));
  }
  return *worker;
}

void ForkServer::release() {
  if (!std::exchange(forks_, false)) {
    return;
  }
  send_message(control_.get(), 'E', {});
  const std::string answer = this->answer();
  if (answer != "D") {
    throw failed("cannot start the workers" + (answer.empty() ? "" : ": " + answer.substr(1)));
  }
}

/// Returns the server's next message; empty if it has ended or does not answer.
std::string ForkServer::answer() {
  std::string text(kMostBytes, '\0');
  pollfd readable{.fd = control_.get(), .events = POLLIN, .revents = 0};
  while (::poll(&readable, 1, kPatience) < 0 && errno == EINTR) {
  }
  const ssize_t size = ::recv(control_.get(), text.data(), text.size(), MSG_DONTWAIT);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  return text;
}

Error ForkServer::failed(const std::string& why) const {
  return {Errc::process, "--preload " + options_.modules + ": " + why};
}

pid_t ForkServer::pid() const noexcept {
  return process_ && !process_->has_ended() ? process_->pid() : 0;
}

}  // namespace acc::launcher::supervision
