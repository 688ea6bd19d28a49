// SPDX-License-Identifier: Apache-2.0
#include "collectives/shm/descriptor_links.hpp"

#include "acc/base/error.hpp"
#include "acc/base/log.hpp"
#include "acc/base/token.hpp"
#include "acc/rendezvous/store.hpp"
#include "collectives/keyed_hash.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <list>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

// How the ranks of one host connect. Rank 0 listens on an abstract Unix socket with a random name
// and puts the name into the store. Each other rank connects, and both ends authenticate each
// other:
//
//   rank   -> rank 0: hello(rank, pid, challenge of the rank)
//   rank 0 -> rank:   answer(challenge of rank 0, proof of rank 0)
//   rank   -> rank 0: proof(proof of the rank)
//
// A proof is a keyed hash, by the job's secret, of side, socket name, group, rank, pid and both
// challenges. It cannot be replayed on another connection, nor be sent back as the other side's
// proof. The rank sends its own proof only after it has verified that of rank 0. Both ends also
// require that the kernel reports the same user for the peer, and rank 0 that the pid in `hello` is
// the one that the kernel reports. Afterwards rank 0 sends each memory file (SCM_RIGHTS) as a
// `gift`, in the order of allocation.
namespace acc::collectives {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr auto kPollInterval = 50ms;
// Limit of connections that have not authenticated, in addition to one per rank. Beyond it, the
// oldest is closed, so that a stranger cannot use up all file descriptors.
constexpr std::size_t kMaxStrangers = 256;
// Limit of connections accepted in a row before existing connections are read again.
constexpr int kAcceptedAtOnce = 64;

/// The only message format. All messages have the same size, and SOCK_SEQPACKET keeps them apart.
struct Message {
  enum class Kind : std::uint32_t {
    hello = 0x61636331,  ///< from a rank: rank, pid, challenge
    answer,              ///< from rank 0: challenge, proof
    proof,               ///< from a rank: proof
    gift,                ///< from rank 0: nbytes, and a descriptor
    refusal,             ///< from rank 0: text; the receiver is not a rank of the group
    failure,             ///< from rank 0: text, rank at fault, code; the group will not be created
  };
  Kind kind = Kind::hello;
  std::int32_t rank = -1;
  std::int32_t pid = 0;
  std::int32_t code = 0;
  std::uint64_t nbytes = 0;
  std::uint64_t proof = 0;
  std::array<char, 32> challenge{};
  std::array<char, 448> text{};

  void set_text(std::string_view from) noexcept {
    std::memcpy(text.data(), from.data(), std::min(from.size(), text.size()));
  }
  [[nodiscard]] std::string get_text() const {
    return {text.data(), ::strnlen(text.data(), text.size())};
  }
};

/// Socket address in the abstract namespace (unix(7)): it has no file and vanishes with the
/// process. `name` is a random token.
struct Address {
  explicit Address(const std::string& name) {
    const auto end =
        fmt::format_to_n(address.sun_path + 1, sizeof address.sun_path - 1, "acc-group-{}", name);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + end.size);
  }
  [[nodiscard]] const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size = 0;
};

UniqueFd local_socket() {
  UniqueFd made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!made) {
    throw Error(Errc::collective,
                fmt::format("cannot make a local socket: {}", std::strerror(errno)));
  }
  return made;
}

/// Connects to the socket `name`. Returns an empty descriptor, with errno, if no process listens
/// there.
UniqueFd connect(const std::string& name, std::chrono::milliseconds timeout) {
  UniqueFd socket = local_socket();
  const Address address(name);
  const auto deadline = Clock::now() + timeout;
  while (::connect(socket.get(), address.get(), address.size) != 0) {
    if (errno != EAGAIN || Clock::now() > deadline) {
      return {};
    }
    std::this_thread::sleep_for(10ms);  // EAGAIN: the listener's backlog is full
  }
  return socket;
}

/// User and process id of the other end, as the kernel recorded them at connect or listen.
std::optional<ucred> peer_of(int socket) {
  ucred who{};
  socklen_t size = sizeof who;
  if (::getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &size) != 0) {
    return std::nullopt;
  }
  return who;
}

