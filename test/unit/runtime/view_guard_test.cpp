// SPDX-License-Identifier: Apache-2.0
#include "sharding/view_guard.hpp"

#include "support/pipe.hpp"

#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>

namespace {

using acc::sharding::ViewGuard;

/// Writes to memory that is shown to the program, in a process of its own, which ends by that.
[[noreturn]] void write_to_shown_memory() {
  constexpr std::size_t kNbytes = 4096;
  void* const memory =
      ::mmap(nullptr, kNbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ViewGuard guard(true);
  const ViewGuard::Contents contents{.unit = "block", .parts = {{.end = 1024, .name = "weight"}}};
  guard.show(memory, kNbytes, 4, contents, 1);
  guard.hide(memory);
  guard.show(memory, kNbytes, 4, contents, 5);
  *static_cast<volatile char*>(memory) = 1;
  ::_exit(0);
}

TEST_CASE("view guard: the line names the rank that the process has now") {
  acc::test::Pipe pipe;
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    ::dup2(pipe.in.get(), STDOUT_FILENO);
    ::dup2(pipe.in.get(), STDERR_FILENO);
    write_to_shown_memory();
  }
  pipe.in.reset();
  std::string said;
  std::array<char, 512> part{};
  for (ssize_t count = 0; (count = ::read(pipe.out.get(), part.data(), part.size())) > 0;) {
    said.append(part.data(), static_cast<std::size_t>(count));
  }
  ::waitpid(child, nullptr, 0);
  CHECK_MESSAGE(
      said.find("rank 5: parameter 'weight' of unit 'block' was written") != std::string::npos,
      said);
}

}  // namespace
