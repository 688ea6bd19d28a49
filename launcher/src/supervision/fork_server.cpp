// SPDX-License-Identifier: Apache-2.0
#include "supervision/fork_server.hpp"

#include "acc/base/log.hpp"
#include "spawn/create_child.hpp"
#include "supervision/process_handle.hpp"
#include "supervision/process_state.hpp"

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace acc::launcher::supervision {
namespace asio = boost::asio;

namespace {

/// The program, which fork_server.py describes.
constexpr std::string_view kProgram =
#include <fork_server.inc>  // generator_watch.py and fork_server.py as a literal; made by CMake
    ;
/// Runs it with variables of its own, so that __main__ stays as it is for the worker's program.
constexpr const char* kBoot =
    "exec(compile(__import__('sys').argv[1], 'acclaunch --preload', 'exec', dont_inherit=True), "
    "{'__name__': 'acclaunch_preload', '__builtins__': __builtins__})";

/// Number by which the server's output is distinguished from that of ranks.
constexpr int kOutputRank = -1;
/// Time in which the server must answer, which then forks one worker or ends the forks.
constexpr std::chrono::seconds kPatience{60};
/// Time between the end of a process's last descriptor and that of the process.
constexpr std::chrono::seconds kTimeToEnd{10};
constexpr const char* kForeign = "a module has written to the socket of the launcher";
constexpr std::size_t kMostDescriptors = 5;
constexpr std::size_t kMostBytes = std::size_t{64} << 10;

std::string patience() {
  return std::to_string(kPatience.count()) + " s";
}

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

/// Sends a message of one byte with descriptors. False if the receiver has gone, or does not read.
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
  return ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

/// Returns the process that sent the next message, as the kernel says (SO_PASSCRED); 0 if there is
/// no message.
pid_t sender_of_message(int socket) {
  char ignored = 0;
  iovec content{.iov_base = &ignored, .iov_len = 1};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> space{};
  msghdr message{};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  message.msg_control = space.data();
  message.msg_controllen = space.size();
  const bool has_come = ::recvmsg(socket, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC) > 0;
  const cmsghdr* const header = has_come ? CMSG_FIRSTHDR(&message) : nullptr;
  if (header == nullptr || header->cmsg_level != SOL_SOCKET ||
      header->cmsg_type != SCM_CREDENTIALS) {
    return 0;
  }
  ucred sender{};
  std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
  return sender.pid;
}

struct SocketPair {
  UniqueFd ours;
  UniqueFd theirs;
};

/// The kernel adds the sender's pid to what arrives at `ours`.
SocketPair make_sockets() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw Error(Errc::process, reason("socketpair failed"));
  }
  const int yes = 1;
  ::setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

/// Waits until a socket can be read. False if the deadline passes before.
asio::awaitable<bool> readable(asio::posix::stream_descriptor& socket,
                               std::chrono::steady_clock::time_point deadline) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer limit(socket.get_executor(), deadline);
  const auto outcome = co_await (socket.async_wait(asio::posix::stream_descriptor::wait_read,
                                                   asio::as_tuple(asio::use_awaitable)) ||
                                 limit.async_wait(asio::as_tuple(asio::use_awaitable)));
  co_return outcome.index() == 0;
}

std::chrono::steady_clock::time_point in_time() {
  return std::chrono::steady_clock::now() + kPatience;
}

}  // namespace

ForkServer::ForkServer(asio::any_io_executor executor, output::OutputMux& output, Options options)
    : executor_(std::move(executor)),
      output_(output),
      options_(std::move(options)),
      control_(executor_) {
  WorkerSpec& worker = options_.worker;
  std::vector<std::string> command = options_.interpreter;
  command.insert(command.end(), {"-c", kBoot, std::string(kProgram), "",
                                 std::to_string(options_.interpreter.size()), options_.modules});
  command.insert(command.end(), worker.command.begin(), worker.command.end());
  worker.command = std::move(command);
}

void ForkServer::start_server() {
  SocketPair sockets = make_sockets();
  control_ = Socket(executor_, sockets.ours.release());
  WorkerSpec spec = options_.worker;
  spec.reports = sockets.theirs.get();
  spec.command[options_.interpreter.size() + 3] = std::to_string(sockets.theirs.get());
  const output::OutputMux::WorkerEnds streams =
      output_.add_worker({.rank = kOutputRank, .prefix = "[preload] "});
  process_.emplace(executor_, spec, streams.out.get(), streams.err.get(),
                   WorkerSurroundings{.descriptors = options_.descriptors});
}

// An import takes as long as the modules want, as a program does. A stop request ends it.
asio::awaitable<void> ForkServer::ready() {
  if (process_ && !process_->has_ended()) {
    co_return;
  }
  start_server();
  const std::string answer = co_await this->answer(std::chrono::steady_clock::time_point::max());
  output_.drain(kOutputRank);
  if (answer.empty()) {
    co_await fail("");
  }
  if (answer.starts_with('F')) {
    throw Error(Errc::config, "--preload " + options_.modules + ": " + answer.substr(1));
  }
  if (!answer.starts_with('R')) {
    co_await fail(kForeign);
  }
  logger(Component::launcher).debug("process {} has imported {}", pid(), answer.substr(1));
}