/// Sends a message, with a descriptor if `fd` is not negative. Does not block. Returns 0 or errno.
int send(int socket, const Message& message, int fd = -1) noexcept {
  iovec part{const_cast<Message*>(&message), sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd >= 0) {
    header.msg_control = control.data();
    header.msg_controllen = control.size();
    cmsghdr* const carried = CMSG_FIRSTHDR(&header);
    carried->cmsg_level = SOL_SOCKET;
    carried->cmsg_type = SCM_RIGHTS;
    carried->cmsg_len = CMSG_LEN(sizeof fd);
    std::memcpy(CMSG_DATA(carried), &fd, sizeof fd);
  }
  return ::sendmsg(socket, &header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0 ? errno : 0;
}

/// Result of `receive`: no message yet, a message of the right size, bytes that are not a message,
/// or the end of the connection.
enum class Received { nothing, message, other, end };

/// Receives a message if there is one. Does not block. `fd` takes a descriptor that came with it.
/// If `fd` is null, there is no room for control data and the kernel discards such descriptors.
Received receive(int socket, Message& message, UniqueFd* fd = nullptr) {
  iovec part{&message, sizeof message};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control{};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (fd != nullptr) {
    header.msg_control = control.data();
    header.msg_controllen = CMSG_LEN(sizeof(int));  // room for one descriptor
  }
  const ssize_t size = ::recvmsg(socket, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) {
    return Received::nothing;
  }
  if (size <= 0) {
    return Received::end;
  }
  const cmsghdr* const carried = fd == nullptr ? nullptr : CMSG_FIRSTHDR(&header);
  if (carried != nullptr && carried->cmsg_level == SOL_SOCKET && carried->cmsg_type == SCM_RIGHTS &&
      carried->cmsg_len == CMSG_LEN(sizeof(int))) {
    int received = -1;
    std::memcpy(&received, CMSG_DATA(carried), sizeof received);
    fd->reset(received);
  }
  const bool whole = size == sizeof message && (header.msg_flags & MSG_TRUNC) == 0;
  return whole ? Received::message : Received::other;
}

std::string_view view(const std::array<char, 32>& challenge) {
  return {challenge.data(), challenge.size()};
}

std::array<char, 32> new_challenge() {
  std::array<char, 32> challenge{};
  const std::string token = random_token();
  std::copy_n(token.begin(), challenge.size(), challenge.begin());
  return challenge;
}

/// Data of one connection that both ends know and that the proofs cover, so that a proof of one
/// side, rank, socket or group is invalid for every other.
struct Session {
  const GroupSpec& spec;
  std::string socket;                ///< random name of the socket
  std::int32_t rank = -1;            ///< group rank of the connecting process; -1 before its hello
  std::int32_t pid = 0;              ///< of the connecting process
  std::array<char, 32> of_rank{};    ///< challenge of the connecting rank
  std::array<char, 32> of_leader{};  ///< challenge of rank 0

  /// Proof that `side` ("leader" or "rank") has the job's secret.
  [[nodiscard]] std::uint64_t proof(std::string_view side) const {
    return keyed_hash(spec.secret, fmt::format("{}/{}/{}/{}/{}/{}/{}", side, socket, spec.name,
                                               rank, pid, view(of_rank), view(of_leader)));
  }
};

std::string describe(const GroupSpec& spec) {
  return fmt::format("shm[{}]", fmt::join(spec.ranks, ","));
}

std::string key_of(const GroupSpec& spec) {
  return spec.name + "/shm";
}

/// On a rank other than 0: waits for the next message of rank 0 and returns it. Throws if the
/// message is not of `kind`, and throws rank 0's own error if rank 0 refuses this process or has
/// failed.
Message await(const GroupSpec& spec, int socket, pid_t pid, Message::Kind kind, UniqueFd* fd) {
  const int leader = spec.ranks[0];
  const auto deadline = Clock::now() + spec.timeout;
  LongWait long_wait(spec.board.get());
  Message message;
  Received received = Received::nothing;
  while ((received = receive(socket, message, fd)) == Received::nothing) {
    if (Clock::now() > deadline) {
      int late = -1;
      const std::string reason =
          spec.reason_of_timeout(0, fmt::format("the creation of {}", describe(spec)), late);
      throw Error(Errc::timeout, reason, late);
    }
    long_wait.goes_on(leader);
    if (spec.check) {
      spec.check();
    }
    pollfd wait{socket, POLLIN, 0};
    ::poll(&wait, 1, static_cast<int>(kPollInterval.count()));
  }
  if (received == Received::end) {
    throw Error(Errc::peer_lost,
                fmt::format("rank {} (pid {}) ended before it sent the shared memory of {}", leader,
                            pid, describe(spec)),
                leader);
  }
  if (received == Received::message && message.kind == Message::Kind::refusal) {
    throw Error(Errc::protocol, message.get_text());
  }
  if (received == Received::message && message.kind == Message::Kind::failure &&
      kind == Message::Kind::gift) {
    // The rank comes from another process: it is used only if it is a rank of this group.
    const bool is_member = std::ranges::find(spec.ranks, message.rank) != spec.ranks.end();
    const Errc code = message.code == static_cast<int>(Errc::timeout)     ? Errc::timeout
                      : message.code == static_cast<int>(Errc::peer_lost) ? Errc::peer_lost
                                                                          : Errc::collective;
    throw Error(code, message.get_text(), is_member ? std::optional(message.rank) : std::nullopt);
  }
  if (received != Received::message || message.kind != kind) {
    throw Error(
        Errc::protocol,
        fmt::format("the process (pid {}) that listens for the ranks of {} sent an unexpected "
                    "message: it is not rank {}",
                    pid, describe(spec), leader));
  }
  return message;
}

}  // namespace

