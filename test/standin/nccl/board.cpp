// SPDX-License-Identifier: Apache-2.0
#include "standin/nccl/board.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace standin::nccl {

namespace {

std::string to_string(const WindowPlace& place) {
  return place.window == 0 ? "no window"
                           : "window " + std::to_string(place.window) + " at byte " +
                                 std::to_string(place.offset);
}

}  // namespace

std::string to_string(Kind kind) {
  constexpr std::array<const char*, 5> kNames = {"nothing", "all_gather", "reduce_scatter",
                                                 "all_reduce", "broadcast"};
  return kNames[static_cast<std::size_t>(kind)];
}

std::string to_string(const Call& call) {
  return to_string(call.kind) + " of " + std::to_string(call.count) + " x type " +
         std::to_string(call.dtype) + ", operation " + std::to_string(call.op) + ", root " +
         std::to_string(call.root) + ", from " + to_string(call.send) + " to " +
         to_string(call.receive);
}

SharedBoard::SharedBoard(std::string name, int size) : name_(std::move(name)) {
  const int fd = ::shm_open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(Board)) != 0) {
    die("cannot make " + name_);
  }
  void* data = ::mmap(nullptr, sizeof(Board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (data == MAP_FAILED) {
    die("cannot map " + name_);
  }
  board_ = static_cast<Board*>(data);
  if (board_->mapped.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
    ::shm_unlink(name_.c_str());
  }
}

SharedBoard::~SharedBoard() {
  ::munmap(board_, sizeof(Board));
}

void SharedBoard::forget_name() const noexcept {
  ::shm_unlink(name_.c_str());
}

void die(const std::string& message) {
  std::fprintf(stderr, "stand-in NCCL: %s\n", message.c_str());
  std::abort();
}

}  // namespace standin::nccl