asio::awaitable<void> ForkServer::fork(int count, const Cgroup* cgroup) {
  forked_.clear();
  process_->signal(SIGCONT);  // a stopped process would not answer
  const bool has_group = cgroup != nullptr && cgroup->directory() >= 0;
  const int group = has_group ? cgroup->directory() : -1;
  co_await ask('B', std::span(&group, has_group ? 1 : 0), "B");
  for (int index = 0; index < count; ++index) {
    SocketPair sockets = make_sockets();
    const int theirs = sockets.theirs.get();
    co_await ask('W', std::span(&theirs, 1), "W");
    forked_.push_back({.socket = std::move(sockets.ours)});
  }
  co_await ask('E', {}, "D");
  for (Forked& worker : forked_) {
    worker.pid = co_await meet(worker.socket.get());
  }
}

pid_t ForkServer::start(const WorkerSpec& spec, int in, int out, int err) {
  if (forked_.empty()) {
    throw failed("no process was forked for rank " + std::to_string(spec.rank));
  }
  const Forked worker = std::move(forked_.front());
  forked_.pop_front();
  const UniqueFd file = file_with(spec_of(spec));
  std::vector<int> descriptors = {file.get(), in, out, err};
  if (spec.reports >= 0) {
    descriptors.push_back(spec.reports);
  }
  send_message(worker.socket.get(), 'W', descriptors);  // one that was killed is reported as such
  return worker.pid;
}

/// Sends a message to the server and waits for the answer. Throws Error(process) if it is another
/// one than expected.
asio::awaitable<void> ForkServer::ask(char kind, std::span<const int> descriptors,
                                      std::string_view expected) {
  std::string answer;
  if (send_message(control_.native_handle(), kind, descriptors)) {
    answer = co_await this->answer(in_time());
  }
  if (answer == expected) {
    co_return;
  }
  std::string why = answer.empty() ? "" : kForeign;
  if (answer.starts_with('F')) {
    why = "cannot fork the workers: " + answer.substr(1);
  }
  co_await fail(std::move(why));
}

/// Waits for the first message of a forked worker. Returns its pid, which is that of an unknown
/// child.
asio::awaitable<pid_t> ForkServer::meet(int socket) {
  Socket readable_end(executor_, ::dup(socket));
  const bool has_answered = co_await readable(readable_end, in_time());
  const pid_t sender = has_answered ? sender_of_message(socket) : 0;
  const bool is_known =
      sender == pid() ||
      std::ranges::any_of(forked_, [sender](const Forked& worker) { return worker.pid == sender; });
  if (!has_answered) {
    co_await fail("a forked worker has not answered for " + patience());
  }
  if (sender <= 0) {
    co_await fail("a forked worker has ended before it began");
  }
  if (is_known || !spawn::is_child(sender)) {
    co_await fail("process " + std::to_string(sender) + " answers for a worker, but is none");
  }
  co_return sender;
}

/// Returns the server's next message; empty if it has closed its socket. Throws Error(process) if
/// it does not answer in time.
asio::awaitable<std::string> ForkServer::answer(std::chrono::steady_clock::time_point deadline) {
  if (!co_await readable(control_, deadline)) {
    co_await fail(who() + " has not answered for " + patience() + ": " + describe_state(pid()));
  }
  std::string text(kMostBytes, '\0');
  const ssize_t size = ::recv(control_.native_handle(), text.data(), text.size(), MSG_DONTWAIT);
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
  co_return text;
}

/// Kills the server and the workers that have not started, and throws Error(process). `why`: empty
/// if the server has closed its socket.
asio::awaitable<void> ForkServer::fail(std::string why) {
  forked_.clear();
  if (why.empty()) {
    // A server that has ended closed its socket shortly before.
    Socket ended(executor_, watch_end_of(process_->pid()).release());
    if (co_await readable(ended, std::chrono::steady_clock::now() + kTimeToEnd)) {
      const ProcessEnd process_end = co_await process_->wait();
      why = "the process that imports the modules has ended: " + process_end.describe();
    } else {
      why = who() + " has closed the socket to the launcher";
    }
  }
  process_->signal(SIGKILL);  // also the process that forks
  process_.reset();
  control_.close();
  throw failed(why);
}

std::string ForkServer::who() const {
  return "the process that imports the modules (pid " + std::to_string(pid()) + ")";
}

Error ForkServer::failed(const std::string& why) const {
  return {Errc::process, "--preload " + options_.modules + ": " + why};
}

pid_t ForkServer::pid() const noexcept {
  return process_ && !process_->has_ended() ? process_->pid() : 0;
}

}  // namespace acc::launcher::supervision