/// Rank 0's side of the handshake: listens, authenticates the other ranks, and fills `links` by
/// group rank. A connection is a guest until it has authenticated; then its socket moves to
/// `links`.
class DescriptorLinks::Gathering {
 public:
  Gathering(const GroupSpec& spec, std::vector<Link>& links)
      : spec_(spec), links_(links), listener_(local_socket()) {
    const Address address(name_);
    if (::bind(listener_.get(), address.get(), address.size) != 0 ||
        ::listen(listener_.get(), SOMAXCONN) != 0) {
      throw Error(
          Errc::collective,
          fmt::format("cannot listen on the local socket over which the ranks of a host share "
                      "memory: {}",
                      std::strerror(errno)));
    }
    spec_.store->set(key_of(spec_), name_);
  }

  /// Returns when all ranks have connected. Reports a failure to the ranks that have, so that they
  /// end with the same error, and rethrows it.
  void run() {
    try {
      LongWait long_wait(spec_.board.get());
      const auto deadline = Clock::now() + spec_.timeout;
      while (missing() < links_.size()) {
        const bool is_idle = !poll();
        accept();
        hear_guests();
        look_at_members();
        if (missing() < links_.size()) {
          give_up_after(deadline);
          if (spec_.check) {
            spec_.check();
          }
          if (is_idle) {
            long_wait.goes_on(spec_.ranks[missing()]);
          }
        }
      }
    } catch (const Error& error) {
      tell_all(error);
      throw;
    }
  }

 private:
  struct Guest {
    UniqueFd socket;
    ucred who;  ///< as the kernel reports it
    Session session;
  };

  /// Group rank of the first rank that has not connected; the number of ranks if all have.
  [[nodiscard]] std::size_t missing() const {
    const auto first = std::find_if(links_.begin() + 1, links_.end(),
                                    [](const Link& link) { return !link.socket; });
    return static_cast<std::size_t>(first - links_.begin());
  }

  /// Waits up to kPollInterval for any socket to become readable. True if one did.
  bool poll() const {
    std::vector<pollfd> waits = {{listener_.get(), POLLIN, 0}};
    for (const Guest& guest : guests_) {
      waits.push_back({guest.socket.get(), POLLIN, 0});
    }
    for (const Link& link : links_) {
      if (link.socket) {
        waits.push_back({link.socket.get(), POLLIN, 0});
      }
    }
    return ::poll(waits.data(), waits.size(), static_cast<int>(kPollInterval.count())) > 0;
  }

