#include "collectives/shm/descriptor_server.hpp"

#include "acc/base/error.hpp"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <mutex>
#include <set>
#include <thread>

namespace acc::collectives {
namespace {

/// An abstract name: it is in no file system, and gone with the process.
struct Address {
  explicit Address(pid_t pid) {
    const auto end =
        fmt::format_to_n(name.sun_path + 1, sizeof name.sun_path - 1, "acc-descriptors-{}", pid);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&name); }

  sockaddr_un name{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;
};

UniqueFd local_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
}

/// A message of one int that may carry a descriptor.
struct Message {
  Message() {
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    header.msg_control = control.data();
    header.msg_controllen = control.size();
  }

  int number = -1;
  iovec part{&number, sizeof number};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
};

class DescriptorServer {
 public:
  DescriptorServer() : listener_(local_socket()) {
    const Address address(::getpid());
    if (!listener_ || ::bind(listener_.get(), address.get(), address.size) != 0 ||
        ::listen(listener_.get(), SOMAXCONN) != 0) {
      throw Error(Errc::collective,
                  fmt::format("neither /proc/self/fd nor a local socket can hand shared memory to "
                              "the other ranks: {}",
                              std::strerror(errno)));
    }
    std::thread([this] { run(); }).detach();
  }

  void add(int fd) {
    const std::scoped_lock lock(mutex_);
    served_.insert(fd);
  }

 private:
  [[noreturn]] void run() {
    for (;;) {
      const UniqueFd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      int fd = -1;
      if (peer && is_own_user(peer.get()) && ::recv(peer.get(), &fd, sizeof fd, 0) == sizeof fd) {
        answer(peer.get(), fd);
      }
    }
  }

  static bool is_own_user(int peer) {
    ucred who{};
    socklen_t size = sizeof who;
    return ::getsockopt(peer, SOL_SOCKET, SO_PEERCRED, &who, &size) == 0 && who.uid == ::getuid();
  }

  void answer(int peer, int fd) {
    Message message;
    const std::scoped_lock lock(mutex_);
    if (served_.contains(fd)) {
      message.number = fd;
      cmsghdr* carried = CMSG_FIRSTHDR(&message.header);
      carried->cmsg_level = SOL_SOCKET;
      carried->cmsg_type = SCM_RIGHTS;
      carried->cmsg_len = CMSG_LEN(sizeof fd);
      std::memcpy(CMSG_DATA(carried), &fd, sizeof fd);
    } else {
      message.header.msg_controllen = 0;
    }
    ::sendmsg(peer, &message.header, MSG_NOSIGNAL);
  }

  UniqueFd listener_;
  std::mutex mutex_;
  std::set<int> served_;  // guarded by mutex_
};

}  // namespace

void serve_descriptor(int fd) {
  static auto* const server = new DescriptorServer();  // its thread runs until the process ends
  server->add(fd);
}

UniqueFd ask_for_descriptor(pid_t pid, int fd) noexcept {
  const UniqueFd server = local_socket();
  const Address address(pid);
  Message message;
  if (!server || ::connect(server.get(), address.get(), address.size) != 0 ||
      ::send(server.get(), &fd, sizeof fd, MSG_NOSIGNAL) < 0 ||
      ::recvmsg(server.get(), &message.header, MSG_CMSG_CLOEXEC) < 0) {
    return {};
  }
  const cmsghdr* carried = CMSG_FIRSTHDR(&message.header);
  if (carried == nullptr || carried->cmsg_type != SCM_RIGHTS) {
    errno = EBADF;
    return {};
  }
  int received = -1;
  std::memcpy(&received, CMSG_DATA(carried), sizeof received);
  return UniqueFd(received);
}

}  // namespace acc::collectives
