// SPDX-License-Identifier: Apache-2.0
// The server of bare_server.cpp with io_uring instead of epoll: multishot accept and receive, a
// ring of provided buffers, and sends that are submitted together. It shows what such an engine
// could gain.
//
// uring_server: prints its port and serves until its standard input is closed.
#include "canned_replies.hpp"

#include <liburing.h>
#include <poll.h>

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace {

// From <linux/io_uring.h> of Linux 6.1, which liburing 2.3 lacks.
constexpr unsigned kSingleIssuer = 1U << 12;
constexpr unsigned kDeferTaskrun = 1U << 13;

constexpr unsigned kEntries = 8192;
constexpr unsigned kBuffers = 4096;
constexpr std::size_t kBufferBytes = 4096;
constexpr std::size_t kMaxClients = 16'384;

void require(int result, const char* what) {
  if (result < 0) {
    acc::bench::fail(fmt::format("{}: {}", what, std::strerror(-result)));
  }
}

class UringServer {
 public:
  UringServer() : listener_(acc::bench::listening_socket()), clients_(kMaxClients) {
    io_uring_params params{};
    params.flags = kSingleIssuer | kDeferTaskrun | IORING_SETUP_CQSIZE | IORING_SETUP_CLAMP;
    params.cq_entries = 2 * kEntries;
    require(io_uring_queue_init_params(kEntries, &ring_, &params), "io_uring_setup");
    require(io_uring_register_ring_fd(&ring_), "IORING_REGISTER_RING_FDS");
    const std::size_t ring_bytes = kBuffers * sizeof(io_uring_buf);
    buffers_ = static_cast<io_uring_buf_ring*>(std::aligned_alloc(4096, ring_bytes));
    io_uring_buf_reg registration{};
    registration.ring_addr = reinterpret_cast<std::uintptr_t>(buffers_);
    registration.ring_entries = kBuffers;
    require(io_uring_register_buf_ring(&ring_, &registration, 0), "IORING_REGISTER_PBUF_RING");
    io_uring_buf_ring_init(buffers_);
    for (unsigned id = 0; id < kBuffers; ++id) {
      give_buffer(id);
    }
    give_back();
    accept();
    io_uring_sqe* const entry = next();
    io_uring_prep_poll_add(entry, STDIN_FILENO, POLLIN | POLLHUP);
    tag(entry, Kind::end, STDIN_FILENO);
  }

  void run() {
    while (!ends_) {
      io_uring_submit_and_wait(&ring_, 1);
      unsigned head = 0;
      unsigned count = 0;
      io_uring_cqe* event = nullptr;
      io_uring_for_each_cqe(&ring_, head, event) {
        handle(*event);
        ++count;
      }
      give_back();
      io_uring_cq_advance(&ring_, count);
    }
  }

 private:
  enum class Kind : std::uint64_t { accept, receive, send, end };

  struct Client {
    std::string rest;     // an incomplete request
    std::string sending;  // the kernel reads these bytes
    std::string next;     // to be sent after them
  };

  io_uring_sqe* next() {
    io_uring_sqe* entry = nullptr;
    while ((entry = io_uring_get_sqe(&ring_)) == nullptr) {
      io_uring_submit(&ring_);
    }
    return entry;
  }

  static void tag(io_uring_sqe* entry, Kind kind, int fd) {
    io_uring_sqe_set_data64(entry,
                            static_cast<std::uint64_t>(kind) << 32U | static_cast<unsigned>(fd));
  }

  void accept() {
    io_uring_sqe* const entry = next();
    io_uring_prep_multishot_accept(entry, listener_.get(), nullptr, nullptr, 0);
    tag(entry, Kind::accept, 0);
  }

  void receive(int fd) {
    io_uring_sqe* const entry = next();
    io_uring_prep_recv_multishot(entry, fd, nullptr, 0, 0);
    entry->flags |= IOSQE_BUFFER_SELECT;
    tag(entry, Kind::receive, fd);
  }

  void send(int fd) {
    const std::string& bytes = client(fd).sending;
    io_uring_sqe* const entry = next();
    io_uring_prep_send(entry, fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_WAITALL);
    tag(entry, Kind::send, fd);
  }

  void give_buffer(unsigned id) {
    io_uring_buf_ring_add(buffers_, &pool_[id * kBufferBytes], kBufferBytes,
                          static_cast<unsigned short>(id), io_uring_buf_ring_mask(kBuffers),
                          num_given_++);
  }

  void give_back() {
    io_uring_buf_ring_advance(buffers_, num_given_);
    num_given_ = 0;
  }

  Client& client(int fd) { return clients_.at(static_cast<std::size_t>(fd)); }

  void handle(const io_uring_cqe& event) {
    const int fd = static_cast<int>(event.user_data & 0xffffffffU);
    const bool continues = (event.flags & IORING_CQE_F_MORE) != 0;
    switch (static_cast<Kind>(event.user_data >> 32U)) {
      case Kind::end: ends_ = true; break;
      case Kind::accept:
        require(event.res, "accept");
        client(event.res) = {};
        receive(event.res);
        if (!continues) {
          accept();
        }
        break;
      case Kind::receive: received(fd, event, continues); break;
      case Kind::send:
        client(fd).sending.clear();
        if (event.res >= 0 && !client(fd).next.empty()) {
          client(fd).sending.swap(client(fd).next);
          send(fd);
        }
        break;
    }
  }

  void received(int fd, const io_uring_cqe& event, bool continues) {
    if (event.res == -ENOBUFS) {  // all buffers are in this batch of events
      return receive(fd);
    }
    if (event.res <= 0) {
      close(fd);
      return;
    }
    const unsigned id = event.flags >> IORING_CQE_BUFFER_SHIFT;
    std::string_view bytes(&pool_[id * kBufferBytes], static_cast<std::size_t>(event.res));
    Client& from = client(fd);
    std::string whole;
    if (!from.rest.empty()) {
      whole = from.rest.append(bytes);
      bytes = whole;
    }
    std::string& replies = from.sending.empty() ? from.sending : from.next;
    const bool is_idle = from.sending.empty();
    canned_.answer(bytes, replies);
    from.rest = bytes;
    give_buffer(id);
    if (!continues) {
      receive(fd);
    }
    if (is_idle && !replies.empty()) {
      send(fd);
    }
  }

  acc::UniqueFd listener_;
  io_uring ring_{};
  io_uring_buf_ring* buffers_ = nullptr;
  int num_given_ = 0;
  std::vector<char> pool_ = std::vector<char>(kBuffers * kBufferBytes);
  std::vector<Client> clients_;
  bool ends_ = false;
  const acc::bench::CannedReplies canned_;
};

}  // namespace

int main() {
  std::make_unique<UringServer>()->run();
}