  void accept() {
    for (int i = 0; i < kAcceptedAtOnce; ++i) {
      UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!socket) {
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) {
          throw Error(Errc::collective, fmt::format("cannot accept the ranks of {}: {}",
                                                    describe(spec_), std::strerror(errno)));
        }
        return;
      }
      const auto who = peer_of(socket.get());
      if (!who || who->uid != ::geteuid()) {
        log_refusal(who.value_or(ucred{}), "it runs as another user");
        continue;
      }
      guests_.push_back({std::move(socket), *who, Session{spec_, name_}});
      if (guests_.size() > links_.size() + kMaxStrangers) {
        guests_.pop_front();
      }
    }
  }

  void hear_guests() {
    for (auto guest = guests_.begin(); guest != guests_.end();) {
      Message message;
      const Received received = receive(guest->socket.get(), message);
      const bool stays =
          received == Received::nothing || (received == Received::message && hear(*guest, message));
      guest = stays ? std::next(guest) : guests_.erase(guest);
    }
  }

  /// Handles one message of a guest. Returns false if the guest is to be removed: it was refused,
  /// or it has authenticated and moved to `links`.
  bool hear(Guest& guest, const Message& message) {
    Session& session = guest.session;
    if (message.kind == Message::Kind::hello && session.rank < 0) {
      if (message.pid != guest.who.pid) {
        // A different pid means another pid namespace, in which pids cannot be watched for death.
        return refuse(guest, fmt::format("the kernel reports its process id as {}, not {}: ranks "
                                         "of one host must run in the same pid namespace",
                                         guest.who.pid, message.pid));
      }
      if (message.rank < 1 || message.rank >= std::ssize(links_)) {
        return refuse(guest, fmt::format("it claims to be number {} of {} ranks", message.rank,
                                         links_.size()));
      }
      session.rank = message.rank;
      session.pid = message.pid;
      session.of_rank = message.challenge;
      session.of_leader = new_challenge();
      send(guest.socket.get(), {.kind = Message::Kind::answer,
                                .proof = session.proof("leader"),
                                .challenge = session.of_leader});
      return true;
    }
    if (message.kind != Message::Kind::proof || session.rank < 0 ||
        message.proof != session.proof("rank")) {
      return refuse(guest, "it did not prove that it belongs to this job");
    }
    Link& link = links_[static_cast<std::size_t>(session.rank)];
    if (link.socket) {
      return refuse(guest,
                    fmt::format("rank {} is process {}",
                                spec_.ranks[static_cast<std::size_t>(session.rank)], link.pid));
    }
    link = {std::move(guest.socket), guest.who.pid};
    return false;
  }

  /// Tells the guest why it is refused. Returns false, like `hear` for a guest to remove.
  bool refuse(const Guest& guest, const std::string& reason) {
    log_refusal(guest.who, reason);
    Message message{.kind = Message::Kind::refusal};
    message.set_text(fmt::format("rank {} of {} (pid {}) refused this process (pid {}): {}",
                                 spec_.ranks[0], describe(spec_), ::getpid(), guest.who.pid,
                                 reason));
    send(guest.socket.get(), message);
    return false;
  }

  /// Logs only the first refusals, so that a stranger cannot fill the log.
  void log_refusal(const ucred& who, const std::string& reason) {
    constexpr int kLogged = 3;
    if (num_refused_++ < kLogged) {
      logger(Component::collectives)
          .warn("refused a process (pid {}, user {}) that connected to {}: {}", who.pid, who.uid,
                describe(spec_), reason);
    }
  }

  /// Throws if a connected rank has ended. Connected ranks send nothing until the group is created,
  /// so the only event on their sockets is the end.
  void look_at_members() {
    for (std::size_t r = 1; r < links_.size(); ++r) {
      Message message;
      if (links_[r].socket && receive(links_[r].socket.get(), message) == Received::end) {
        throw Error(Errc::peer_lost,
                    fmt::format("rank {} (pid {}) ended before {} was created", spec_.ranks[r],
                                links_[r].pid, describe(spec_)),
                    spec_.ranks[r]);
      }
    }
  }

  void give_up_after(Clock::time_point deadline) const {
    if (Clock::now() <= deadline) {
      return;
    }
    int late = -1;
    const std::string reason = spec_.reason_of_timeout(
        static_cast<int>(missing()), fmt::format("the creation of {}", describe(spec_)), late);
    throw Error(Errc::timeout, reason, late);
  }

  void tell_all(const Error& error) const noexcept {
    Message message{.kind = Message::Kind::failure,
                    .rank = error.rank().value_or(-1),
                    .code = static_cast<std::int32_t>(error.code())};
    message.set_text(error.what());
    for (const Link& link : links_) {
      if (link.socket) {
        send(link.socket.get(), message);
      }
    }
  }

  const GroupSpec& spec_;
  std::vector<Link>& links_;
  const std::string name_ = random_token();
  UniqueFd listener_;
  std::list<Guest> guests_;
  int num_refused_ = 0;
};

DescriptorLinks::DescriptorLinks(const GroupSpec& spec) : spec_(spec) {
  if (spec_.rank == 0) {
    links_.resize(spec_.ranks.size());
    Gathering(spec_, links_).run();
  } else {
    join();
  }
}

void DescriptorLinks::join() {
  const std::string key = key_of(spec_);
  const std::string leader = fmt::format("rank {} of {}", spec_.ranks[0], describe(spec_));
  const std::string name = spec_.store->get(key, spec_.timeout);
  if (!is_token(name)) {
    throw Error(Errc::protocol,
                fmt::format("store key {} holds {} bytes that are not the name of a local "
                            "socket: {} did not write it",
                            key, name.size(), leader));
  }
  links_.push_back({connect(name, spec_.timeout), 0});
  const int socket = links_.front().socket.get();
  if (socket < 0) {
    // A rank that ends between its key and this call is lost, as in every later wait.
    throw Error(
        errno == ECONNREFUSED && spec_.check ? Errc::peer_lost : Errc::protocol,
        fmt::format("{} is not at the local socket that store key {} names: {} (it has ended, "
                    "runs in another network namespace, or another process wrote the key)",
                    leader, key, std::strerror(errno)));
  }
  // A listening socket has the credentials of the process that called listen(2).
  const auto who = peer_of(socket);
  if (!who || who->uid != ::geteuid()) {
    throw Error(
        Errc::protocol,
        fmt::format("store key {} names a local socket of user {} (pid {}), and this process "
                    "runs as user {}: that is not {}",
                    key, who ? static_cast<long>(who->uid) : -1L, who ? who->pid : 0, ::geteuid(),
                    leader));
  }
  links_.front().pid = who->pid;
  Session session{spec_, name, spec_.rank, ::getpid(), new_challenge()};
  send(socket, {.kind = Message::Kind::hello,
                .rank = session.rank,
                .pid = session.pid,
                .challenge = session.of_rank});
  const Message answer = await(spec_, socket, who->pid, Message::Kind::answer, nullptr);
  session.of_leader = answer.challenge;
  if (answer.proof != session.proof("leader")) {
    throw Error(
        Errc::protocol,
        fmt::format("the process (pid {}) at the local socket that store key {} names did not "
                    "prove that it is {}",
                    who->pid, key, leader));
  }
  send(socket, {.kind = Message::Kind::proof, .proof = session.proof("rank")});
}

void DescriptorLinks::give(int fd, std::size_t nbytes) const {
  for (std::size_t r = 1; r < links_.size(); ++r) {
    const int error =
        send(links_[r].socket.get(), {.kind = Message::Kind::gift, .nbytes = nbytes}, fd);
    // A rank that has ended is no error here: the next wait for it names it.
    if (error != 0 && error != EPIPE && error != ECONNRESET) {
      throw Error(Errc::collective,
                  fmt::format("cannot send shared memory of {} to rank {}: {}", describe(spec_),
                              spec_.ranks[r], std::strerror(error)));
    }
  }
}

UniqueFd DescriptorLinks::take(std::size_t nbytes) const {
  const Link& link = links_.front();
  UniqueFd fd;
  const Message gift = await(spec_, link.socket.get(), link.pid, Message::Kind::gift, &fd);
  if (!fd || gift.nbytes != nbytes) {
    throw Error(Errc::protocol,
                fmt::format("rank {} sent {} bytes of shared memory{}, rank {} expected {}",
                            spec_.ranks[0], gift.nbytes, fd ? "" : " without a descriptor",
                            spec_.ranks[static_cast<std::size_t>(spec_.rank)], nbytes),
                spec_.ranks[0]);
  }
  return fd;
}

}  // namespace acc::collectives
